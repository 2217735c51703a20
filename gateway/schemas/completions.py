"""Bodies of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.schemas.common import (
    Choices,
    LogitBias,
    Metadata,
    MinP,
    Penalty,
    RepetitionPenalty,
    ResponseFormat,
    Seed,
    ServiceTier,
    Stop,
    StreamOptions,
    Temperature,
    TokenCount,
    TokenId,
    TopK,
    TopP,
    Usage,
    UserId,
    WeirNote,
)

MAX_PROMPTS = 128


class CompletionRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The body of POST /v1/completions. `prompt`: a text, a list of texts, token ids, or a list of lists of them."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    prompt: str | list[str | TokenId | list[TokenId]]
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    n: Choices | None = None
    stop: Stop | None = None
    max_tokens: TokenCount | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    seed: Seed | None = None
    user: UserId | None = None
    safety_identifier: UserId | None = None
    prompt_cache_key: UserId | None = None
    metadata: Metadata | None = None
    service_tier: ServiceTier | None = None
    response_format: ResponseFormat | None = None
    # vLLM's extras
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    min_tokens: TokenCount | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    truncation: Literal["auto", "middle", "disabled"] | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Parallel lists over the tokens; the first echoed token has no probability: null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    finish_reason: str | None
    logprobs: CompletionLogprobs | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """A plain answer, and (with `usage` unset or null) one `data:` frame of a stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET
    weir: WeirNote | UnsetType = UNSET
