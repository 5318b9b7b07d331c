"""Server-sent events of a streamed completion: cut from the bytes, read as far as a client needs them."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.client.address import NOT_JSON, RemoteError

MAX_EVENT_BYTES = 4 << 20


class ChunkDelta(msgspec.Struct):
    """What a chat chunk adds. `reasoning_content` is the other name servers use for `reasoning`."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class ChunkChoice(msgspec.Struct):
    text: str | None = None
    delta: ChunkDelta | None = None
    finish_reason: str | None = None

    def adds_output(self) -> bool:
        """Whether the model said something: a role or a finish reason alone is no token."""
        delta = self.delta
        return bool(
            self.text or (delta and (delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls))
        )

    @property
    def shown_text(self) -> str:
        """Text of either endpoint."""
        return self.text or (self.delta.content if self.delta else None) or ""


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chunk(msgspec.Struct):
    """One event of /v1/completions or /v1/chat/completions."""

    choices: list[ChunkChoice] = []
    usage: Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(Chunk)


class EventCutter:
    """Cuts a stream of bytes into chunks. `done` is set by the final `[DONE]`."""

    def __init__(self) -> None:
        self._rest = b""
        self.done = False

    def feed(self, data: bytes) -> list[Chunk]:
        """The events that these bytes complete. Raises RemoteError for bytes that are no such events."""
        data = self._rest + data
        if b"\r\n" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = data.split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise RemoteError(f"The server sent an event of more than {MAX_EVENT_BYTES} bytes.")
        return [chunk for event in events if (chunk := self._read(event)) is not None]

    def _read(self, event: bytes) -> Chunk | None:
        if event.startswith(b"data: ") and b"\n" not in event:
            payload = event[6:]
        else:
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            payload = b"\n".join(lines)
        if payload == b"[DONE]":
            self.done = True
            return None
        if not payload:  # a comment that keeps the connection alive
            return None
        try:
            return _DECODER.decode(payload)
        except NOT_JSON as error:
            raise RemoteError(f"The server sent an event that is no completion chunk: {error}.") from error
