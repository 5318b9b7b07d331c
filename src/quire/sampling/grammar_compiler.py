"""Grammars compiled by llguidance."""

from __future__ import annotations

from collections import OrderedDict

import llguidance

from quire.checkpoint.tokenizer_files import TokenizerFiles
from quire.core.structured_outputs import MAX_LEXER_STATES
from quire.sampling.grammar_tokenizer import grammar_tokenizer

MAX_COMPILED = 32
"""Compiled grammars kept for the next row that wants the same one."""


class GrammarCompiler:
    """For one model's vocabulary. Used by one thread."""

    def __init__(self, files: TokenizerFiles, vocab_size: int) -> None:
        self._tokenizer = grammar_tokenizer(files, vocab_size)
        self._compiled: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()

    def compile(self, grammar: str) -> llguidance.LLMatcher:
        """A fresh copy: the one that is kept never sees a token, so nothing of one row reaches another."""
        matcher = self._compiled.get(grammar)
        if matcher is None:
            limits = llguidance.LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
            matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
            self._compiled[grammar] = matcher
        self._compiled.move_to_end(grammar)
        if len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)
        return matcher.deep_copy()
