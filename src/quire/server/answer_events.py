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
