"""The page at `/`: static files of this package, held in memory, under a policy that lets it talk to nobody else."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter, Request, Response

router = APIRouter(include_in_schema=False)

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",
}
CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    content: bytes
    content_type: str
    etag: str


def read_page_files() -> dict[str, PageFile]:
    """Every file of the page by its name; a request can name nothing else."""
    page_files = {}
    for path in files("quire.server").joinpath("page").iterdir():
        extension = path.name.rpartition(".")[2]
        if extension in CONTENT_TYPES:
            content = path.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            page_files[path.name] = PageFile(content, CONTENT_TYPES[extension], etag)
    return page_files


PAGE_FILES = read_page_files()


@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    return serve(request, "index.html")


@router.api_route("/page/{name}", methods=["GET", "HEAD"])
async def page_file(request: Request, name: str) -> Response:
    return serve(request, name)


def serve(request: Request, name: str) -> Response:
    """One file; 304 without it if the browser's copy is the same."""
    page_file = PAGE_FILES.get(name)
    if page_file is None:
        return Response("There is no such file.", status_code=404, headers=SECURITY_HEADERS, media_type="text/plain")
    headers = {**SECURITY_HEADERS, "ETag": page_file.etag}
    if page_file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(page_file.content, headers=headers, media_type=page_file.content_type)
