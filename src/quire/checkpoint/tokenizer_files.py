"""What a tokenizer is made of, as plain data: read from a model directory, or rebuilt from GGUF metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from quire.checkpoint.small_file import (
    MAX_LISTING_BYTES,
    MAX_SETTINGS_BYTES,
    read_json,
    read_json_as,
    read_small_file,
    read_small_text,
)
from quire.checkpoint.tokenizer_json import AddedToken, byte_level_tokenizer_json
from quire.errors import CheckpointError, in_words


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """Everything `quire.engine.tokenizer.Tokenizer` is built from."""

    source: str
    """The file or directory it came from, for messages."""
    tokenizer_json: bytes
    """The tokenizers library's format."""
    model_vocab_size: int
    """Rows of the model's embedding: ids from here on have no meaning to the model."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """`bos_token`, `eos_token`, `pad_token` ... -> its text, under the names chat templates know."""
    eos_token_ids: tuple[int, ...] = ()
    """Ids that end a text besides `eos_token`."""
    add_bos: bool | None = None
    """Whether a text starts with BOS; None leaves it to tokenizer.json's own post-processor."""
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    """`default`, and by other names those for special uses (`tool_use`, `rag`)."""

    def added_tokens(self) -> dict[int, str]:
        """The ids of tokens that text names literally, and their texts. Raises CheckpointError."""
        try:
            added = msgspec.json.decode(self.tokenizer_json, type=_AddedTokens).added_tokens
        except msgspec.MsgspecError as error:
            raise CheckpointError(
                f"The tokenizer of {self.source} could not be read: {error}; fetch the model again."
            ) from error
        return {token.id: token.content for token in added}

    def end_token_ids(self) -> tuple[int, ...]:
        """All ids that end a text and that the model has: that of `eos_token`, if it is among the added tokens, and `eos_token_ids`."""
        eos_token = self.special_tokens.get("eos_token")
        named = [token_id for token_id, text in self.added_tokens().items() if text == eos_token]
        return tuple(dict.fromkeys(self.of_model((*named, *self.eos_token_ids))))

    def of_model(self, token_ids: Iterable[int]) -> Iterable[int]:
        """Those that the model has a logit for."""
        return (token_id for token_id in token_ids if token_id < self.model_vocab_size)


class _AddedTokens(msgspec.Struct):
    added_tokens: list[AddedToken] = []


def read_tokenizer_files(directory: Path, model_vocab_size: int, eos_token_ids: tuple[int, ...]) -> TokenizerFiles:
    """The tokenizer in a model directory. Raises CheckpointError naming what is missing or damaged."""
    config = read_json(directory / "tokenizer_config.json")
    special_tokens = _special_tokens(directory, config)
    add_bos = config.get("add_bos_token")
    return TokenizerFiles(
        source=str(directory),
        tokenizer_json=_read_tokenizer_json(directory, special_tokens),
        model_vocab_size=model_vocab_size,
        special_tokens=special_tokens,
        eos_token_ids=eos_token_ids,
        add_bos=add_bos if isinstance(add_bos, bool) else None,
        chat_templates=_chat_templates(directory, config),
    )


def _read_tokenizer_json(directory: Path, special_tokens: Mapping[str, str]) -> bytes:
    path = directory / "tokenizer.json"
    if path.exists():
        try:
            return read_small_file(path, MAX_LISTING_BYTES)
        except OSError as error:
            raise CheckpointError(f"{path} could not be read: {in_words(error)}; fetch the file again.") from error
    if (directory / "vocab.json").exists() and (directory / "merges.txt").exists():
        return _join_vocab_and_merges(directory, special_tokens)
    others = ", ".join(sorted(p.name for p in directory.glob("*.model"))) or "no other tokenizer file either"
    raise CheckpointError(
        f"{directory} has no tokenizer.json and no vocab.json with merges.txt ({others}); save the fast tokenizer"
        " beside the weights, for instance with AutoTokenizer.from_pretrained(...).save_pretrained(...)."
    )


def _join_vocab_and_merges(directory: Path, special_tokens: Mapping[str, str]) -> bytes:
    """GPT-2's and OPT's older pair of files as one tokenizer.json."""
    ids = _read_ids(directory / "vocab.json")
    lines = _read_text(directory / "merges.txt", MAX_LISTING_BYTES).split("\n")
    merges = [line for line in lines if line and not line.startswith("#version")]
    special = {text: ids[text] for text in special_tokens.values() if text in ids}
    special |= _read_ids(directory / "added_tokens.json")
    added = [AddedToken(token_id, text, special=True) for text, token_id in sorted(special.items(), key=lambda t: t[1])]
    return byte_level_tokenizer_json("gpt-2", ids, merges, added)


def _special_tokens(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The `*_token` entries, texts or serialized AddedTokens: of special_tokens_map.json, then of tokenizer_config.json."""
    named = {}
    for name, value in (*read_json(directory / "special_tokens_map.json").items(), *config.items()):
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise CheckpointError(
                    f"The tokenizer of {directory} has half of a surrogate pair in its {name}; fetch the files again."
                ) from error
            named[name] = text
    return named


_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
"""What the tokenizers library takes for one."""


def _read_ids(path: Path) -> dict[str, int]:
    """Id by token; empty if there is no such file."""
    return read_json_as(path, dict[str, _TokenId], MAX_LISTING_BYTES, "holds no token ids by token", if_missing={})


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


def _chat_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Of the places a template may be, the newer wins: chat_template.jinja, chat_template.json, tokenizer_config.json."""
    jinja = directory / "chat_template.jinja"
    if jinja.exists():
        return {"default": _read_text(jinja, MAX_SETTINGS_BYTES)}
    template = read_json(directory / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(template, str):
        return {"default": template}
    if template is None:
        return {}
    try:
        return {named.name: named.template for named in msgspec.convert(template, list[_NamedTemplate])}
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"The chat_template of {directory} is neither a text nor a list of names and templates: {error}."
        ) from error


def _read_text(path: Path, max_bytes: int) -> str:
    try:
        return read_small_text(path, max_bytes)
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path} could not be read as UTF-8 text: {in_words(error)}; fetch the file again."
        ) from error
