"""Finding KV by content: a full block is named by a hash of its tokens and of every token before them."""

from __future__ import annotations

import hashlib
from array import array


def root_hash(model_identity: str, cache_salt: str | None) -> bytes:
    """Where hash chains start: equal tokens share blocks only under the same model and the same salt."""
    model = hashlib.sha256(model_identity.encode()).digest()
    salt = b"" if cache_salt is None else hashlib.sha256(cache_salt.encode("utf-8", "surrogatepass")).digest()
    return hashlib.sha256(model + salt).digest()


def extend_hash_chain(chain: list[bytes], root: bytes, token_ids: list[int], block_size: int, num_blocks: int) -> None:
    """Append hashes until `chain` names the first `num_blocks` full blocks.

    SHA-256, because a hash that a stranger can collide would let one user read another's KV.
    """
    parent = chain[-1] if chain else root
    for start in range(len(chain) * block_size, num_blocks * block_size, block_size):
        parent = hashlib.sha256(parent + array("q", token_ids[start : start + block_size]).tobytes()).digest()
        chain.append(parent)


class PrefixCache:
    """The map between content and blocks, one for each KV group; it knows nothing of who holds a block.

    Of two blocks with the same content the first stays findable and the second is never entered.
    """

    def __init__(self, num_groups: int) -> None:
        self._blocks: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        self._keys: dict[int, tuple[int, bytes]] = {}
        self._num_hits: dict[int, int] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def blocks(self, group: int) -> dict[bytes, int]:
        """Content hash -> block, to be read only."""
        return self._blocks[group]

    def insert(self, group: int, content: bytes, block: int) -> None:
        """Make a block findable, unless its content is already."""
        if content not in self._blocks[group]:
            self._blocks[group][content] = block
            self._keys[block] = (group, content)
            self._num_hits[block] = 0

    def remove(self, block: int) -> None:
        """Forget a block's content."""
        group, content = self._keys.pop(block)
        del self._blocks[group][content]
        del self._num_hits[block]

    def record_hit(self, block: int) -> None:
        self._num_hits[block] += 1

    def num_hits(self, block: int) -> int:
        """How many sequences found this block."""
        return self._num_hits[block]

    def cached_blocks(self) -> list[int]:
        return list(self._keys)
