"""Grammars compiled by llguidance."""

from __future__ import annotations

import llguidance

from quire.checkpoint.tokenizer_files import TokenizerFiles
from quire.core.structured_outputs import MAX_LEXER_STATES
from quire.sampling.grammar_tokenizer import grammar_tokenizer


class GrammarCompiler:
    """For one model's vocabulary. Used by one thread."""

    def __init__(self, files: TokenizerFiles, vocab_size: int) -> None:
        self._tokenizer = grammar_tokenizer(files, vocab_size)

    def compile(self, grammar: str) -> llguidance.LLMatcher:
        limits = llguidance.LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
        return llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
