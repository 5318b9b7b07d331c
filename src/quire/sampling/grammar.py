"""Structured output: the tokens a row's grammar allows next, worked out while the model computes.

A grammar follows the row's live list of tokens, so a row that was preempted or forked catches up by reading it again.
What it allows depends on the row's own output and nothing else (ADR 5).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from quire.checkpoint.tokenizer_files import TokenizerFiles
from quire.core.arrays import Float32Array
from quire.sampling.constraints import FORBIDDEN

BoolArray = npt.NDArray[np.bool_]
MAX_COMPILED = 32
"""Compiled grammars kept for the next row that wants the same one."""
MAX_COMPILED_CHARACTERS = 2**20
"""Of all that are kept together: a text that is forced takes some 300 bytes a character."""


class Matcher(Protocol):
    """What is needed here of a compiled grammar (llguidance.LLMatcher)."""

    def consume_tokens(self, tokens: list[int]) -> bool: ...

    def compute_bitmask(self) -> bytes: ...

    def is_error(self) -> bool: ...

    def get_error(self) -> str: ...

    def deep_copy(self) -> Self: ...


class Compiler(Protocol):
    def compile(self, grammar: str) -> Matcher: ...


class RowError(Exception):
    """This row cannot go on; the others can."""


class Grammars:
    """Compiles grammars for one model's vocabulary, and owns the two threads that do the work.

    Compiling has a thread of its own, so that a long one never delays the masks of rows that run; a row is not to join before its
    grammar is prepared, or the step that samples it waits. The vocabulary is read with the first grammar: that takes seconds for
    250,000 tokens, and most engines never need it.
    """

    def __init__(self, read_tokenizer: Callable[[], TokenizerFiles], vocab_size: int) -> None:
        self._read_tokenizer = read_tokenizer
        self._vocab_size = vocab_size
        self._compile_thread = ThreadPoolExecutor(1, "quire-grammar-compile")
        self._mask_thread = ThreadPoolExecutor(1, "quire-grammar-mask")
        self._compiled: OrderedDict[str, Future[Matcher]] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self, grammar: str, timeout_s: float = 0.0) -> bool:
        """Has it compiled, elsewhere. Whether that is over, well or not, once so much time has passed. From any thread."""
        compiled = self._compile(grammar)
        wait([compiled], timeout_s)
        return compiled.done()

    def follow(
        self,
        grammar: str,
        token_ids: list[int],
        num_prompt_tokens: int,
        min_tokens: int = 0,
        stop_token_ids: Collection[int] = (),
    ) -> Grammar:
        """A grammar that follows a live list of tokens; compiling starts at once, elsewhere."""
        compiled = self._compile(grammar)
        min_length = num_prompt_tokens + min_tokens
        return Grammar(self._mask_thread, compiled, token_ids, num_prompt_tokens, min_length, stop_token_ids)

    def _compile(self, grammar: str) -> Future[Matcher]:
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is None or (compiled.done() and compiled.exception() is not None):
                compiled = self._compiled[grammar] = self._compile_thread.submit(
                    lambda: self._compiler.compile(grammar)
                )
            self._compiled.move_to_end(grammar)
            # Never the one that was asked for, however long.
            while len(self._compiled) > 1 and self._keeps_too_much():
                self._compiled.popitem(last=False)
        return compiled

    def _keeps_too_much(self) -> bool:
        return len(self._compiled) > MAX_COMPILED or sum(map(len, self._compiled)) > MAX_COMPILED_CHARACTERS

    @cached_property
    def _compiler(self) -> Compiler:
        # llguidance is loaded with the first grammar, not with the engine.
        from quire.sampling.grammar_compiler import GrammarCompiler

        return GrammarCompiler(self._read_tokenizer(), self._vocab_size)


class Grammar:
    """One row's grammar, a logits processor.

    Where the grammar is complete it allows the end-of-text tokens and nothing else. Until the list has `min_length`
    tokens the `stop_token_ids` are held back, unless the grammar allows no others: the grammar wins.
    """

    def __init__(
        self,
        thread: ThreadPoolExecutor,
        compiled: Future[Matcher],
        token_ids: list[int],
        num_followed: int,
        min_length: int,
        stop_token_ids: Collection[int],
    ) -> None:
        self._thread = thread
        self._compiled = compiled
        self._matcher: Matcher | None = None
        self._token_ids = token_ids
        self._num_followed = num_followed
        self._min_length = min_length
        self._stop_ids = np.array(sorted(stop_token_ids), np.int64)
        self._forbidden: Future[BoolArray] | None = None

    def prepare(self) -> None:
        """Start working out what may come after the tokens known now; `apply` waits for it."""
        self._forbidden = self._thread.submit(self._next_forbidden)

    def apply(self, logits: Float32Array) -> None:
        """Raises RowError if the grammar cannot go on from here."""
        if self._forbidden is None:
            self.prepare()
        assert self._forbidden is not None
        try:
            forbidden = self._forbidden.result()
        except RowError:
            raise
        except BaseException as error:  # a panic in llguidance is no Exception, and must end this row alone
            raise RowError(f"The grammar failed: {type(error).__name__}.") from error
        finally:
            self._forbidden = None
        np.copyto(logits, FORBIDDEN, where=forbidden[: len(logits)])

    def _next_forbidden(self) -> BoolArray:
        """Which tokens may not come next; on the thread, where llguidance lets go of the interpreter.

        A tokenizer may know more tokens than the model; the result then is longer than the logits.
        """
        if self._matcher is None:
            # The one that is kept never sees a token, so nothing of one row reaches another.
            self._matcher = self._compiled.result().deep_copy()
        matcher = self._matcher
        new = self._token_ids[self._num_followed :]
        self._num_followed += len(new)
        matcher.consume_tokens(new)
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():
            reason = matcher.get_error().partition("\n<")[0].strip()
            raise RowError(f"The grammar cannot go on at position {len(self._token_ids)}: {reason}.")
        allowed = np.unpackbits(mask, bitorder="little")
        if len(self._token_ids) < self._min_length:
            held = allowed[self._stop_ids]
            allowed[self._stop_ids] = 0
            if not allowed.any():
                allowed[self._stop_ids] = held
        forbidden: BoolArray = allowed == 0
        return forbidden
