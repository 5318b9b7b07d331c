"""Noise is the published generator, and numbers of different seeds and positions look independent."""

from __future__ import annotations

import numpy as np
import pytest

from quire.sampling.noise import philox4x32, uniform

COUNT = 200_000


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_vectors_published_with_random123(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == expected


def test_bits_of_a_uniform() -> None:
    """The 53 bits are the first two words, high word first; seed and position reach all their bits."""
    for seed, position in [(0, 0), (2**64 - 1, 2**31 - 1), (0x0123456789ABCDEF, 2**32 + 5)]:
        words = philox4x32((position % 2**32, position >> 32, 0, 0), (seed % 2**32, seed >> 32))
        assert uniform(seed, position) == ((words[0] << 32 | words[1]) >> 11) / 2**53


def chi_square_of_bins(values: np.ndarray, num_bins: int) -> float:
    counts = np.bincount((values * num_bins).astype(int), minlength=num_bins)
    expected = len(values) / num_bins
    return float(((counts - expected) ** 2 / expected).sum())


STREAMS = {
    "positions of one seed": lambda i: uniform(12345, i),
    "seeds at one position": lambda i: uniform(i, 17),
    "forks' seeds": lambda i: uniform((99 + i * 0x9E3779B97F4A7C15) % 2**64, 3),
    "high halves": lambda i: uniform(i << 32, 5),
}


@pytest.mark.parametrize("stream", STREAMS)
def test_uniform_and_serially_independent(stream: str) -> None:
    values = np.array([STREAMS[stream](i) for i in range(COUNT)])
    assert values.min() >= 0
    assert values.max() < 1
    # 255 degrees of freedom: mean 255, standard deviation 22.6; the bound is 5 of them up.
    assert chi_square_of_bins(values, 256) < 255 + 5 * 22.6
    for lag in (1, 2, 3, 16, 1000):
        correlation = np.corrcoef(values[:-lag], values[lag:])[0, 1]
        assert abs(correlation) < 5 / COUNT**0.5, lag
    pairs = (values[0::2] * 16).astype(int) * 16 + (values[1::2] * 16).astype(int)
    assert chi_square_of_bins(pairs / 256, 256) < 255 + 5 * 22.6


def test_low_bits_are_random_too() -> None:
    """A uniform of 24 or 32 bits would never draw tokens of probability 1e-12 at the right rate."""
    low = np.array([int(uniform(7, i) * 2**53) & 0xFF for i in range(50_000)])
    assert chi_square_of_bins(low / 256, 256) < 255 + 5 * 22.6
