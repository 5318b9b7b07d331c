"""Responses that can be asked for again and gone on from. In memory, bounded: those unused for longest go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Set
from dataclasses import dataclass

MAX_RESPONSES = 4096
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """All of it JSON. Items are the conversation's: those of the responses before it, its own input, its output."""

    answer: bytes
    input_items: tuple[bytes, ...]
    output_items: Mapping[str, bytes]
    """By their ids."""

    @property
    def items(self) -> tuple[bytes, ...]:
        return (*self.input_items, *self.output_items.values())

    @property
    def num_bytes(self) -> int:
        """Items shared with earlier responses count here, too, so that the bound holds whichever of them go."""
        return len(self.answer) + sum(map(len, self.items))


class ResponseStore:
    """Of one API process. `owner`: who may see a response; for others it does not exist."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._responses: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    def put(self, owner: str, response_id: str, response: StoredResponse) -> None:
        """One that is larger than all the room is not kept."""
        if response.num_bytes > self._max_bytes:
            return
        self.delete(owner, response_id)
        self._responses[owner, response_id] = response
        self.num_bytes += response.num_bytes
        while len(self) > self._max_responses or self.num_bytes > self._max_bytes:
            _, oldest = self._responses.popitem(last=False)
            self.num_bytes -= oldest.num_bytes

    def get(self, owner: str, response_id: str) -> StoredResponse | None:
        response = self._responses.get((owner, response_id))
        if response is not None:
            self._responses.move_to_end((owner, response_id))
        return response

    def find_items(self, owner: str, item_ids: Set[str]) -> dict[str, bytes]:
        """Those of the items that some answer kept here has, by their ids; of the newest answer that has them."""
        found: dict[str, bytes] = {}
        for (of, _), response in self._responses.items() if item_ids else ():
            if of == owner:
                found |= {
                    item_id: response.output_items[item_id] for item_id in item_ids & response.output_items.keys()
                }
        return found

    def delete(self, owner: str, response_id: str) -> bool:
        """Whether there was one."""
        response = self._responses.pop((owner, response_id), None)
        if response is not None:
            self.num_bytes -= response.num_bytes
        return response is not None
