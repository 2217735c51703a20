"""Bodies of /v1/messages, Anthropic's API. Content blocks stay plain objects: `gateway/anthropic/translate.py` reads
them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.schemas.common import PositiveTokenCount, TokenCount, TopP, UserId, WeirNote

Block = dict[str, Any]
MAX_MESSAGES = 10_000
MAX_TOOLS = 128


class TurnIn(msgspec.Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class AnthropicTool(msgspec.Struct, kw_only=True):
    """Only tools of the caller's own: Anthropic's server tools run on their side."""

    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.:-]+$")]
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None


class AnthropicToolChoice(msgspec.Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesMetadata(msgspec.Struct, kw_only=True):
    user_id: UserId | None = None


class Thinking(msgspec.Struct, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: TokenCount | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """The body of POST /v1/messages/count_tokens, and the part of a message's that makes its prompt."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[TurnIn], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[Block] | None = None
    tools: Annotated[list[AnthropicTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    @staticmethod
    def supported_values(path: str) -> str | None:
        """The text of the supported values of the enum at `path`."""
        return _SUPPORTED.get(path)


class MessagesRequest(CountTokensRequest, kw_only=True):
    """The body of POST /v1/messages."""

    max_tokens: PositiveTokenCount
    stream: bool | None = None
    stop_sequences: Annotated[list[Annotated[str, Meta(min_length=1, max_length=1024)]], Meta(max_length=16)] | None = (
        None
    )
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    metadata: MessagesMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


_SUPPORTED = {
    "messages.[].role": "'user', 'assistant', and 'system'",
    "tool_choice.type": "'auto', 'any', 'tool', and 'none'",
    "thinking.type": "'enabled', 'disabled', and 'adaptive'",
    "tools.[].type": "'custom'",
    "service_tier": "'auto' and 'standard_only'",
    "output_config.effort": "'low', 'medium', 'high', 'xhigh', and 'max'",
    "output_config.format.type": "'json_schema'",
}


class MessageUsage(msgspec.Struct, kw_only=True):
    """`input_tokens` are those that were computed; what the prefix cache gave stands beside them."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class AnthropicMessage(msgspec.Struct, kw_only=True):
    """The answer."""

    id: str
    model: str
    content: list[Block]
    stop_reason: str | None
    usage: MessageUsage
    stop_sequence: str | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    weir: WeirNote | UnsetType = UNSET


class MessageTokensCount(msgspec.Struct, kw_only=True):
    input_tokens: int


class AnthropicError(msgspec.Struct, kw_only=True):
    type: str
    message: str


class AnthropicErrorEnvelope(msgspec.Struct, kw_only=True):
    error: AnthropicError
    request_id: str | None = None
    type: Literal["error"] = "error"
