"""A tiny built-in model in two wheels, and a package index on loopback that serves them, also badly."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from quire.checkpoint.catalog import BuiltinFile, BuiltinModel, WheelPart

CONTENT = bytes(range(256)) * 4096
HALF = len(CONTENT) // 2


def make_wheel(package: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(f"{package}/data.part", content)
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('code of the package ran')")
        info = f"{package}-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


WHEELS = {
    f"tiny_part{number}-1.0-py3-none-any.whl": make_wheel(f"tiny_part{number}", half)
    for number, half in ((1, CONTENT[:HALF]), (2, CONTENT[HALF:]))
}

_PARTS = tuple(WheelPart(f"tiny-part{number}==1.0", f"tiny_part{number}/data.part") for number in (1, 2))


def _file(path: str, content: bytes, parts: tuple[WheelPart, ...]) -> BuiltinFile:
    return BuiltinFile(path=path, num_bytes=len(content), sha256=hashlib.sha256(content).hexdigest(), parts=parts)


TINY = BuiltinModel(
    name="tiny",
    description="a test",
    license="none",
    num_bytes_to_fetch=sum(map(len, WHEELS.values())),
    files=(_file("tiny.gguf", CONTENT, _PARTS),),
)
TINY_FOLDER = BuiltinModel(
    name="tiny-folder",
    description="a test with several files",
    license="none",
    num_bytes_to_fetch=sum(map(len, WHEELS.values())),
    directory="tiny-folder",
    files=(
        _file("tiny-folder/first.bin", CONTENT[:HALF], _PARTS[:1]),
        _file("tiny-folder/within/whole.bin", CONTENT, _PARTS),
    ),
)


class Index:
    """`stall` makes every wheel stop halfway; `stalled` says that one has."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.stall = threading.Event()
        self.stalled = threading.Event()
        self.release = threading.Event()
        self.num_wheels_served = 0


@contextmanager
def serve_index() -> Iterator[Index]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/").split("/")[-1]
            if name in WHEELS:
                self._send_wheel(WHEELS[name])
                return
            links = [wheel for wheel in WHEELS if wheel.startswith(name.replace("-", "_") + "-")]
            self._send("".join(f'<a href="/files/{wheel}">{wheel}</a>' for wheel in links).encode(), "text/html")

        def _send_wheel(self, content: bytes) -> None:
            index.num_wheels_served += 1
            if not index.stall.is_set():
                self._send(content, "application/octet-stream")
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            index.stalled.set()
            index.release.wait(60)

        def _send(self, content: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index = Index(f"http://127.0.0.1:{server.server_port}/simple/")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield index
    finally:
        index.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
