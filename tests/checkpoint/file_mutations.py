"""Ways to damage a file, for hypothesis to combine."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

Mutation = Callable[[bytes], bytes]

TELLING_NUMBERS = [
    0,
    1,
    2,
    31,
    2**15,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**60,
    2**63 - 1,
    2**63,
    2**64 - 32,
    2**64 - 1,
]
"""What overflows, wraps around or asks for too much."""


def mutate(content: bytes, changes: list[Mutation]) -> bytes:
    for change in changes:
        content = change(content)
    return content


def mutations(num_bytes: int) -> st.SearchStrategy[list[Mutation]]:
    """One to four changes to a file of `num_bytes`, most of them near its start, where the header is."""
    place = st.one_of(st.integers(0, min(num_bytes, 512)), st.integers(0, num_bytes))
    numbers = st.sampled_from(TELLING_NUMBERS).map(lambda number: number.to_bytes(8, "little"))
    patch = st.one_of(numbers, numbers.map(lambda number: number[:4]), st.binary(min_size=1, max_size=9))
    return st.lists(
        st.one_of(
            st.builds(_overwrite, place, patch),
            st.builds(_insert, place, patch),
            st.builds(_remove, place, st.integers(1, 40)),
            st.builds(_repeat, place, st.integers(1, 200)),
            st.builds(_cut, place),
        ),
        min_size=1,
        max_size=4,
    )


def _overwrite(at: int, patch: bytes) -> Mutation:
    return lambda content: content[:at] + patch + content[at + len(patch) :]


def _insert(at: int, patch: bytes) -> Mutation:
    return lambda content: content[:at] + patch + content[at:]


def _remove(at: int, length: int) -> Mutation:
    return lambda content: content[:at] + content[at + length :]


def _repeat(at: int, length: int) -> Mutation:
    return lambda content: content[: at + length] + content[at:]


def _cut(at: int) -> Mutation:
    return lambda content: content[:at]
