"""The files of a batch (OpenAI's format): a request a line in, a record a line out.

A record's id is made of its line's number and content. That is what lets a run that was killed be taken up again: what
has a record is done, what has none is asked (again), and a record of another input is noticed.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import httpx
import msgspec
from filelock import FileLock, Timeout

from quire.client.address import NOT_JSON, error_sentence, shorten
from quire.errors import InvalidRequestError, QuireError, in_words

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
STDIN = Path("-")


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line of the input. `problem` says why it cannot be asked; then `url` and `body` mean nothing."""

    record_id: str
    custom_id: str | None
    url: str = ""
    body: bytes = b""
    problem: str | None = None


@contextlib.contextmanager
def readable_twice(path: Path) -> Iterator[Path]:
    """An input's path, or that of a copy, which lives as long as the context: a pipe can be read once, and a batch is first counted.

    "-" is stdin. Raises InvalidRequestError.
    """
    if path.is_file():
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as copy:
        with _open_once(path) as pipe:
            shutil.copyfileobj(pipe, copy)
        copy.flush()
        yield Path(copy.name)


def _open_once(path: Path) -> BinaryIO:
    try:
        return open(0, "rb", closefd=False) if path == STDIN else path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> InvalidRequestError:
    return InvalidRequestError(f"The batch {path} cannot be read: {in_words(error)}.", field="input")


def read_input(path: Path) -> Iterator[BatchLine]:
    """Line by line: the file may be larger than memory. Empty lines and a byte order mark are passed over."""
    seen: set[bytes] = set()
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                line = raw.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").strip()
                if line:
                    yield parse_line(number, line, seen)
    except OSError as error:
        raise _unreadable(path, error) from error


def parse_line(number: int, raw: bytes, seen: set[bytes]) -> BatchLine:
    """`seen` holds digests of the custom ids so far and gets this one's."""
    record_id = "batch_req_" + hashlib.sha256(b"%d %s" % (number, raw)).hexdigest()[:24]
    try:
        request = msgspec.json.decode(raw)
    except NOT_JSON as error:
        return BatchLine(record_id, None, problem=f"line {number} is not JSON: {error}")
    custom_id = request.get("custom_id") if isinstance(request, dict) else None
    if not isinstance(custom_id, str):
        return BatchLine(record_id, None, problem=f"line {number} is no object with a custom_id")
    digest = hashlib.sha256(custom_id.encode(errors="surrogatepass")).digest()[:16]
    problem = _problem(request) or (f"custom_id {custom_id!r} was used before" if digest in seen else None)
    seen.add(digest)
    if problem is not None:
        return BatchLine(record_id, custom_id, problem=f"line {number}: {problem}")
    return BatchLine(record_id, custom_id, request["url"], msgspec.json.encode(request["body"]))


def _problem(request: dict[str, Any]) -> str | None:
    """What keeps a request from being asked."""
    if request.get("method") != "POST":
        return f"method must be POST, got {request.get('method')!r}"
    if request.get("url") not in URLS:
        return f"url must be one of {', '.join(URLS)}, got {request.get('url')!r}"
    body = request.get("body")
    if not isinstance(body, dict):
        return "body must be an object"
    if body.get("stream"):
        return "a batch cannot stream; leave stream out of the body"
    return None


class BatchOutput:
    """The file of records: only ever appended to, by one process at a time.

    `done` are the ids of the records it had when it was opened, of which `num_answered` hold an answer. Opening it cuts
    off a last line that a kill left unfinished. Raises InvalidRequestError if it is in use, cannot be written, or holds
    anything but records.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():
            raise InvalidRequestError(f"The output {path} is no file; name one.", field="output")
        self._path = path
        self._lock = FileLock(f"{path}.lock")
        try:
            self._lock.acquire(timeout=0)
            self.done, self.num_answered = _repair(path)
            self._file = path.open("ab")
        except Timeout as error:
            raise InvalidRequestError(f"Another run writes to {path}.", field="output") from error
        except OSError as error:
            self._unlock()
            raise InvalidRequestError(
                f"The output {path} cannot be written: {in_words(error)}.", field="output"
            ) from error
        except InvalidRequestError:
            self._unlock()
            raise

    def _unlock(self) -> None:
        """Removed while it is still held: filelock notices if what it locked is gone."""
        with contextlib.suppress(OSError):  # Windows keeps open files
            Path(self._lock.lock_file).unlink()
        self._lock.release()

    def append(self, records: Iterable[dict[str, Any]]) -> None:
        """On disk when it returns, all of them by one fsync. Raises QuireError if the disk does not take them."""
        try:
            self._file.write(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise QuireError(
                f"{self._path} cannot be written: {in_words(error)}; make room and run again to take the batch up."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        self._unlock()


def is_answered(record: dict[str, Any]) -> bool:
    """Neither an error nor an HTTP status of 400 or more."""
    response = record.get("response")
    return response is not None and bool(response["status_code"] < httpx.codes.BAD_REQUEST)


def reason_of(record: dict[str, Any]) -> str:
    """Why a record is no answer, and whose: in the server's own sentence where it is in OpenAI's shape."""
    name = "" if record["custom_id"] is None else f"{record['custom_id']}: "
    if record["error"] is not None:
        return name + str(record["error"]["message"])
    status, body = record["response"]["status_code"], record["response"]["body"]
    error = body.get("error") if isinstance(body, dict) else None
    return name + f"the server answered {status}: {shorten(error_sentence(error or body))}"


def _repair(path: Path) -> tuple[set[str], int]:
    """The ids of the file's whole lines, and how many of them are answers; half a line at its end is cut off."""
    done, num_answered, end = set(), 0, 0
    with path.open("a+b") as file:
        file.seek(0)
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                record_id, answered = _parse_record(path, number, line)
                done.add(record_id)
                num_answered += answered
                end += len(line)
        file.truncate(end)
    return done, num_answered


def _parse_record(path: Path, number: int, line: bytes) -> tuple[str, bool]:
    try:
        record = msgspec.json.decode(line)
        return str(record["id"]), is_answered(record)
    except (*NOT_JSON, KeyError, TypeError) as error:
        raise InvalidRequestError(
            f"{path}, line {number} is no record of a batch; name another output, or remove the file.", field="output"
        ) from error
