"""Types of request fields that several routes share. Strict: a bool is no number, and digits in quotes are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MAX_NAME_LENGTH = 512
MAX_TOKEN_ID = 2**31 - 1
MAX_TOKENS = 2**63 - 1
MAX_REQUEST_ID_LENGTH = 128
PRINTABLE_ASCII = "^[ -~]*$"


INTERNAL_FIELDS = frozenset(
    [
        "kv_transfer_params",
        "ec_transfer_params",
        "kv_connector",
        "do_remote_prefill",
        "do_remote_decode",
        "remote_host",
        "remote_port",
        "remote_engine_id",
        "remote_block_ids",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
    ]
)
"""vLLM's and SGLang's words for where a prompt's KV cache is fetched from (CVE-2026-94622 and its like)."""


def _fail_fast(schema: Any) -> None:
    """Of all lists in it."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for key, part in schema.items():
            if key != "metadata":
                _fail_fast(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _fail_fast(part)


def at_most(count: int) -> BeforeValidator:
    """Of a dict: pydantic looks at all items before it counts them, and makes an error object for each."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise PydanticCustomError(
                "too_long",
                "it has {given} entries, and may have at most {count}",
                {"given": len(value), "count": count},
            )
        return value

    return BeforeValidator(check)


class RequestBody(BaseModel):
    """Fields that quire does not know are ignored, as vLLM ignores them; a null is as good as leaving a field out."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Every list's first bad item is its last that is looked at: an error object for each of a million takes gigabytes."""
        schema = handler(source)
        _fail_fast(schema)
        return schema

    @model_validator(mode="before")
    @classmethod
    def _refuse_internal_fields(cls, value: Any) -> Any:
        """To ignore these would hide from whoever sends them that nothing is transferred."""
        if not isinstance(value, dict) or INTERNAL_FIELDS.isdisjoint(value):
            return value
        name = next((name for name in sorted(INTERNAL_FIELDS) if value.get(name) is not None), None)
        if name is None:
            return value
        error = PydanticCustomError("internal_field", "clients may not say where KV caches are; leave it out")
        raise ValidationError.from_exception_data(cls.__name__, [{"type": error, "loc": (name,), "input": value[name]}])


HIDDEN_TAG = "="
"""What begins the names of a union's members in an error's location; messages leave those names out."""


@dataclass(frozen=True)
class OneOf:
    """Of a union: `name_of` names the member a value belongs to, so that there is one message, not one a member."""

    rule: str
    name_of: Callable[[Any], str | None]
    names: tuple[str, ...]
    """Of the members, in their order."""

    def __get_pydantic_core_schema__(self, union: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        members = dict(zip(self.names, get_args(union), strict=True))
        return _tagged_union(members, self.name_of, self.rule, handler)


def text_or_list(rule: str) -> OneOf:
    return OneOf(rule, _kind_of, ("text", "list"))


def text_or_object(rule: str) -> OneOf:
    return OneOf(rule, _kind_of, ("text", "object"))


def _kind_of(value: object) -> str | None:
    kinds: dict[type, str] = {str: "text", list: "list", dict: "object"}
    return kinds.get(type(value))


def _form_of_prompt(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list) or not value:
        return None
    return {str: "texts", int: "ids", list: "lists"}.get(type(value[0]))


def as_prompts(value: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """One or more; a list of ids is one."""
    is_one = isinstance(value, str) or isinstance(value[0], int)
    return [value] if is_one else list(value)  # type: ignore[list-item, arg-type]


ONE_OR_MORE_TEXTS = OneOf("a text or a list of texts, and no empty list", _form_of_prompt, ("text", "texts"))
ONE_OR_MORE_PROMPTS = OneOf(
    "a text, a list of texts, a list of token ids, or a list of such lists, and no empty list",
    _form_of_prompt,
    ("text", "texts", "ids", "lists"),
)


@dataclass(frozen=True)
class OfType:
    """Of a union of objects that say in `type` which they are."""

    default: str | None = None
    """The type of one that does not say."""
    rule: str | None = None

    def __get_pydantic_core_schema__(self, union: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        members = {
            name: member for member in get_args(union) for name in _literals(member.model_fields["type"].annotation)
        }
        *others, last = members
        rule = self.rule or f"an object of the type {', '.join(others)} or {last}"
        return _tagged_union(members, self._type_of, rule, handler)

    def _type_of(self, value: Any) -> str | None:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return self.default if kind is None else str(kind)


def _tagged_union(
    members: Mapping[str, Any], name_of: Callable[[Any], str | None], rule: str, handler: GetCoreSchemaHandler
) -> CoreSchema:
    def tag_of(value: Any) -> str | None:
        name = name_of(value)
        return None if name is None else HIDDEN_TAG + name

    return core_schema.tagged_union_schema(
        {HIDDEN_TAG + name: handler.generate_schema(member) for name, member in members.items()},
        tag_of,
        custom_error_type="wrong_kind",
        custom_error_message=f"it must be {rule}",
    )


def _literals(annotation: Any) -> Iterator[str]:
    for part in get_args(annotation):
        if isinstance(part, str):
            yield part
        else:
            yield from _literals(part)


Name = Annotated[str, Field(max_length=MAX_NAME_LENGTH)]
Id = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)]
TextOrObject = Annotated[str | dict[str, Any], text_or_object("a text or an object")]
NumTokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
Priority = Annotated[
    int,
    Field(
        ge=-(2**31), le=2**31 - 1, description="A smaller number runs first, where the scheduling policy is `priority`."
    ),
]
CacheSalt = Annotated[
    str,
    Field(min_length=1, max_length=MAX_NAME_LENGTH, description="Only requests of the same salt share cached prompts."),
]
RequestId = Annotated[
    str,
    Field(
        max_length=MAX_REQUEST_ID_LENGTH,
        pattern=PRINTABLE_ASCII,
        description="For logs, and answered as X-Request-Id; need not be unique.",
    ),
]
TruncatePromptTokens = Annotated[
    int,
    Field(
        ge=-1,
        le=MAX_TOKENS,
        description="Keep only so many of the prompt's last tokens; -1 as many as fit. Otherwise long ones are refused.",
    ),
]
ReasoningEffort = Annotated[
    Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"],
    Field(description="Reaches the model if its chat template reads reasoning_effort or enable_thinking."),
]


def template_kwargs(effort: str | None, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a chat template may read of an effort, and the request's own chat_template_kwargs, which win."""
    of_effort = {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    return {**of_effort, **(given or {})}
