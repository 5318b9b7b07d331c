"""The bounded memory of /v1/responses."""

from __future__ import annotations

from quire.server.response_store import ResponseStore, StoredResponse


def response(num_bytes: int) -> StoredResponse:
    return StoredResponse(b"a" * (num_bytes - 2), (b"i",), {"o": b"o"})


def test_the_longest_unused_goes_first() -> None:
    store = ResponseStore(max_responses=3, max_bytes=1000)
    for name in "abc":
        store.put("", name, response(10))
    assert store.get("", "a") is not None
    store.put("", "d", response(10))
    assert [store.get("", name) is not None for name in "abcd"] == [True, False, True, True]
    assert len(store) == 3


def test_bytes_are_bounded_and_counted() -> None:
    store = ResponseStore(max_responses=100, max_bytes=100)
    for number in range(50):
        store.put("", str(number), response(30))
        assert store.num_bytes == 30 * len(store) <= 100
    store.put("", "49", response(90))
    assert (len(store), store.num_bytes) == (1, 90)
    assert store.delete("", "49")
    assert (len(store), store.num_bytes) == (0, 0)
    assert not store.delete("", "49")


def test_one_larger_than_all_the_room_drives_nothing_out() -> None:
    store = ResponseStore(max_responses=10, max_bytes=100)
    store.put("", "small", response(10))
    store.put("", "large", response(101))
    assert store.get("", "large") is None
    assert store.get("", "small") is not None


def test_a_response_exists_for_its_owner_only() -> None:
    store = ResponseStore()
    store.put("alice", "r", response(10))
    assert store.get("bob", "r") is None
    assert not store.delete("bob", "r")
    assert store.get("alice", "r") is not None


def test_an_item_is_found_for_its_owner_only_in_the_newest_answer_that_has_it() -> None:
    store = ResponseStore()
    for owner, name in (("alice", "1"), ("alice", "2"), ("bob", "3")):
        store.put(owner, name, StoredResponse(b"{}", (b'{"id":"input"}',), {"m": name.encode(), "other": b"{}"}))
    assert store.find_items("alice", {"m", "input"}) == {"m": b"2"}
    assert store.find_items("carol", {"m"}) == {}


def test_all_the_room_may_be_used() -> None:
    store = ResponseStore(max_responses=2, max_bytes=20)
    for name in "ab":
        store.put("", name, response(10))
    assert (len(store), store.num_bytes) == (2, 20)
    store.put("", "c", response(20))
    assert (len(store), store.num_bytes) == (1, 20)
