"""Bodies of /v1/embeddings (OpenAI's), /v1/score (vLLM's) and /v1/rerank (Jina's and Cohere's)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from quire.server.schemas.fields import Name, Priority, RequestBody, TokenId, member, one_of, text_or_object

MAX_TEXTS = 2048
"""Texts in one request, as OpenAI has it."""
MAX_TOKEN_IDS = 131_072
"""Ids in one text: more than any encoder takes, and little memory."""
MAX_DIMENSIONS = 65_536

Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKEN_IDS)]
ListsOfTokenIds = Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_TEXTS)]


def _form(value: Any) -> str | None:
    """Which form of input it is, so that an error is about that form and not about all."""
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list) or not value:
        return None
    return {str: "texts", int: "token_ids", list: "lists"}.get(type(value[0]))


Input = Annotated[
    Annotated[Text, member("text")]
    | Annotated[Texts, member("texts")]
    | Annotated[TokenIds, member("token_ids")]
    | Annotated[ListsOfTokenIds, member("lists")],
    one_of("a text, a list of texts, a list of token ids, or a list of such lists, and no empty list", _form),
]
OneOrMoreTexts = Annotated[
    Annotated[Text, member("text")] | Annotated[Texts, member("texts")],
    one_of("a text or a list of texts, and no empty list", _form),
]


class TextsRequest(RequestBody):
    """What all requests about texts have in common."""

    model: Name | None = None
    user: Name | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_TOKEN_IDS)] | None = Field(
        None,
        description="Keep only so many of a longer text's first tokens, -1 what the model takes; otherwise long texts"
        " are refused.",
    )
    priority: Priority | None = None


class EmbeddingsRequest(TextsRequest):
    input: Input = Field(
        description="A text, or a list of them, as text or as token ids (then with the model's special tokens)."
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="float if null; base64 is of little-endian float32, a third of the size."
    )
    dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = Field(
        None,
        description="Keep only the first dimensions, normalized again. Only models trained for it (Matryoshka) stand"
        " that well; others lose accuracy.",
    )
    normalize: bool | None = Field(None, description="Vectors of length 1; by default as the model was trained.")


class ScoreRequest(TextsRequest):
    """One text_1 against one or more text_2, or as many against as many."""

    text_1: OneOrMoreTexts
    text_2: OneOrMoreTexts


class TextDocument(RequestBody):
    text: Text


Document = Annotated[
    Annotated[Text, member("text")] | Annotated[TextDocument, member("object")],
    one_of("a text or an object with a text", text_or_object),
]


class RerankRequest(TextsRequest):
    query: Text
    documents: Annotated[list[Document], Field(min_length=1, max_length=MAX_TEXTS)]
    top_n: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        None, description="How many results; all if 0 or null."
    )
    return_documents: bool | None = Field(None, description="With the documents' texts; true if null.")


class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingData(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingsResponse(BaseModel):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[EmbeddingData]
    usage: Usage


class ScoreData(BaseModel):
    object: Literal["score"] = "score"
    index: int
    score: float


class ScoreResponse(BaseModel):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ScoreData]
    usage: Usage


class RerankResult(BaseModel):
    index: int = Field(description="Of the document, as it was sent.")
    document: TextDocument | None = None
    relevance_score: float


class RerankResponse(BaseModel):
    id: str
    model: str
    results: list[RerankResult] = Field(description="Best first.")
    usage: Usage
