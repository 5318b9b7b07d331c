"""Counter-based noise: a token's random number is a pure function of (seed, position), never of a shared stream.

So a request draws the same tokens alone, in any batch, and after a preemption. The generator is Philox4x32-10
(Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): ten rounds of multiply and swap that turn a
128-bit counter into 128 random bits under a 64-bit key.
"""

from __future__ import annotations

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS = 10
_MASK = 0xFFFFFFFF

Words4 = tuple[int, int, int, int]


def philox4x32(counter: Words4, key: tuple[int, int]) -> Words4:
    """Ten rounds of Philox: four random 32-bit words for a counter of four words and a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        product0 = _MULTIPLIERS[0] * c0
        product1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (product1 >> 32) ^ c1 ^ k0, product1 & _MASK, (product0 >> 32) ^ c3 ^ k1, product0 & _MASK
        k0 = (k0 + _KEY_STEPS[0]) & _MASK
        k1 = (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """A uniform number in [0, 1), a multiple of 2**-53, for the token at `position` under a 64-bit `seed`."""
    words = philox4x32((position & _MASK, position >> 32, 0, 0), (seed & _MASK, (seed >> 32) & _MASK))
    return ((words[0] << 32 | words[1]) >> 11) * 2.0**-53
