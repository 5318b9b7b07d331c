"""A small Hugging Face Hub on loopback: one repository whose main branch can move, and a log of what is asked for."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REPOSITORY = "org/model"
OLD, NEW = "a" * 40, "b" * 40


class Hub:
    """`commits[commit][name]` is a file's content; `branches` are names of commits."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.commits: dict[str, dict[str, bytes]] = {OLD: {}, NEW: {}}
        self.branches = {"main": OLD}
        self.asked: list[tuple[str, str]] = []
        """(revision, file name) of every request."""
        self.before_reply: Callable[[str, str], None] = lambda revision, name: None

    def files_fetched(self) -> set[str]:
        return {name for _, name in self.asked}


@contextmanager
def serve_hub() -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._reply(with_body=False)

        def do_GET(self) -> None:
            self._reply(with_body=True)

        def _reply(self, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            prefix = f"/{REPOSITORY}/resolve/"
            if not path.startswith(prefix):
                self._not_found("RepoNotFound")
                return
            revision, name = path.removeprefix(prefix).split("/", 1)
            hub.asked.append((revision, name))
            commit = hub.branches.get(revision, revision)
            if commit not in hub.commits:
                self._not_found("RevisionNotFound")
                return
            content = hub.commits[commit].get(name)
            if content is None:
                self._not_found("EntryNotFound", commit)
                return
            self.send_response(200)
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if with_body:
                self.wfile.write(content)
            hub.before_reply(revision, name)

        def _not_found(self, code: str, commit: str | None = None) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            if commit is not None:
                self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
