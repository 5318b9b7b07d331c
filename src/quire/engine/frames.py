"""Messages on a socket: one version byte, then msgpack of a known type. Everything else is refused."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from quire.core.wire import WIRE_VERSION
from quire.errors import QuireError

Message = TypeVar("Message")

VERSION_BYTE = bytes([WIRE_VERSION])


class BadFrameError(QuireError):
    """Bytes that are no message of this version; the receiver drops and counts them."""


class Frames(Generic[Message]):
    """Encodes and decodes messages of one type (or union of types)."""

    def __init__(self, kind: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kind)

    def encode(self, message: Message) -> bytes:
        return VERSION_BYTE + self._encoder.encode(message)

    def decode(self, frame: bytes) -> Message:
        """Raises BadFrameError."""
        if frame[:1] != VERSION_BYTE:
            raise BadFrameError(
                f"A frame begins with {frame[:1]!r} and not with {VERSION_BYTE!r}: the sender is no quire of this version."
            )
        try:
            return self._decoder.decode(memoryview(frame)[1:])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrameError(f"A frame is not a message of this version: {error}.") from error
