"""Stop strings are found wherever the text is cut, and nothing that may begin one is let go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quire.engine.stop_strings import StopMatch, StopStringMatcher

letters = st.text(alphabet="ab", max_size=30)
stop_strings = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3, unique=True)


def first_match(text: str, stops: list[str]) -> StopMatch | None:
    """The plain way: look at every end of the text in turn."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return StopMatch(max(ending, key=len), end)
    return None


def longest_start(text: str, stops: list[str]) -> int:
    lengths = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max(lengths, default=0)


@given(st.lists(letters, max_size=10), stop_strings)
def test_the_first_match_is_found_however_the_text_is_cut(pieces: list[str], stops: list[str]) -> None:
    matcher = StopStringMatcher(stops)
    text = ""
    for piece in pieces:
        match = matcher.feed(piece)
        text += piece
        assert match == first_match(text, stops)
        if match is not None:
            return
        assert matcher.num_held == longest_start(text, stops)


def test_matching_goes_on_after_a_match_that_was_not_wanted() -> None:
    matcher = StopStringMatcher(["aa"])
    assert matcher.feed("aa") == StopMatch("aa", 2)
    assert matcher.num_held == 1
    assert matcher.feed("a") == StopMatch("aa", 3)


def test_of_matches_that_end_together_the_longest() -> None:
    for stops in (["b", "ab"], ["ab", "b"]):
        assert StopStringMatcher(stops).feed("ab") == StopMatch("ab", 2)


def test_what_began_like_a_stop_string_and_went_on_otherwise_is_none() -> None:
    """Where it goes on otherwise its last letters may begin it anew: here none, and then one."""
    matcher = StopStringMatcher(["aaabb"])
    assert [(matcher.feed(char), matcher.num_held) for char in "aaabaabb"] == [
        (None, held) for held in (1, 2, 3, 4, 1, 2, 0, 0)
    ]


def test_no_stop_strings_hold_nothing() -> None:
    matcher = StopStringMatcher([])
    assert matcher.feed("anything") is None
    assert matcher.num_held == 0


def test_samples_share_what_is_known_of_their_stop_strings() -> None:
    """512 samples that have 16 long ones each took a second to begin, on the event loop."""
    one, other = StopStringMatcher(["abab"]), StopStringMatcher(["abab"])
    assert one._stops[0][1] is other._stops[0][1]
    one.feed("aba")
    assert (one.num_held, other.num_held) == (3, 0)
