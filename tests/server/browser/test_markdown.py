"""The page's markdown, in the browser: what it makes of ordinary text, and of hostile text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page
from tests.server.browser.visit import Visit
from tests.server.running_server import RunningServer

RENDER = """async texts => {
  const { renderMarkdown } = await import("/page/markdown.js");
  const box = document.createElement("div");
  for (const text of texts) renderMarkdown(box, text);
  return box.innerHTML.replaceAll(/ class="[^"]*"| target="_blank"| tabindex="0"| role="region"| aria-label="Table"/g, "");
}"""
LINK_END = ' rel="noopener noreferrer nofollow"'


@pytest.fixture(scope="module")
def page(browser: Browser, null_server: RunningServer) -> Iterator[Page]:
    visit = Visit(browser, null_server.url)
    yield visit.page
    visit.close()


CASES = {
    "a *b* **c** ***d*** `e<f>` ~~g~~": "<p>a <em>b</em> <strong>c</strong> <em><strong>d</strong></em> <code>e&lt;f&gt;</code> <del>g</del></p>",
    "one\n\ntwo\nthree": "<p>one</p><p>two\nthree</p>",
    "# Title\ntext": "<h3>Title</h3><p>text</p>",
    "snake_case_name and 2 * 3 * 4": "<p>snake_case_name and 2 * 3 * 4</p>",
    "**open and `open": "<p>**open and `open</p>",
    "- a\n- b\n  - c\n- d": "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "> quoted\n> **text**": "<blockquote><p>quoted\n<strong>text</strong></p></blockquote>",
    "| a | b |\n|---|---|\n| 1 | *2* |": "<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td><em>2</em></td></tr></tbody></table></div>",
    "a\n\n---\n\nb": "<p>a</p><hr><p>b</p>",
    "[site](https://example.org/x)": f'<p><a href="https://example.org/x"{LINK_END}>site</a></p>',
    "see https://example.org/a.": f'<p>see <a href="https://example.org/a"{LINK_END}>https://example.org/a</a>.</p>',
    "<img src=x onerror=alert(1)>": "<p>&lt;img src=x onerror=alert(1)&gt;</p>",
    "[x](javascript:alert(1))": "<p>[x](javascript:alert(1))</p>",
    "[x](data:text/html,<script>1</script>)": "<p>[x](data:text/html,&lt;script&gt;1&lt;/script&gt;)</p>",
    "![pixel](https://example.org/p.png)": f'<p><a href="https://example.org/p.png"{LINK_END}>pixel</a></p>',
    '[x](https://e.org/"onclick="alert(1))': '<p>[x](<a href="https://e.org/"'
    + LINK_END
    + '>https://e.org/</a>"onclick="alert(1))</p>',
}


@pytest.mark.parametrize("text", CASES)
def test_rendering(page: Page, text: str) -> None:
    assert page.evaluate(RENDER, [text]) == CASES[text]


def test_code_is_kept_as_it_is_and_can_be_copied(page: Page) -> None:
    html = page.evaluate(RENDER, ["```python\nif a < b:\n\n    print('*x*')\n```\nafter"])
    assert "<code>if a &lt; b:\n\n    print('*x*')</code>" in html
    assert "<span>python</span>" in html
    assert ">Copy</button>" in html
    assert html.endswith("<p>after</p>")


def test_streaming_ends_where_the_whole_text_does(page: Page) -> None:
    text = "# T\n\n- a\n- b\n\n  more\n\n| a |\n|---|\n| 1 |\n\n```py\nx = 1\n```\n\n> q\n\n1. **x** [l](https://e.org)\n\nend"
    whole = page.evaluate(RENDER, [text])
    assert page.evaluate(RENDER, [text[:end] for end in range(len(text) + 1)]) == whole


def test_adversarial_text_is_linear_enough(page: Page) -> None:
    """The answer matters, not the time: what explodes never returns."""
    for piece in ("**", "`", "[", "![", "> ", "- ", "_a", "(https://e.org", "| - ", "\\"):
        assert page.evaluate(RENDER, [piece * 4000])
