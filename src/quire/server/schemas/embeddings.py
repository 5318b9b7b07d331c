"""Bodies of /v1/embeddings (OpenAI's), /v1/score (vLLM's) and /v1/rerank (Jina's and Cohere's)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Struct, UnsetType
from pydantic import Field

from quire.server.schemas.fields import (
    ONE_OR_MORE_PROMPTS,
    ONE_OR_MORE_TEXTS,
    Name,
    Priority,
    RequestBody,
    TokenId,
    text_or_object,
)

MAX_TEXTS = 2048
"""Texts in one request, as OpenAI has it."""
MAX_TOKEN_IDS = 131_072
"""Ids in one text: more than any encoder takes, and little memory."""
MAX_DIMENSIONS = 65_536

Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKEN_IDS)]
ListsOfTokenIds = Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_TEXTS)]
Input = Annotated[Text | Texts | TokenIds | ListsOfTokenIds, ONE_OR_MORE_PROMPTS]
OneOrMoreTexts = Annotated[Text | Texts, ONE_OR_MORE_TEXTS]


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


Document = Annotated[Text | TextDocument, text_or_object("a text or an object with a text")]


class RerankRequest(TextsRequest):
    query: Text
    documents: Annotated[list[Document], Field(min_length=1, max_length=MAX_TEXTS)]
    top_n: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        None, description="How many results; all if 0 or null."
    )
    return_documents: bool | None = Field(None, description="With the documents' texts; true if null.")


class TextsUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingData(Struct):
    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class ScoreData(Struct):
    index: int
    score: float
    object: Literal["score"] = "score"


class ListAnswer(Struct):
    id: str
    created: int
    model: str
    usage: TextsUsage
    object: Literal["list"] = "list"


class EmbeddingsAnswer(ListAnswer, kw_only=True):
    data: list[EmbeddingData]


class ScoreAnswer(ListAnswer, kw_only=True):
    data: list[ScoreData]


class DocumentText(Struct):
    text: str


class RerankResult(Struct):
    """`index` is the document's, as it was sent."""

    index: int
    relevance_score: float
    document: DocumentText | UnsetType = UNSET


class RerankAnswer(Struct):
    """Best first."""

    id: str
    model: str
    results: list[RerankResult]
    usage: TextsUsage
