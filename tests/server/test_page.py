"""The page's files: what is served, under which policy, and that nothing in them asks another host."""

from __future__ import annotations

import re

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from quire.server.routes import page
from quire.server.routes.page import PAGE_FILES


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    app.include_router(page.router)
    return TestClient(app)


def test_every_file_the_page_names_is_served_under_a_strict_policy(client: TestClient) -> None:
    names = {"index.html"}
    pending = ["index.html"]
    while pending:
        text = PAGE_FILES[pending.pop()].content.decode()
        for name in re.findall(r'(?:"/page/|from "\./)([\w.-]+)"', text):
            if name not in names:
                names.add(name)
                pending.append(name)
    assert names == set(PAGE_FILES), "the page names each of its files, and no other"
    for path in ["/", *(f"/page/{name}" for name in names)]:
        response = client.get(path)
        assert response.status_code == 200
        policy = response.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", sorted(PAGE_FILES))
def test_no_file_names_another_host_or_parses_html(name: str) -> None:
    text = PAGE_FILES[name].content.decode().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(src|href|url\(|import|fetch\()\s*[=(]?\s*[\"']?(https?:)?//", text)
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "@import"):
        assert word not in text
    assert not re.search(r"<[^>]*\s(style|on\w+)=", text), "inline styles and handlers would break the policy"


def test_an_unchanged_file_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/page/main.js")
    again = client.get("/page/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""
    assert client.get("/page/main.js", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("path", ["/page/nothing.js", "/page/..%2f..%2fconfig.py", "/page/%2e%2e/state.py", "/page/"])
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404
