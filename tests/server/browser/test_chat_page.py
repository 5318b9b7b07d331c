"""The chat at `/`, as a person uses it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.server.browser.visit import Visit
from tests.server.running_server import running_server

pytestmark = pytest.mark.real

LONG_TASK = "Write a very long story about a lighthouse keeper. Describe every day of his year."


def answers(page: Page) -> list[str]:
    return page.locator(".message.assistant .body").all_inner_texts()


def ask(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def ask_at_length(page: Page, text: str) -> None:
    """Of a task like LONG_TASK: a greedy answer does not come to its end, so a test can do something while it grows."""
    page.fill("#temperature", "0")
    page.fill("#max_tokens", "4000")
    ask(page, text)


def grown_past(page: Page, num_characters: int) -> None:
    page.wait_for_function(
        "n => document.querySelector('.message.assistant:last-child .body')?.innerText.length > n", arg=num_characters
    )


def test_an_answer_streams_and_tells_its_times(page: Page) -> None:
    ask_at_length(page, LONG_TASK)
    grown_past(page, 0)
    early = len(answers(page)[0])
    grown_past(page, early + 20)
    expect(page.locator("#stop")).to_be_visible()  # Words are there and the answer still runs.
    page.click("#stop")
    page.click("#clear")
    page.fill("#max_tokens", "60")
    ask(page, "Count from one to twenty in words.")
    expect(page.locator(".message.assistant .stats")).to_contain_text("prompt tokens")
    expect(page.locator("#send")).to_be_visible()
    stats = page.locator(".message.assistant .stats").inner_text()
    for part in ("TTFT", "tok/s", "prompt tokens", "output tokens"):
        assert part in stats
    assert "Answer: " in page.locator("#answer-news").inner_text(), "screen readers hear the answer once, whole"


def test_stop_ends_the_answer_and_frees_the_engine(page: Page) -> None:
    ask_at_length(page, LONG_TASK)
    grown_past(page, 40)
    page.click("#stop")
    expect(page.locator("#send")).to_be_visible()
    expect(page.locator(".message.assistant .stats")).to_contain_text("stopped by you")
    text = answers(page)[0]
    page.click("#nav-engine")
    expect(page.locator(".tile", has_text="Running")).to_contain_text("0 of")
    expect(page.locator(".tile", has_text="KV in use")).to_contain_text("0.0 %")
    page.click("#nav-chat")
    expect(page.locator("#messages")).to_be_visible()  # Hidden, its text has no line ends.
    assert answers(page)[0] == text


def test_regenerate_replaces_and_clear_empties(page: Page) -> None:
    page.fill("#max_tokens", "12")
    page.fill("#seed", "7")
    ask(page, "Name a colour.")
    expect(page.locator(".message.assistant .stats")).to_contain_text("prompt tokens")
    expect(page.locator("#send")).to_be_visible()
    page.fill("#max_tokens", "3")
    page.click("#regenerate")
    expect(page.locator(".message.assistant .stats")).to_contain_text("3 output tokens")
    expect(page.locator("#send")).to_be_visible()
    assert len(answers(page)) == 1, "the new answer is in place of the old one"
    page.click("#clear")
    expect(page.locator(".message")).to_have_count(0)
    expect(page.locator(".welcome")).to_be_visible()


def test_a_chat_goes_on_in_the_background_and_survives_a_reload(page: Page) -> None:
    ask_at_length(page, LONG_TASK)
    grown_past(page, 10)
    early = len(answers(page)[0])
    page.click("#new-chat")
    expect(page.locator(".message")).to_have_count(0)
    expect(page.locator("#chat-list .running")).to_have_count(1)
    page.click("#chat-list li:has-text('Write a very long') .open")
    grown_past(page, early + 20)
    page.click("#stop")
    expect(page.locator("#chat-list .running")).to_have_count(0)
    expect(page.locator(".message.assistant .stats")).to_contain_text("output tokens")
    text = answers(page)[0]
    page.reload()
    page.click("#chat-list li:has-text('Write a very long') .open")
    expect(page.locator(".message.assistant")).to_have_count(1)
    assert answers(page)[0] == text
    assert page.input_value("#max_tokens") == "4000"


def test_the_keyboard_reaches_everything(page: Page) -> None:
    page.fill("#temperature", "0")
    page.fill("#max_tokens", "4000")
    page.evaluate("document.body.tabIndex = -1; document.body.focus()")
    page.keyboard.press("Tab")
    expect(page.locator(".skip-link")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    reached = set()
    for _ in range(25):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert reached >= {"new-chat", "system", "temperature", "top_p", "max_tokens", "seed", "messages", "prompt", "send"}
    page.focus("#prompt")
    page.keyboard.type(LONG_TASK)
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("and another.")
    assert page.input_value("#prompt") == f"{LONG_TASK}\nand another."
    page.keyboard.press("Enter")
    expect(page.locator("#stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#send")).to_be_visible()


def test_a_key_is_asked_for_kept_in_the_tab_and_sent(browser: Browser, smollm2: str) -> None:
    with running_server(smollm2, "--executor", "null", "--num-blocks", "64", api_key="open-sesame") as server:
        visit = Visit(browser, server.url)
        page = visit.page
        expect(page.locator("#key-dialog")).to_be_visible()
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        expect(page.locator("#key-problem")).to_contain_text("did not accept")
        page.fill("#key", "open-sesame")
        page.press("#key", "Enter")
        expect(page.locator("#key-dialog")).to_be_hidden()
        page.fill("#max_tokens", "20")
        ask(page, "Hello")
        expect(page.locator(".message.assistant .stats")).to_contain_text("20 output tokens")
        page.click("#nav-engine")
        expect(page.locator("#engine-state")).to_have_text("live")
        assert "open-sesame" not in page.evaluate("JSON.stringify(localStorage)")
        refused = [line for line in visit.console if "401" in line]
        assert len(refused) == len(visit.console) >= 2, "nothing but the browser's own note of each 401"
        visit.console.clear()
        visit.close()


def test_an_error_of_the_server_is_shown_as_it_was_said(visit: Visit) -> None:
    page = visit.page
    page.fill("#max_tokens", "12")
    ask(page, "word " * 9000)
    expect(page.locator(".message.assistant .problem")).to_contain_text("tokens")
    assert all("400" in line for line in visit.console)
    visit.console.clear()
