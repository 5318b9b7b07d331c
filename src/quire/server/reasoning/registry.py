"""The ways models mark their reasoning, and which one a model has."""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class ReasoningStyle:
    """Reasoning stands between `start` and `end`, before the answer."""

    name: str
    start: str
    end: str


REASONING_STYLES = {
    style.name: style
    for style in (
        ReasoningStyle("think", "<think>", "</think>"),  # DeepSeek R1, Qwen 3, QwQ, SmolLM3, GLM 4.5
        ReasoningStyle("command_a", "<|START_THINKING|>", "<|END_THINKING|>"),
        ReasoningStyle("magistral", "[THINK]", "[/THINK]"),
        ReasoningStyle("seed", "<seed:think>", "</seed:think>"),
    )
}


def choose_reasoning_style(name: str, chat_template: str | None) -> ReasoningStyle | None:
    """The style called `name`; "auto": the one whose end the template knows; "none": no parser.

    Raises InvalidRequestError for an unknown name.
    """
    if name == "none":
        return None
    if name == "auto":
        return next((style for style in REASONING_STYLES.values() if style.end in (chat_template or "")), None)
    if name not in REASONING_STYLES:
        raise InvalidRequestError(
            f"There is no reasoning parser {name!r}; choose one of auto, none, {', '.join(REASONING_STYLES)}.",
            field="reasoning_parser",
            value=name,
        )
    return REASONING_STYLES[name]


def prompt_opens_reasoning(style: ReasoningStyle, prompt: str, continued: str = "") -> bool:
    """Whether the model's text begins within the reasoning: the prompt ends with the opening mark, or the message that the answer
    continues has not closed it."""
    return prompt.rstrip().endswith(style.start) or continued.rfind(style.start) > continued.rfind(style.end)
