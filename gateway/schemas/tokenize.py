"""Bodies of /tokenize and /detokenize, in vLLM's shape."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.schemas.common import TokenId


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """vLLM's /tokenize: `prompt`, or `messages` rendered by the chat template."""

    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeResponse(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    tokens: Annotated[list[TokenId], Meta(max_length=1_000_000)]
    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    prompt: str
