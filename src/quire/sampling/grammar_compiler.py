"""Grammars compiled by llguidance, for a model's tokenizer in the form in which it follows them."""

from __future__ import annotations

import llguidance
import tokenizers

from quire.checkpoint.token_bytes import read_vocabulary
from quire.checkpoint.tokenizer_files import TokenizerFiles
from quire.core.structured_outputs import MAX_LEXER_STATES

FIRST = "\x02"
"""In front of a text, so that no tokenizer takes the text's start for that of a sentence. Nothing merges with it."""
NUM_TOKENS_AHEAD = 8
"""At least so many tokens of a text that a grammar forces are looked at: beyond them nothing bears on the next."""


class GrammarCompiler:
    """For one model's vocabulary. Used by one thread."""

    def __init__(self, files: TokenizerFiles, vocab_size: int) -> None:
        self._tokenizer = grammar_tokenizer(files, vocab_size)

    def compile(self, grammar: str) -> llguidance.LLMatcher:
        limits = llguidance.LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        # A long text that the grammar begins with is read once, here, and not by each copy while a step waits.
        matcher.compute_bitmask()
        return matcher


def grammar_tokenizer(files: TokenizerFiles, vocab_size: int) -> llguidance.LLTokenizer:
    """Ids that are no token of the tokenizer (padding of the embedding) are never allowed.

    llguidance can read a tokenizer.json by itself, but holds the interpreter all the while: 3.4 s for Gemma's 262,000
    tokens, in which the engine neither steps nor says that it lives. So it is fed in parts, the longest 1.4 s.

    Raises UnsupportedModelError for a tokenizer whose text is not a concatenation of its tokens' bytes.
    """
    wrapper = llguidance.TokenizerWrapper(_GrammarVocabulary(files, vocab_size))
    tokenizer = llguidance.LLTokenizer(wrapper, eos_token=list(files.end_token_ids()), slices=[])
    return tokenizer.with_slices(llguidance.LLTokenizer.general_slices())


class _GrammarVocabulary:
    """What llguidance asks for, by its names.

    Some tokenizers have added tokens that their model has no embedding for; these are beyond its logits.
    """

    def __init__(self, files: TokenizerFiles, vocab_size: int) -> None:
        vocabulary = read_vocabulary(files.tokenizer_json)
        self.tokens = vocabulary.tokens + [b""] * (vocab_size - len(vocabulary.tokens))
        self.special_token_ids = vocabulary.special_ids
        self.eos_token_id = files.end_token_ids()[0]
        self.bos_token_id = None
        self._tokenizer = tokenizers.Tokenizer.from_buffer(files.tokenizer_json)
        self._first_ids = self._encode(FIRST)
        self._num_characters = NUM_TOKENS_AHEAD * max(map(len, self.tokens))

    def __call__(self, text: str) -> list[int]:
        """The tokens the model itself would write a text with that a grammar forces; of a long text, its beginning.

        It is asked for at every token of the text, of which it needs the next.
        """
        return self._encode(FIRST + text[: self._num_characters])[len(self._first_ids) :]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids
