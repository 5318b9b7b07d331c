"""What may be called text: Python's strings hold more than UTF-8 has bytes for."""

from __future__ import annotations

from quire.errors import InvalidRequestError


def check_unicode(text: str) -> None:
    """Raises InvalidRequestError for half of a surrogate pair; bytes that were no UTF-8 may come as such."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"The text has half of a surrogate pair at character {error.start}, which no tokenizer can encode;"
            " decode the text properly first.",
            field="prompt",
        ) from error
