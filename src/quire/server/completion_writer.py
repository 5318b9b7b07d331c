"""What a completion answers, whole or as a stream: the samples of several prompts, with logprobs and echoes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quire.core.outputs import CompletionOutput, LogprobsAtPosition, RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.server.choices_writer import ChoicesWriter, new_frame
from quire.server.logprobs import CompletionLogprobsWriter, prompt_logprobs
from quire.server.schemas.answers import Completion, CompletionChoice
from quire.server.schemas.completions import CompletionRequest
from quire.server.sse import event
from quire.server.state import ServerState


class CompletionWriter(ChoicesWriter):
    _chunk: Completion

    def __init__(self, state: ServerState, body: CompletionRequest, params: SamplingParams) -> None:
        super().__init__(state, body, Completion(*new_frame(state, "cmpl"), []))
        self._body = body
        self._params = params
        self._shows_output = body.max_tokens != 0
        self._logprobs: dict[int, CompletionLogprobsWriter | None] = {}
        """Of each sample begun; None where none are wanted."""

    def answer(self, outputs: Sequence[RequestOutput]) -> Completion:
        choices = []
        self._outputs = dict(enumerate(outputs))
        for number, output in enumerate(outputs):
            for sample in output.outputs:
                choice = self._choice(number, output, sample)
                if self._body.prompt_logprobs is not None:
                    choice.prompt_logprobs = prompt_logprobs(output.prompt_logprobs, self._body.prompt_logprobs)
                choices.append(choice)
        return msgspec.structs.replace(self._chunk, choices=choices, usage=self._usage())

    def write(self, output: RequestOutput, number: int = 0) -> bytes:
        self._outputs[number] = output
        chunk = self._chunk
        chunk.choices = [self._choice(number, output, sample) for sample in output.outputs]
        if self._counts_always:
            chunk.usage = self._usage()
        return event(chunk)

    def _choice(self, number: int, output: RequestOutput, sample: CompletionOutput) -> CompletionChoice:
        index = number * self._params.n + sample.index
        text, token_ids = sample.text, sample.token_ids
        finish_reason, stop_reason = sample.finish_reason, sample.stop_reason
        logprobs: Sequence[LogprobsAtPosition | None] = sample.logprobs or [None] * len(token_ids)
        if not self._shows_output:
            text, token_ids, logprobs = "", [], []
            finish_reason, stop_reason = finish_reason and "length", None
        self._num_tokens += len(token_ids)
        choice = CompletionChoice(index, text, None, finish_reason, stop_reason)
        if self._body.return_token_ids:
            choice.token_ids = token_ids
        if index not in self._logprobs:
            writer = self._logprobs[index] = self._logprobs_writer(output)
            if self._body.return_token_ids:
                choice.prompt_token_ids = output.prompt_token_ids
            if self._body.echo:
                shown = self._prompt_text(output)
                choice.text = shown + text
                if writer is not None:
                    writer.echo(output.prompt_logprobs or (), shown)
        writer = self._logprobs[index]
        if writer is not None:
            choice.logprobs = writer.write(token_ids, logprobs)
        return choice

    def _logprobs_writer(self, output: RequestOutput) -> CompletionLogprobsWriter | None:
        if self._body.logprobs is None:
            return None
        return CompletionLogprobsWriter(
            self._tokenizer,
            self._body.logprobs,
            output.prompt_token_ids,
            skip_special_tokens=self._params.skip_special_tokens,
        )

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt
        return self._tokenizer.decode(output.prompt_token_ids, self._params.skip_special_tokens)
