"""Types that several endpoints' bodies share. Every optional field is nullable: null means absent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(ge=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=1_000_000)]
MinP = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(ge=0.01, le=2)]  # nearer to 0 a logit divided by it is infinite
Choices = Annotated[int, Meta(ge=1, le=128)]
Seed = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
Stop = StopString | Annotated[list[StopString], Meta(max_length=16)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenCount = Annotated[int, Meta(ge=0, le=INT64_MAX)]
PositiveTokenCount = Annotated[int, Meta(ge=1, le=INT64_MAX)]
LogitBias = dict[str, Annotated[float, Meta(ge=-100, le=100)]]
UserId = Annotated[str, Meta(max_length=256)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Truncation = Literal["auto", "middle", "disabled"]


class StreamOptions(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`include_usage`: one last chunk with the usage; `continuous_usage_stats` (vLLM's): usage so far in each."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema", "regex", "grammar"]
    json_schema: JsonSchema | None = None
    # Extensions: a regular expression or a Lark grammar the answer must match.
    pattern: Annotated[str, Meta(max_length=65536)] | None = None
    grammar: Annotated[str, Meta(max_length=65536)] | None = None


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int = 0
    audio_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct, kw_only=True):
    """Tokens of one request: the prompt once (summed over a list of prompts), the completions summed over choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int = 0) -> Usage:
    """The usage object from its counts."""
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=reasoning_tokens),
    )


class WeirNote(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Our own `weir` field in an answer: what the OpenAI fields have no room for."""

    truncated_reason: str | None = None  # why finish_reason is `length` when no token limit of the request was met
    served_by: str | None = None  # the model or upstream that really answered an alias
    estimated_usage: bool | None = None  # an upstream sent no usage; the counts are ours
    dropped_turns: int | None = None  # truncation: turns left out of the prompt
