"""Whether a grammar can be enforced, asked of a child process that is killed when it takes too long."""

from __future__ import annotations

import hashlib
import math
import os
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict

import msgspec

from quire.core.sampling_rules import shown
from quire.core.structured_outputs import StructuredOutputs
from quire.engine.grammar_frames import LENGTH, GrammarAnswer, GrammarQuestion, GrammarVocabulary, encode_frame
from quire.engine.tokenizer import Tokenizer
from quire.errors import InvalidRequestError, RequestTimeoutError

TIME_LIMIT_S = 4.0
"""For one grammar, as a clock on the wall tells it; most take milliseconds."""
START_LIMIT_S = 30.0
"""For the child to start, on however busy a machine."""
RETRY_AFTER_S = 60.0
"""A grammar that took too long, or whose compiler died, may have met a busy machine: so long it is not tried again."""
MAX_CACHED_ANSWERS = 1024
MAX_CACHED_CHARACTERS = 16 * 2**20
_DIED = "compiling it took more memory than allowed, or crashed the compiler"


class GrammarCheck:
    """Thread-safe; one question at a time. The child starts with the first question and ends with `close`."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._answers = _AnswerCache()

    def known(self, wanted: StructuredOutputs) -> bool:
        """Whether `resolve` answers at once."""
        return self._answers.get(_key(wanted)) is not None

    def resolve(self, wanted: StructuredOutputs) -> StructuredOutputs:
        """`wanted` with what the worker compiles. May take TIME_LIMIT_S.

        Raises InvalidRequestError, or RequestTimeoutError where the child does not start: no fault of the grammar's.
        """
        key = _key(wanted)
        answer = self._answers.get(key)
        if answer is None:
            with self._lock:
                answer = self._answers.get(key) or self._ask(key, GrammarQuestion(wanted.kind, wanted.source))
        if answer.refusal:
            _refuse(wanted, answer)
        return msgspec.structs.replace(wanted, compiled_from=answer.grammar)

    def close(self) -> None:
        """End the child. A later question starts another."""
        with self._lock:
            self._kill()

    def _ask(self, key: bytes, question: GrammarQuestion) -> GrammarAnswer:
        """The answer, which is remembered under the key."""
        if not self._tokenizer.eos_token_ids:
            return GrammarAnswer(refusal="the model has no end-of-text token to end it with")
        if self._child is None or not self._child.alive:
            self._kill()
            self._child = self._started()
        try:
            answer, seconds = self._child.ask(question), math.inf
        except (EOFError, OSError) as error:
            self._kill()
            took_long = isinstance(error, TimeoutError)
            refusal = f"compiling it took more than {TIME_LIMIT_S:g} s" if took_long else _DIED
            answer, seconds = GrammarAnswer(refusal=refusal), RETRY_AFTER_S
        self._answers.put(key, answer, seconds)
        return answer

    def _started(self) -> _Child:
        child = None
        try:
            child = _Child()
            child.start(self._vocabulary())
        except (EOFError, OSError) as error:
            if child is not None:
                child.kill()
            raise RequestTimeoutError(
                f"The compiler of structured outputs did not start within {START_LIMIT_S:g} s; the machine is busy or"
                " short of memory: try again later."
            ) from error
        return child

    def _vocabulary(self) -> GrammarVocabulary:
        tokenizer = self._tokenizer
        special = {i: tokenizer.decode_token(i) for i in tokenizer.special_token_ids}
        return GrammarVocabulary(self._vocab_size, special, list(tokenizer.eos_token_ids))

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None


class _Child:
    def __init__(self) -> None:
        # -P: what lies in the working directory is not imported.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "quire.engine.grammar_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions, self._answers = self._process.stdin, self._process.stdout
        # Who does not read must not hold up who writes: a pipe takes 64 KiB, and a grammar may be longer.
        os.set_blocking(self._questions.fileno(), False)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def start(self, vocabulary: GrammarVocabulary) -> None:
        """Raises as `ask` does."""
        deadline = time.monotonic() + START_LIMIT_S
        self._write(encode_frame(vocabulary), deadline)
        self._read_frame(deadline)

    def ask(self, question: GrammarQuestion) -> GrammarAnswer:
        """Raises TimeoutError, or EOFError or another OSError if the child died."""
        deadline = time.monotonic() + TIME_LIMIT_S
        self._write(encode_frame(question), deadline)
        return msgspec.msgpack.decode(self._read_frame(deadline), type=GrammarAnswer)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._questions.close()
        self._answers.close()

    def _write(self, data: bytes, deadline: float) -> None:
        descriptor = self._questions.fileno()
        while data:
            _wait(descriptor, select.POLLOUT, deadline)
            data = data[os.write(descriptor, data) :]

    def _read_frame(self, deadline: float) -> bytes:
        return self._read(LENGTH.unpack(self._read(LENGTH.size, deadline))[0], deadline)

    def _read(self, size: int, deadline: float) -> bytes:
        data = b""
        descriptor = self._answers.fileno()
        while len(data) < size:
            _wait(descriptor, select.POLLIN, deadline)
            part = os.read(descriptor, size - len(data))
            if not part:
                raise EOFError
            data += part
        return data


def _wait(descriptor: int, event: int, deadline: float) -> None:
    """Raises TimeoutError."""
    poller = select.poll()
    poller.register(descriptor, event)
    if not poller.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
        raise TimeoutError


class _AnswerCache:
    """The answers used last, bounded in number and in size: ten thousand different schemas take no more."""

    def __init__(self) -> None:
        self._answers: OrderedDict[bytes, tuple[GrammarAnswer, float]] = OrderedDict()
        """And when each is to be forgotten, on the monotonic clock."""
        self._num_characters = 0
        self._lock = threading.Lock()

    def get(self, key: bytes) -> GrammarAnswer | None:
        with self._lock:
            answer, end = self._answers.get(key, (None, math.inf))
            if answer is None or time.monotonic() > end:
                self._forget(key)
                return None
            self._answers.move_to_end(key)
            return answer

    def put(self, key: bytes, answer: GrammarAnswer, seconds: float) -> None:
        with self._lock:
            self._forget(key)
            self._answers[key] = answer, time.monotonic() + seconds
            self._num_characters += len(answer.grammar)
            while len(self._answers) > MAX_CACHED_ANSWERS or self._num_characters > MAX_CACHED_CHARACTERS:
                self._forget(next(iter(self._answers)))

    def _forget(self, key: bytes) -> None:
        if key in self._answers:
            answer, _ = self._answers.pop(key)
            self._num_characters -= len(answer.grammar)


def _key(wanted: StructuredOutputs) -> bytes:
    return hashlib.sha256(f"{wanted.kind} {wanted.source}".encode(errors="surrogatepass")).digest()


def _refuse(wanted: StructuredOutputs, answer: GrammarAnswer) -> None:
    field = f"structured_outputs.{wanted.kind}"
    if answer.keywords:
        named = " and ".join(f'"{keyword}"' for keyword in answer.keywords)
        raise InvalidRequestError(
            f"{field} uses {named} in a way that cannot be enforced ({answer.refusal}); leave it out and"
            " check it on the answer.",
            field=field,
            value=answer.keywords,
        )
    raise InvalidRequestError(
        f"{field} is {shown(wanted.source)}, but it cannot be enforced: {answer.refusal}; correct or simplify it.",
        field=field,
        value=wanted.source,
    )
