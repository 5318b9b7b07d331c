"""What a token is, as GGUF has it."""

from __future__ import annotations

import enum


class TokenType(enum.IntEnum):
    """GGUF's tokenizer.ggml.token_type, which is SentencePiece's."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6
