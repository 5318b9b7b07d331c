"""The formats of tool calls, and which one a model writes."""

from __future__ import annotations

import re

from quire.errors import InvalidRequestError
from quire.server.tools.deepseek import DEEPSEEK, DEEPSEEK_V3_1
from quire.server.tools.hermes import HERMES
from quire.server.tools.llama3_json import LLAMA3_JSON
from quire.server.tools.mistral import MISTRAL, MISTRAL_ARGS
from quire.server.tools.pythonic import PYTHONIC
from quire.server.tools.tool_format import ToolFormat

TOOL_FORMATS = {
    tool_format.name: tool_format
    # The first that the template teaches is taken.
    for tool_format in (DEEPSEEK_V3_1, DEEPSEEK, MISTRAL_ARGS, MISTRAL, HERMES, PYTHONIC, LLAMA3_JSON)
}
FALLBACK_FORMAT = HERMES
"""For models whose template ignores tools: quire describes this format in a system text."""


def choose_tool_format(name: str, chat_template: str | None) -> ToolFormat | None:
    """The format called `name`; "auto": the one that the template teaches; "none": no parser.

    Of the templates that teach none, those that take no tools leave it to `FALLBACK_FORMAT`, the others get no parser.
    Raises InvalidRequestError for an unknown name.
    """
    if name == "none":
        return None
    if name != "auto":
        if name not in TOOL_FORMATS:
            raise InvalidRequestError(
                f"There is no tool call parser {name!r}; choose one of auto, none, {', '.join(TOOL_FORMATS)}.",
                field="tool_call_parser",
                value=name,
            )
        return TOOL_FORMATS[name]
    otherwise = None if takes_tools(chat_template) else FALLBACK_FORMAT
    return next((form for form in TOOL_FORMATS.values() if form.is_taught_by(chat_template or "")), otherwise)


def takes_tools(chat_template: str | None) -> bool:
    """Whether the template does anything with the `tools` it is given."""
    return re.search(r"\btools\b", chat_template or "") is not None
