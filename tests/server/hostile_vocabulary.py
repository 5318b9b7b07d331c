"""A model that says what a test wants: the null executor's token ids, with a vocabulary in which each is hostile text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.engine.small_tokenizers import BYTE_CHARS

from quire.worker.null_executor import FIRST_TOKEN_ID, NUM_TOKEN_IDS, null_token

NUM_BYTES = 256
NUM_BITS = 12
"""2 ** 12 texts of two different units: as many as the executor has ids, and three more."""
MIN_PIECE_CHARS = 260
"""So that a megabyte of text needs each id once at most."""
MAX_MODEL_LEN = 8192
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def save_speaker(original: Path, directory: Path, head: str, units: tuple[str, str]) -> str:
    """A copy of a tiny model whose answers are `head` and then nothing but the two units; see `seed_for`."""
    shutil.copytree(original, directory)
    pieces = [head, *(_piece(number, units) for number in range(1, NUM_TOKEN_IDS))]
    vocabulary = {char: byte for byte, char in BYTE_CHARS.items()}
    vocabulary |= {f"zq{number}": number for number in range(NUM_BYTES + len(SPECIAL_TOKENS), FIRST_TOKEN_ID)}
    vocabulary |= {_spelled(piece): FIRST_TOKEN_ID + number for number, piece in enumerate(pieces)}
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = vocabulary
    for number, token in enumerate(tokenizer["added_tokens"]):
        token["id"] = NUM_BYTES + number
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((directory / "config.json").read_text())
    sizes = {"vocab_size": FIRST_TOKEN_ID + NUM_TOKEN_IDS, "max_position_embeddings": MAX_MODEL_LEN}
    (directory / "config.json").write_text(json.dumps(config | sizes))
    return str(directory)


def seed_for(num_prompt_tokens: int) -> int:
    """The seed with which the first token behind such a prompt is the head."""
    return next(seed for seed in range(NUM_TOKEN_IDS) if null_token(seed, num_prompt_tokens) == FIRST_TOKEN_ID)


def _piece(number: int, units: tuple[str, str]) -> str:
    text = "".join(units[number >> bit & 1] for bit in range(NUM_BITS))
    return text * (1 + MIN_PIECE_CHARS // len(text))


def _spelled(text: str) -> str:
    """As a byte-level vocabulary writes it."""
    return "".join(BYTE_CHARS[byte] for byte in text.encode())
