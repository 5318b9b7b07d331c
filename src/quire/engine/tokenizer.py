"""Text to token ids and back."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import tokenizers

from quire.checkpoint.token_bytes import read_token_decoder
from quire.checkpoint.tokenizer_files import TokenizerFiles
from quire.core.text import check_unicode
from quire.errors import CheckpointError, InvalidRequestError
from quire.host.host_memory import give_back_freed_memory

LONG_TEXT = 4096
"""Characters from which on a text is encoded without the interpreter's lock, which only the library's call for batches gives up:
megabytes take seconds, in which no other thread would run."""

HUGE_TEXT = 2**20
"""Characters from which on what encoding took, more than a hundred bytes for each, goes back to the system."""


class Tokenizer:
    """A model's tokenizer. Raises CheckpointError if its files are damaged or do not fit the model.

    A vocabulary larger than the model's embedding is refused. Single added tokens beyond it are not (Gemma 3's text
    models come with one for images): encoding a text that holds one raises InvalidRequestError instead.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        try:
            self._backend = tokenizers.Tokenizer.from_buffer(files.tokenizer_json)
            begin = self._backend.encode("").ids[:1]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises plain Exception, and its panics are not even that
            raise CheckpointError(
                f"The tokenizer of {files.source} could not be read: {error}; fetch the model again."
            ) from error
        # Files may ask for truncation or padding; a prompt is taken whole.
        self._backend.no_truncation()
        self._backend.no_padding()
        self._model_vocab_size = files.model_vocab_size
        self._check_fits(files)
        self._added = {token_id: token.special for token_id, token in self._backend.get_added_tokens_decoder().items()}
        decoder = self._backend.decoder
        self._decoder = read_token_decoder(None if decoder is None else json.loads(decoder.__getstate__()))
        self._bytes: dict[int, bytes] = {}

        self.special_tokens = dict(files.special_tokens)
        self.chat_templates = dict(files.chat_templates)
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        eos = () if self.eos_token_id is None else (self.eos_token_id,)
        self.eos_token_ids: tuple[int, ...] = tuple(dict.fromkeys(files.of_model((*eos, *files.eos_token_ids))))
        named = [self._backend.token_to_id(text) for text in self.special_tokens.values()]
        special = [token_id for token_id, special in self._added.items() if special]
        self.special_token_ids = frozenset(token_id for token_id in (*named, *special) if token_id is not None)
        self._add_bos = files.add_bos
        self._post_processor_adds_bos = begin == [self.bos_token_id]

    @property
    def vocab_size(self) -> int:
        """Tokens, added ones included."""
        return self._backend.get_vocab_size()

    @property
    def strips_leading_space(self) -> bool:
        """Whether decoding drops one space at the very start of the text."""
        return self._decoder.strips_leading_space

    @cached_property
    def max_token_bytes(self) -> int | None:
        """The most bytes of a text that one token stands for; None where tokens are not all of the text's bytes.

        They are in byte-level BPE that knows every byte, without a normalizer, and without added tokens that take in
        the white space around them.
        """
        if self._backend.normalizer is not None or not self._splits_keep_everything():
            return None
        if any(token.lstrip or token.rstrip for token in self._backend.get_added_tokens_decoder().values()):
            return None
        ids = [self._backend.token_to_id(char) for char in tokenizers.pre_tokenizers.ByteLevel.alphabet()]
        if not isinstance(self._backend.model, tokenizers.models.BPE) or None in ids:
            return None
        return max(len(text.encode()) for text in self._backend.get_vocab())

    def _splits_keep_everything(self) -> bool:
        splitter = self._backend.pre_tokenizer
        settings = {} if splitter is None else json.loads(splitter.__getstate__())
        steps = settings.get("pretokenizers", [settings])
        kept = {"ByteLevel", "Digits", "Split"}
        known = all(step.get("type") in kept and step.get("behavior") != "Removed" for step in steps)
        return known and any(step.get("type") == "ByteLevel" for step in steps)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Special tokens written out in it are recognized.

        `add_special_tokens` puts BOS in front where the model wants one, unless the text begins with it.
        """
        check_unicode(text)
        ids = self._encode(text, add_special_tokens and self._add_bos is None)
        if add_special_tokens:
            ids = self._with_one_bos(ids)
        self._check_surplus(ids)
        return ids

    def encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of many texts, nothing put in front."""
        for text in texts:
            check_unicode(text)
        with _failures_refused():
            found = [encoded.ids for encoded in self._backend.encode_batch_fast(texts, add_special_tokens=False)]
        for ids in found:
            self._check_surplus(ids)
        return found

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        with _failures_refused():
            if len(text) > LONG_TEXT:
                encoded = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
            else:
                encoded = self._backend.encode(text, add_special_tokens=add_special_tokens)
        ids: list[int] = encoded.ids
        if len(text) > HUGE_TEXT:
            del encoded
            give_back_freed_memory()
        return ids

    def truncate(self, ids: list[int], max_tokens: int) -> list[int]:
        """The beginning of a text; a special token that ended the whole (BERT's [SEP]) ends the part too."""
        if len(ids) <= max_tokens:
            return ids
        end = ids[-1:] if ids[-1] in self.special_token_ids and max_tokens > 1 else []
        return ids[: max_tokens - len(end)] + end

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids. Bytes that are no UTF-8 become U+FFFD, ids that are no token become nothing."""
        skipped = self.special_token_ids if skip_special_tokens else frozenset()
        data = b"".join(self.token_bytes(token_id) for token_id in ids if token_id not in skipped)
        if self.strips_leading_space:
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")

    def decode_token(self, token_id: int) -> str:
        """What to show for one token alone: special tokens by name, a part of a character as U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text; none if no token has that id."""
        data = self._bytes.get(token_id)
        if data is None:
            is_id = 0 <= token_id < 2**32
            token: str | None = self._backend.id_to_token(token_id) if is_id else None
            data = b"" if token is None else self._decoder.to_bytes(token, token_id in self._added)
            if token is not None:
                self._bytes[token_id] = data
        return data

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        bos = self.bos_token_id
        if bos is None:
            return ids
        if self._add_bos is None:
            return ids[1:] if self._post_processor_adds_bos and ids[:2] == [bos, bos] else ids
        return [bos, *ids] if self._add_bos and ids[:1] != [bos] else ids

    def _named_id(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        token_id: int | None = None if text is None else self._backend.token_to_id(text)
        return token_id

    def _check_fits(self, files: TokenizerFiles) -> None:
        num_tokens = self._backend.get_vocab_size(with_added_tokens=False)
        if num_tokens > files.model_vocab_size:
            raise CheckpointError(
                f"The tokenizer of {files.source} has {num_tokens} tokens, but the model's embedding has only"
                f" {files.model_vocab_size} rows; use the tokenizer the model was trained with."
            )

    def _check_surplus(self, ids: Sequence[int]) -> None:
        token_id = max(ids, default=0)
        if token_id < self._model_vocab_size:
            return
        raise InvalidRequestError(
            f"The text holds the token {self._backend.id_to_token(token_id)!r} with id {token_id}, but the model's"
            f" embedding ends at id {self._model_vocab_size - 1}; leave that token out.",
            field="prompt",
            value=token_id,
        )


@contextmanager
def _failures_refused() -> Iterator[None]:
    """What the library cannot do with a damaged tokenizer.json is a plain Exception, or a panic, which is not even that."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise InvalidRequestError(f"The model's tokenizer cannot encode the text: {error}.", field="prompt") from error


def utf8_decoder() -> codecs.IncrementalDecoder:
    """Decodes UTF-8 as it comes, holding back incomplete characters; what is no UTF-8 becomes U+FFFD."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace")
