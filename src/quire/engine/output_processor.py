"""From token deltas to RequestOutputs: detokenizes, finds stop strings, shapes logprobs."""

from __future__ import annotations

import time
from dataclasses import replace

from quire.core.outputs import CompletionOutput, Logprob, LogprobsAtPosition, RequestMetrics, RequestOutput
from quire.core.request import Request
from quire.core.sampling_params import OutputKind
from quire.core.sequence import FinishReason
from quire.core.step import TokenLogprobs
from quire.core.wire import SampleDelta
from quire.engine.detokenizer import IncrementalDetokenizer
from quire.engine.tokenizer import Tokenizer


class SampleState:
    """One sample so far, and what has been handed out of it."""

    __slots__ = (
        "_detokenizer",
        "_looks_for_stops",
        "_num_tokens_read",
        "_num_tokens_sent",
        "_tokenizer",
        "last_token_time",
        "output",
    )

    def __init__(self, tokenizer: Tokenizer, request: Request, index: int) -> None:
        params = request.sampling_params
        self.output = CompletionOutput(index, "", [])
        self._tokenizer = tokenizer
        self._detokenizer = (
            IncrementalDetokenizer(tokenizer, request.prompt_token_ids, params) if params.detokenize else None
        )
        # Beside what each token changes: the request's own fields lie elsewhere in memory (docs/lab.md).
        self._looks_for_stops = params.detokenize and bool(params.stop)
        self.last_token_time: float | None = None
        self._num_tokens_read = 0
        self._num_tokens_sent = 0
        if params.logprobs is not None:
            self.output.logprobs = []
            self.output.cumulative_logprob = 0.0

    def append(self, delta: SampleDelta) -> str | None:
        """Take in a delta; returns the stop string that ends the sample, if one was found."""
        output = self.output
        output.token_ids += delta.token_ids
        for at_position in delta.logprobs or ():
            self._append_logprobs(at_position)
        # Else their text can wait until somebody wants it.
        stop = self._read() if self._looks_for_stops else None
        if stop is not None:
            output.finish_reason, output.stop_reason = "stop", stop
        elif delta.finish_reason is not None:
            output.stop_reason, output.error = delta.stop_reason, delta.error
            self._finish(delta.finish_reason)
        return stop

    def abort(self) -> bool:
        """End the sample where it is; False if it had ended."""
        if self.output.finished():
            return False
        self._finish(FinishReason.ABORT)
        return True

    def view(self, kind: OutputKind) -> CompletionOutput:
        """What to hand out now: everything so far, or what is new since the last view."""
        output, detokenizer = self.output, self._detokenizer
        start = self._num_tokens_sent if kind is OutputKind.DELTA else 0
        self._num_tokens_sent = len(output.token_ids)
        text = ""
        if detokenizer is not None:
            self._read()
            text = detokenizer.take_delta() if kind is OutputKind.DELTA else detokenizer.text
        return replace(
            output,
            text=text,
            token_ids=output.token_ids[start:],
            logprobs=None if output.logprobs is None else output.logprobs[start:],
        )

    def _finish(self, reason: FinishReason) -> None:
        """What was held back in case more came (half a character, the start of a stop string) is released.

        Half a character becomes U+FFFD, which may complete a stop string.
        """
        self.output.finish_reason = reason.value
        if self._detokenizer is None:
            return
        self._read()
        self._detokenizer.finish()
        if self._detokenizer.stop_reason is not None and reason is not FinishReason.ABORT:
            self.output.finish_reason, self.output.stop_reason = "stop", self._detokenizer.stop_reason

    def _read(self) -> str | None:
        """Detokenize what came since the last time; returns the stop string that ends the text, if there is one."""
        assert self._detokenizer is not None
        start, self._num_tokens_read = self._num_tokens_read, len(self.output.token_ids)
        return self._detokenizer.append(self.output.token_ids[start:])

    def _append_logprobs(self, at_position: TokenLogprobs) -> None:
        assert self.output.logprobs is not None
        assert self.output.cumulative_logprob is not None
        self.output.logprobs.append(shape_logprobs(self._tokenizer, at_position))
        self.output.cumulative_logprob += at_position.logprobs[0]


class RequestState:
    """One request on the client's side."""

    __slots__ = (
        "_metrics",
        "_num_cached_tokens",
        "_num_unfinished",
        "_prompt_logprobs",
        "_samples",
        "_tokenizer",
        "finished",
        "request",
        "wants_end_only",
    )

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.request = request
        self._tokenizer = tokenizer
        self._samples = [SampleState(tokenizer, request, index) for index in range(request.sampling_params.n)]
        self._metrics = RequestMetrics(arrival_time=request.arrival_time)
        self._prompt_logprobs: list[LogprobsAtPosition | None] | None = None
        self._num_cached_tokens = 0
        self._num_unfinished = len(self._samples)
        self.finished = False
        # As SampleState has it.
        self.wants_end_only = request.sampling_params.output_kind is OutputKind.FINAL_ONLY

    def has_ended(self, index: int) -> bool:
        """Of one sample."""
        return self._samples[index].output.finish_reason is not None

    def append(self, delta: SampleDelta, now: float) -> str | None:
        """Take in a delta of a sample that has not ended, at a time, in monotonic seconds; returns the stop string that ends that sample, if one was found."""
        sample = self._samples[delta.index]
        self._note_times(delta, sample, now)
        if delta.prompt_logprobs is not None:
            shaped = [shape_logprobs(self._tokenizer, position) for position in delta.prompt_logprobs]
            self._prompt_logprobs = [None, *shaped]
        stop = sample.append(delta)
        if sample.output.finish_reason is not None:
            self._metrics.finished_time = now
            self._num_unfinished -= 1
            self.finished = self._num_unfinished == 0
        return stop

    def output(self, changed: set[int]) -> RequestOutput:
        """What the caller gets now."""
        kind = self.request.sampling_params.output_kind
        samples = [s for s in self._samples if kind is not OutputKind.DELTA or s.output.index in changed]
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            outputs=[sample.view(kind) for sample in samples],
            finished=self.finished,
            prompt_logprobs=self._prompt_logprobs,
            metrics=self._metrics,
            num_cached_tokens=self._num_cached_tokens,
        )

    def abort(self) -> RequestOutput:
        """End every running sample with the reason abort."""
        changed = {sample.output.index for sample in self._samples if sample.abort()}
        self._metrics.finished_time = time.monotonic()
        self.finished = True
        return self.output(changed)

    def _note_times(self, delta: SampleDelta, sample: SampleState, now: float) -> None:
        metrics = self._metrics
        if delta.token_ids:
            if sample.last_token_time is not None:
                metrics.token_gaps.append(now - sample.last_token_time)
            elif metrics.first_token_time is None:
                metrics.first_token_time = now
            metrics.last_token_time = sample.last_token_time = now
        if metrics.first_scheduled_time is None:
            metrics.first_scheduled_time = delta.first_scheduled_time
        if delta.index == 0:
            self._num_cached_tokens = delta.num_cached_tokens
        if delta.num_preemptions > metrics.num_preemptions:
            metrics.num_preemptions = delta.num_preemptions


def shape_logprobs(tokenizer: Tokenizer, at_position: TokenLogprobs) -> LogprobsAtPosition:
    """token id -> Logprob, the chosen token first."""
    return {
        token_id: Logprob(logprob, rank, tokenizer.decode_token(token_id))
        for token_id, logprob, rank in zip(at_position.token_ids, at_position.logprobs, at_position.ranks, strict=True)
    }
