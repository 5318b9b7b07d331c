"""A chat model's file says in one way or another where a turn ends."""

from __future__ import annotations

import pytest

from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.families.gguf_ends import read_end_token_ids
from quire.checkpoint.gguf.metadata import TokenType
from quire.errors import CheckpointError

TOKENS = ["<bos>", "<eos>", "<end_of_turn>", "<|eom_id|>", "a", "<|end|>"]
TYPES = [*[TokenType.CONTROL] * 4, TokenType.NORMAL, TokenType.NORMAL]


def ends(*, vocab_size: int = 10, **fields: object) -> tuple[int, ...]:
    given = {"tokens": TOKENS, "token_type": list(map(int, TYPES))} | fields
    return read_end_token_ids(ConfigFields({f"t.{k}": v for k, v in given.items()}, "m.gguf", "t."), vocab_size)


def test_without_an_end_of_turn_the_known_control_tokens_are_one() -> None:
    assert ends(eos_token_id=1) == (1, 2, 3)
    assert ends(eos_token_id=2) == (2, 3)
    assert ends() == (2, 3)


def test_what_the_file_names_is_taken_alone() -> None:
    assert ends(eos_token_id=1, eot_token_id=4) == (1, 4)
    assert ends(eos_token_id=1, eot_token_id=4, eom_token_id=0) == (1, 4, 0)


def test_only_tokens_of_the_model_end_a_turn() -> None:
    assert ends(vocab_size=3) == (2,)
    assert ends(token_type=None) == ()
    assert ends(tokens=None) == ()


@pytest.mark.parametrize(
    "damage", [{"eot_token_id": -1}, {"eom_token_id": "3"}, {"tokens": [[]] * 6}, {"token_type": ["3"] * 6}]
)
def test_damage_is_named(damage: dict[str, object]) -> None:
    (name,) = damage
    with pytest.raises(CheckpointError, match=rf"m\.gguf: t\.{name} is .*, but it must be"):
        ends(**damage)
