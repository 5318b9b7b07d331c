"""The engine view, as a person looks at it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.server.browser.test_chat_page import LONG_TASK, ask, ask_at_length
from tests.server.browser.visit import Visit

pytestmark = pytest.mark.real

SHARED = "You are the careful librarian of a small town by the sea, and you answer in full sentences. " * 4

LEGEND_COUNTS = """([low, high]) => {
  const counts = {};
  for (const item of document.querySelectorAll("#block-legend li")) {
    counts[item.textContent.match(/[a-z]+/)[0]] = Number(item.querySelector("b").textContent.replaceAll(",", ""));
  }
  return low.every(name => counts[name] === 0) && high.every(name => counts[name] > 0);
}"""
PIXEL_OF_CURSOR = """block => {
  const canvas = document.querySelector("#block-grid canvas");
  const { cell: size, columns } = document.querySelector("#block-grid").dataset;
  const cell = size * devicePixelRatio;
  const x = ((block - 1) % columns) * cell + cell / 2, y = Math.floor((block - 1) / columns) * cell + cell / 2;
  const [r, g, b] = canvas.getContext("2d").getImageData(x, y, 1, 1).data;
  return "#" + [r, g, b].map(value => value.toString(16).padStart(2, "0")).join("");
}"""
COLOUR = "name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim()"


def test_the_grid_shows_what_two_chats_share(page: Page) -> None:
    page.fill("#system", SHARED)
    ask_at_length(page, LONG_TASK)
    page.wait_for_selector(".message.assistant .body:not(:empty)")
    page.click("#new-chat")
    ask_at_length(page, "Tell me at great length about all the books that you keep, one by one.")
    page.click("#nav-engine")
    page.wait_for_function(LEGEND_COUNTS, arg=[[], ["shared", "private"]])
    assert "shared" in (page.get_attribute("#block-grid .over", "aria-label") or "")
    expect(page.locator("#lanes .lane:not(.ended)")).to_have_count(2)

    page.focus("#block-grid .over")
    page.keyboard.press("Home")
    detail = page.locator("#block-detail")
    while "shared" not in detail.inner_text():
        page.keyboard.press("n")
    expect(detail).to_contain_text("shared, reference count 2, held by")
    block = int(detail.inner_text().split(":")[0].removeprefix("Block "))
    assert page.evaluate(PIXEL_OF_CURSOR, block) == page.evaluate(COLOUR, "shared")
    expect(page.locator("#lanes .marked")).to_have_count(2)

    page.click("#nav-chat")
    page.click("#stop")
    page.click("#chat-list li:nth-child(2) .open")
    page.click("#stop")
    page.click("#nav-engine")
    page.wait_for_function(LEGEND_COUNTS, arg=[["shared", "private"], ["cached"]])
    expect(page.locator("#lanes .lane.ended").first).to_be_visible()


def test_steps_lanes_and_latencies_have_numbers(page: Page) -> None:
    page.fill("#max_tokens", "40")
    page.click("#nav-both")
    ask(page, "Count from one to twenty in words.")
    expect(page.locator("#send")).to_be_visible()
    expect(page.locator(".message.assistant .stats")).to_contain_text("prompt tokens")
    expect(page.locator(".histogram", has_text="TTFT")).to_contain_text("p50")
    for name in ("ITL", "E2EL"):
        expect(page.locator(".histogram", has_text=name)).to_contain_text("p95")
    chart = page.locator("#step-chart canvas")
    assert "new tokens" in (chart.get_attribute("aria-label") or "")
    chart.focus()
    page.keyboard.press("End")
    expect(page.locator("#step-detail")).to_contain_text("of the budget of 512")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#step-detail")).to_contain_text("Step ")
    lane = page.locator("#lanes .lane").first
    assert "prompt tokens" in (lane.get_attribute("aria-label") or "")


def test_nobody_listens_unless_somebody_looks(page: Page) -> None:
    """The stream opens with the view and closes with it, and while paused."""
    streams: list[str] = []
    ended: list[str] = []
    page.on("request", lambda request: streams.append(request.url) if "/engine/view" in request.url else None)
    page.on("requestfailed", lambda request: ended.append(request.url) if "/engine/view" in request.url else None)
    page.wait_for_timeout(300)
    assert streams == []
    page.click("#nav-engine")
    expect(page.locator("#engine-state")).to_have_text("live")
    with page.expect_event("requestfailed", lambda request: "/engine/view" in request.url):
        page.click("#pause")
    expect(page.locator("#engine-state")).to_have_text("paused")
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")
    page.click("#pause")
    expect(page.locator("#engine-state")).to_have_text("live")
    with page.expect_event("requestfailed", lambda request: "/engine/view" in request.url):
        page.click("#nav-chat")
    page.wait_for_function("() => !document.querySelector('#engine-state').classList.contains('live')")
    assert len(streams) == len(ended) == 2


def test_light_dark_and_narrow(visit: Visit) -> None:
    page = visit.page
    page.click("#nav-engine")
    expect(page.locator("#engine-state")).to_have_text("live")
    background = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(background)
    assert light != dark
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == "light"
    assert page.evaluate(background) == light
    page.click("#theme")
    assert page.evaluate(background) == dark
    page.reload()
    assert page.evaluate(background) == dark, "the choice is kept"
    for width in (360, 768, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 800})
        for view in ("chat", "engine", "both"):
            page.evaluate("view => { location.hash = view }", view)
            page.wait_for_timeout(50)
            overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert overflow <= 0, f"{view} at {width} px scrolls sideways"


def test_a_page_opened_after_an_answer_says_that_it_saw_no_sequence(page: Page, browser: Browser) -> None:
    page.fill("#max_tokens", "3")
    ask(page, "Say yes.")
    expect(page.locator("#send")).to_be_visible()
    later = Visit(browser, page.url)
    later.page.click("#nav-engine")
    expect(later.page.locator("#engine-state")).to_have_text("live")
    expect(later.page.locator("#lanes-more")).to_contain_text("No sequence since this page was opened.")
    later.close()
