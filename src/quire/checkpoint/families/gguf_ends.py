"""The tokens that end a text or a turn in a GGUF file."""

from __future__ import annotations

from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.gguf.metadata import TokenType

ENDS_OF_TURN = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<EOT>",
        "_<EOT>",
        "<｜end▁of▁sentence｜>",
    }
)
"""Texts of control tokens. Many files of chat models name the end of a text alone, and their turns would never end;
llama.cpp, for which they were made, knows these texts."""


def read_end_token_ids(tokenizer: ConfigFields, vocab_size: int) -> tuple[int, ...]:
    """Ends of a text (EOS), of a turn (EOT) and of a message (EOM); without an EOT, the tokens that are known for one.

    `tokenizer` are the fields tokenizer.ggml.*.
    """
    eos, eot, eom = (tokenizer.optional_integer(f"{kind}_token_id", minimum=0) for kind in ("eos", "eot", "eom"))
    known = [] if eot is not None else _known_ends_of_turn(tokenizer, vocab_size)
    return tuple(dict.fromkeys(token_id for token_id in (eos, eot, eom, *known) if token_id is not None))


def _known_ends_of_turn(tokenizer: ConfigFields, vocab_size: int) -> list[int]:
    texts = tokenizer.texts("tokens") or []
    types = tokenizer.integers("token_type") or []
    tokens = enumerate(zip(texts[:vocab_size], types, strict=False))
    return [token_id for token_id, (text, kind) in tokens if text in ENDS_OF_TURN and kind == TokenType.CONTROL]
