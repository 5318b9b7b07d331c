"""The bounded memory of /v1/responses."""

from __future__ import annotations

from quire.server.response_store import ResponseStore, StoredResponse


def response(num_bytes: int) -> StoredResponse:
    return StoredResponse(b"a" * (num_bytes - 2), (b"i",), (b"o",))


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
