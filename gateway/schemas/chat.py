"""Bodies of /v1/chat/completions: OpenAI's fields, and vLLM's extras that clients send through `extra_body`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.schemas.common import (
    Choices,
    LogitBias,
    Metadata,
    MinP,
    Penalty,
    PositiveTokenCount,
    ReasoningEffort,
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
    Truncation,
    Usage,
    UserId,
    WeirNote,
)

MAX_TOOLS = 128


class ContentPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One part of a message's content. Only `text` and `refusal` parts can be answered by a text model."""

    type: Annotated[str, Meta(extra_json_schema={"enum": ["text", "refusal"]})]  # others are refused by name
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    function: FunctionCall
    id: str | None = None
    type: Literal["function"] | None = None


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class FunctionDefinition(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.:-]+$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str


class AllowedTool(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(msgspec.Struct, kw_only=True, omit_defaults=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class ToolChoice(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`{"type":"function","function":{"name":..}}` or `{"type":"allowed_tools","allowed_tools":{..}}`."""

    type: Literal["function", "allowed_tools"]
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


class ChatRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The body of POST /v1/chat/completions."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[Message], Meta(min_length=1, max_length=10_000)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    n: Choices | None = None
    stop: Stop | None = None
    max_tokens: PositiveTokenCount | None = None
    max_completion_tokens: PositiveTokenCount | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    seed: Seed | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    user: UserId | None = None
    safety_identifier: UserId | None = None
    prompt_cache_key: UserId | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    service_tier: ServiceTier | None = None
    reasoning_effort: ReasoningEffort | None = None
    # vLLM's and our own extras
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    min_tokens: TokenCount | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: Annotated[str, Meta(max_length=65536)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    truncation: Truncation | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None

    @staticmethod
    def supported_values(path: str) -> str | None:
        """The text of the supported values of the enum at `path` (`messages.[].role`)."""
        return _SUPPORTED.get(path)


_SUPPORTED = {
    "messages.[].role": "'system', 'assistant', 'user', 'function', 'tool', and 'developer'",
    "tool_choice": "'none', 'auto', and 'required'",
    "tool_choice.type": "'function' and 'allowed_tools'",
    "service_tier": "'auto', 'default', 'flex', 'scale', 'priority', and 'fast'",
    "response_format.type": "'text', 'json_object', 'json_schema', 'regex', and 'grammar'",
    "reasoning_effort": "'none', 'minimal', 'low', 'medium', 'high', 'xhigh', and 'max'",
    "truncation": "'auto', 'middle', and 'disabled'",
    "tools.[].type": "'function'",
    "messages.[].tool_calls.[].type": "'function'",
}


class TopLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobOut(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct, kw_only=True):
    content: list[TokenLogprobOut]
    refusal: None = None


class FunctionCallOut(msgspec.Struct, kw_only=True):
    name: str
    arguments: str


class ToolCallOut(msgspec.Struct, kw_only=True):
    id: str
    function: FunctionCallOut
    type: Literal["function"] = "function"


class MessageOut(msgspec.Struct, kw_only=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    annotations: list[Any] = []
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallOut] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: MessageOut
    finish_reason: str
    logprobs: ChoiceLogprobs | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answer of a plain chat call."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    system_fingerprint: str | None = None
    service_tier: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    weir: WeirNote | UnsetType = UNSET


class FunctionCallDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str | None = None
    arguments: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, kw_only=True):
    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionCallDelta | UnsetType = UNSET


class ChatDelta(msgspec.Struct, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One `data:` frame of a streamed chat."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    system_fingerprint: str | None = None
    service_tier: str | UnsetType = UNSET
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    weir: WeirNote | UnsetType = UNSET
