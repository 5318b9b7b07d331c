"""What a model's text means: visible words, reasoning, and calls of tools, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call of the function `name`; calls are numbered from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments: all pieces of a complete call make one JSON object."""

    index: int
    text: str


Event = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """JSON of an object; cut short where the model was cut short or wrote no JSON."""


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """A whole answer; empty content or reasoning is None."""

    content: str | None
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]


def merge_events(events: Iterable[Event]) -> list[Event]:
    """The same with neighbouring deltas of one kind joined, and empty ones left out."""
    merged: list[Event] = []
    for _, group in groupby(events, key=_kind):
        first, *rest = group
        if isinstance(first, ToolCallStart):
            merged.append(first)
            continue
        text = "".join([first.text, *(event.text for event in rest if not isinstance(event, ToolCallStart))])
        if text:
            merged.append(replace(first, text=text))
    return merged


def _kind(event: Event) -> tuple[type, int]:
    return type(event), event.index if isinstance(event, ToolCallStart | ToolCallArguments) else 0


def collect_answer(events: Iterable[Event]) -> ParsedAnswer:
    """The whole answer that the events make."""
    content: list[str] = []
    reasoning: list[str] = []
    starts: list[ToolCallStart] = []
    arguments: list[list[str]] = []
    for event in events:
        match event:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case ToolCallStart():
                starts.append(event)
                arguments.append([])
            case ToolCallArguments(index, text):
                arguments[index].append(text)
    calls = [ToolCall(start.id, start.name, "".join(texts)) for start, texts in zip(starts, arguments, strict=True)]
    return ParsedAnswer("".join(content) or None, "".join(reasoning) or None, tuple(calls))
