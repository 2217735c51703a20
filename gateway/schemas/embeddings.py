"""Bodies of /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.schemas.common import Metadata, TokenId, UserId

InputText = Annotated[str, Meta(extra_json_schema={"minLength": 1})]  # said, not checked: the refusal names the input


class EmbeddingRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The body of POST /v1/embeddings."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: InputText | Annotated[list[InputText | TokenId | list[TokenId]], Meta(min_length=1, max_length=2048)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=65536)] | None = None
    user: UserId | None = None
    safety_identifier: UserId | None = None
    metadata: Metadata | None = None

    @staticmethod
    def supported_values(path: str) -> str | None:
        return "'float' and 'base64'" if path == "encoding_format" else None


class EmbeddingUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(msgspec.Struct, kw_only=True):
    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingList(msgspec.Struct, kw_only=True):
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"
