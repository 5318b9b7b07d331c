"""Every error quire raises on purpose. The message is one sentence: what was asked, what the limit is, what to change."""

from __future__ import annotations


class QuireError(Exception):
    """Root of quire's own errors; anything else that escapes is a bug."""


class InvalidRequestError(QuireError, ValueError):
    """The caller's input breaks a rule (a server answers 400).

    `field` names the offending parameter, `value` is what was given.
    """

    def __init__(self, message: str, *, field: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.field = field
        self.value = value


class PromptTooLongError(InvalidRequestError):
    """It has more tokens than the model's context. Clients that shorten a conversation then look for this one."""


class ModelNotFoundError(QuireError):
    """The model reference names nothing that can be loaded or fetched."""


class DownloadError(QuireError):
    """A package or file could not be fetched or failed its checksum."""


class CheckpointError(QuireError):
    """A weight, config or tokenizer file is damaged or contradicts itself; names the file and the tensor or key."""


class UnsupportedModelError(QuireError):
    """The architecture or a config field is one quire does not implement; names the field, its value and what is supported."""


class OutOfMemoryError(QuireError):
    """The weights and KV cache do not fit; carries the planner's remedy."""


class ChatTemplateError(QuireError, ValueError):
    """The model's chat template raised, looped, or reached outside its sandbox."""


class EngineDeadError(QuireError):
    """The engine stopped; pending and later requests fail with this."""


class RequestTimeoutError(QuireError):
    """A request was not started or not finished within the server's limits (a server answers 503)."""


class GenerationFailedError(QuireError):
    """The computation of this request failed, such as on logits that are no numbers (a server answers 500)."""


def in_words(error: BaseException) -> str:
    """What it says, or its kind: a time-out often says nothing. Of the system's without number and file, which the sentence around has."""
    said = error.strerror if isinstance(error, OSError) else None
    return said or str(error) or type(error).__name__
