"""From a model's text to reasoning, content and calls of tools: the parsers one after the other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from quire.engine.tokenizer import Tokenizer
from quire.server.answer_events import ContentDelta, Event, merge_events
from quire.server.reasoning.parser import ReasoningParser
from quire.server.reasoning.registry import ReasoningStyle, choose_reasoning_style
from quire.server.text_reader import Markers, Reading, TextReader, TextStage
from quire.server.tools.definitions import Tool, ToolChoice
from quire.server.tools.parser import ToolParser
from quire.server.tools.registry import choose_tool_format
from quire.server.tools.tool_format import ToolFormat


class AnswerParser:
    """Turns text that arrives in pieces into events; a whole answer is one piece. Without stages all of it is content.

    `hidden` texts are left out wherever they stand: the names of end tokens, where special tokens are shown.
    """

    def __init__(
        self,
        reasoning: ReasoningParser | None = None,
        tools: ToolParser | None = None,
        hidden: Collection[str] = (),
    ) -> None:
        self._stages: list[TextStage] = [stage for stage in (reasoning, tools) if stage is not None]
        if hidden:
            self._stages.insert(0, _HidingStage(hidden))
        self._tools = tools

    @property
    def num_tool_calls(self) -> int:
        """Calls announced so far; with one, a finish reason "stop" becomes "tool_calls"."""
        return 0 if self._tools is None else self._tools.num_calls

    def feed(self, text: str) -> list[Event]:
        """What the next piece of the text means, as far as it is sure."""
        return _run(self._stages, [ContentDelta(text)])

    def finish(self) -> list[Event]:
        """The text ends here, for whatever reason: everything that was held back."""
        events: list[Event] = []
        for index, stage in enumerate(self._stages):
            events += _run(self._stages[index + 1 :], stage.finish())
        return merge_events(events)

    def read(self, text: str, *, ends: bool) -> list[Event]:
        """What the next piece means and, where the text ends with it, everything that was held back."""
        events = self.feed(text)
        return [*events, *self.finish()] if ends else events


def _run(stages: Sequence[TextStage], events: Iterable[Event]) -> list[Event]:
    """Each stage reads the content that the one before it left."""
    events = list(events)
    for stage in stages:
        read: list[Event] = []
        for event in events:
            read += stage.feed(event.text) if isinstance(event, ContentDelta) else [event]
        events = read
    return merge_events(events)


class _HidingStage(TextStage):
    def __init__(self, hidden: Collection[str]) -> None:
        self._markers = Markers(hidden)
        super().__init__(TextReader())

    def _read(self) -> Reading[None]:
        while (yield from self._reader.copy_until(self._markers, self._put_content)) is not None:
            self._reader.unmark()


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How one model marks its reasoning and its calls; made once, when the model is known."""

    tools: ToolFormat | None
    reasoning: ReasoningStyle | None
    chat_template: str | None = None
    token_ids: Mapping[str, int] = field(default_factory=dict)
    """Of the marks, those that are single tokens of the model."""
    skips_special_tokens: bool = True
    """What SamplingParams.skip_special_tokens must be for the parser to see the marks."""
    hidden: tuple[str, ...] = ()
    """End tokens, to be left out of the text where special tokens are not skipped."""

    def parser(
        self, tools: Sequence[Tool], choice: ToolChoice, *, parallel: bool = True, starts_inside: bool = False
    ) -> AnswerParser:
        """A parser for one answer. `starts_inside`: within the reasoning, which the prompt has opened."""
        reasoning = calls = None
        if self.reasoning is not None:
            reasoning = ReasoningParser(self.reasoning, starts_inside=starts_inside)
        if self.tools is not None and tools and choice.mode != "none":
            single = not parallel or choice.mode == "named"
            calls = ToolParser(self.tools, [tool.name for tool in tools], max_calls=1 if single else None)
        return AnswerParser(reasoning, calls, self.hidden)


def choose_answer_format(
    tokenizer: Tokenizer,
    chat_template: str | None = None,
    *,
    tool_call_parser: str = "auto",
    reasoning_parser: str = "auto",
) -> AnswerFormat:
    """The format of a model, by its chat template or the one given in its place.

    The parsers' names may be "auto" or "none". Raises InvalidRequestError for unknown ones.
    """
    templates = tokenizer.chat_templates
    template = chat_template or templates.get("tool_use") or templates.get("default")
    tools = choose_tool_format(tool_call_parser, template)
    reasoning = choose_reasoning_style(reasoning_parser, template)
    marks = [*(tools.markers + tools.other_tokens if tools else ())]
    marks += [reasoning.start, reasoning.end] if reasoning else []
    spelled = {mark: tokenizer.encode(mark, add_special_tokens=False) for mark in marks}
    token_ids = {mark: ids[0] for mark, ids in spelled.items() if len(ids) == 1}
    skips = tokenizer.special_token_ids.isdisjoint(token_ids.values())
    hidden = () if skips else tuple(tokenizer.decode_token(token_id) for token_id in tokenizer.eos_token_ids)
    return AnswerFormat(tools, reasoning, template, token_ids, skips, hidden)
