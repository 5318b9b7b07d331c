"""The sampling fields of completions and chat completions, and the SamplingParams they make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from pydantic import Field

from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError
from quire.server.schemas.fields import (
    MAX_TOKENS,
    CacheSalt,
    Name,
    OfType,
    Priority,
    RequestBody,
    RequestId,
    TextOrObject,
    TokenId,
    TruncatePromptTokens,
    at_most,
    text_or_list,
)

MAX_N = 128
"""Samples of one prompt, as OpenAI has it."""
MAX_CHOICES = 512
"""Samples of all prompts of one request."""
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_LISTED_TOKENS = 1024
MAX_ALLOWED_TOKENS = 2**20
MAX_BAD_WORD_LENGTH = 128
"""The engine gets two spellings of each in tokens, one or more of which stand for a character."""
MAX_LOGPROBS = 20

NOT_SUPPORTED = "Not supported: "


def unsupported(remedy: str) -> Any:
    """A field that is refused (see `GenerationFields.check`) unless it is null, false or empty."""
    return Field(None, description=f"{NOT_SUPPORTED}{remedy}.")


Penalty = Annotated[float, Field(ge=-2, le=2)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
StopStrings = Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_LENGTH)]
Logprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]


Structure = tuple[StructuredOutputs, str]
"""The shape that an answer must have, and the request's field that says so."""


class NamedSchema(RequestBody):
    """A schema with a name. `strict` or not, the answer follows it, or the request is refused."""

    name: Name
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class TextFormat(RequestBody):
    type: Literal["text"]


class JSONObjectFormat(RequestBody):
    type: Literal["json_object"]


class JSONSchemaFormat(RequestBody):
    type: Literal["json_schema"]
    json_schema: NamedSchema


class StructuralTagFormat(RequestBody):
    """Free text in which each trigger starts one of the structures: begin, a text that fits the schema, end."""

    type: Literal["structural_tag"]
    structures: list[dict[str, Any]]
    triggers: list[str]


ResponseFormat = Annotated[TextFormat | JSONObjectFormat | JSONSchemaFormat | StructuralTagFormat, OfType()]


class StructuredOutputFields(RequestBody):
    """vLLM's `structured_outputs`: exactly one of them."""

    json_: TextOrObject | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: TextOrObject | None = None


class StreamOptions(RequestBody):
    include_usage: bool | None = Field(None, description="One more event at the end, with the token counts.")
    continuous_usage_stats: bool | None = Field(None, description="The counts so far in every event.")


class GenerationFields(RequestBody):
    """What all routes that generate text have in common. Defaults are SamplingParams' where null."""

    model: Name | None = Field(None, description="May be left out: the server has one.")
    user: Name | None = Field(None, description="Tells the users of one API key apart when work is shared fairly.")
    stream: bool | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS, description="0 or -1: off.")] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_LISTED_TOKENS)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_LISTED_TOKENS), at_most(MAX_LISTED_TOKENS)] | None = (
        Field(None, description="Token ids (as digits) and what is added to their logits, -100 to 100.")
    )
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED_TOKENS)] | None = None
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_LISTED_TOKENS)] | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    request_id: RequestId | None = None

    @property
    def answer_headers(self) -> dict[str, str]:
        return {} if self.request_id is None else {"X-Request-Id": self.request_id}

    @property
    def tenant_user(self) -> str | None:
        """Whom fairness counts."""
        return self.user

    def check(self) -> None:
        """Raises InvalidRequestError for what is not supported, and for fields that do not go together."""
        for name, field in type(self).model_fields.items():
            description = field.description or ""
            if description.startswith(NOT_SUPPORTED) and getattr(self, name):
                remedy = description.removeprefix(NOT_SUPPORTED)
                raise InvalidRequestError(f"{name} is not supported: {remedy}", field=name)


class SamplingFields(GenerationFields):
    """What completions and chat completions have beyond that."""

    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    stop: Annotated[StopString | StopStrings, text_or_list("a text or a list of texts")] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = Field(
        None, description="Has no effect: text is as the tokens have it."
    )
    prompt_logprobs: Logprobs | None = Field(None, description="Not together with stream.")
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputFields | None = None
    guided_json: TextOrObject | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    return_token_ids: bool | None = Field(None, description="Add the ids of prompt and output tokens.")
    truncate_prompt_tokens: TruncatePromptTokens | None = None
    echo: bool | None = None
    best_of: int | None = Field(None, description="Not supported, unless it is n.")
    use_beam_search: bool | None = unsupported("beam search is for LLM.beam_search; leave it out")

    @property
    def num_samples(self) -> int:
        return 1 if self.n is None else self.n

    def check(self) -> None:
        super().check()
        if self.best_of not in (None, self.num_samples):
            raise InvalidRequestError(
                "best_of is not supported: candidates are not ranked here; use n.", field="best_of"
            )
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError(
                "stream_options is set, but stream is not; set stream to true or leave stream_options out.",
                field="stream_options",
            )
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequestError(
                "prompt_logprobs come with a whole answer only; set stream to false.", field="prompt_logprobs"
            )

    def wanted_structure(self) -> Structure | None:
        """What the request asks for. Raises InvalidRequestError if several fields do."""
        wanted: list[tuple[str, dict[str, Any]]] = []
        match self.response_format:
            case JSONObjectFormat():
                wanted.append(("response_format", {"json_object": True}))
            case JSONSchemaFormat(json_schema=form):
                wanted.append(("response_format.json_schema.schema", {"json": form.schema_}))
            case StructuralTagFormat(structures=structures, triggers=triggers):
                tag = {"structures": structures, "triggers": triggers}
                wanted.append(("response_format", {"structural_tag": tag}))
        if self.structured_outputs is not None:
            fields = self.structured_outputs.model_dump(by_alias=True, exclude_none=True)
            wanted.append(("structured_outputs", fields))
        for kind in ("json", "regex", "choice", "grammar"):
            value = getattr(self, f"guided_{kind}")
            if value is not None:
                wanted.append((f"guided_{kind}", {kind: value}))
        if len(wanted) > 1:
            names = " and ".join(field for field, _ in wanted)
            raise InvalidRequestError(
                f"{names} are set, but an answer has one shape only; keep one of them.", field=wanted[1][0]
            )
        return structure(wanted[0][0], **wanted[0][1]) if wanted else None


def structure(field: str, **fields: Any) -> Structure:
    """What `field` asks for in the terms of StructuredOutputs. Raises InvalidRequestError."""
    with structure_named(field):
        return StructuredOutputs(**fields), field


SHARED_FIELDS = tuple(
    sorted(set(SamplingFields.model_fields) & set(SamplingParams.__struct_fields__) - {"structured_outputs"})
)


def sampling_values(body: GenerationFields) -> dict[str, Any]:
    """What the body sets of the fields that SamplingParams has under the same name."""
    given = {name: getattr(body, name) for name in SHARED_FIELDS if name in body.model_fields_set}
    return {name: value for name, value in given.items() if value is not None}


@contextmanager
def structure_named(field: str | None) -> Iterator[None]:
    """Refusals of a structure speak of the request's own field."""
    try:
        yield
    except InvalidRequestError as error:
        inner = error.field or ""
        if field in (None, "structured_outputs") or not inner.startswith("structured_outputs"):
            raise
        raise InvalidRequestError(str(error).replace(inner, str(field), 1), field=field, value=error.value) from error
