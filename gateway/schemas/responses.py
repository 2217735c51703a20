"""Bodies of /v1/responses. Items stay plain objects: `gateway/responses/items.py` reads them, answers repeat them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.errors import InvalidRequest, clip
from gateway.schemas.common import (
    Metadata,
    MinP,
    Penalty,
    PositiveTokenCount,
    ReasoningEffort,
    RepetitionPenalty,
    Seed,
    ServiceTier,
    Stop,
    Temperature,
    TokenCount,
    TopK,
    TopP,
    Truncation,
    UserId,
    WeirNote,
)

MAX_ITEMS = 10_000
MAX_TOOLS = 128

Item = dict[str, Any]
ResponseId = Annotated[str, Meta(min_length=1, max_length=128)]


def _object(kind: str, required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"type": {"const": kind}, **properties}, "required": list(required)}


_TEXT = {"type": "string"}
_PARTS = {"type": "array", "items": _object("input_text", ("type", "text"), text=_TEXT)}
_CONTENT = {"anyOf": [_TEXT, _PARTS]}
# For the OpenAPI document: `gateway/responses/items.py` reads an item and says what is wrong with it.
InputItem = Annotated[
    Item,
    Meta(
        extra_json_schema={
            "anyOf": [
                _object(
                    "message",
                    ("role", "content"),
                    role={"enum": ["user", "assistant", "system", "developer"]},
                    content=_CONTENT,
                ),
                _object(
                    "function_call",
                    ("type", "call_id", "name", "arguments"),
                    call_id=_TEXT,
                    name=_TEXT,
                    arguments=_TEXT,
                ),
                _object("function_call_output", ("type", "call_id", "output"), call_id=_TEXT, output=_TEXT),
            ]
        }
    ),
]


class FunctionTool(msgspec.Struct, kw_only=True):
    """Only functions: the built-in tools run on OpenAI's side."""

    type: Literal["function"]
    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.:-]+$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(msgspec.Struct, kw_only=True):
    type: Literal["function"]
    name: str


class ResponsesToolChoice(msgspec.Struct, kw_only=True):
    """`{"type":"function","name":..}` or `{"type":"allowed_tools","mode":..,"tools":[..]}`."""

    type: Literal["function", "allowed_tools"]
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)] | None = None


class TextFormat(msgspec.Struct, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, kw_only=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(msgspec.Struct, kw_only=True):
    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesStreamOptions(msgspec.Struct, kw_only=True):
    include_obfuscation: bool | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """The body of POST /v1/responses."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: str | Annotated[list[InputItem], Meta(max_length=MAX_ITEMS)] | None = None
    instructions: str | None = None
    previous_response_id: ResponseId | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    background: bool | None = None
    store: bool | None = None
    include: Annotated[list[str], Meta(max_length=32)] | None = None
    max_output_tokens: PositiveTokenCount | None = None
    max_tool_calls: TokenCount | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    text: TextConfig | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Truncation | None = None
    metadata: Metadata | None = None
    user: UserId | None = None
    safety_identifier: UserId | None = None
    prompt_cache_key: UserId | None = None
    service_tier: ServiceTier | None = None
    # vLLM's and our own extras
    seed: Seed | None = None
    stop: Stop | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None

    @staticmethod
    def supported_values(path: str) -> str | None:
        """The text of the supported values of the enum at `path`."""
        return _SUPPORTED.get(path)

    @staticmethod
    def unknown_field_error(field: str) -> InvalidRequest:
        """OpenAI's words here differ from the chat endpoint's."""
        return InvalidRequest(f"Unknown parameter: '{clip(field)}'.", param=clip(field), code="unknown_parameter")


_SUPPORTED = {
    "tools.[].type": "'function'",
    "tool_choice": "'none', 'auto', and 'required'",
    "tool_choice.type": "'function' and 'allowed_tools'",
    "text.format.type": "'text', 'json_object', and 'json_schema'",
    "text.verbosity": "'low', 'medium', and 'high'",
    "reasoning.effort": "'none', 'minimal', 'low', 'medium', 'high', 'xhigh', and 'max'",
    "reasoning.summary": "'auto', 'concise', and 'detailed'",
    "service_tier": "'auto', 'default', 'flex', 'scale', 'priority', and 'fast'",
    "truncation": "'auto', 'middle', and 'disabled'",
}


class InputTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct, kw_only=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, kw_only=True):
    reason: str


class Response(msgspec.Struct, kw_only=True):
    """The response object: what was asked for, repeated, and what came of it."""

    id: str
    created_at: int
    model: str
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    output: list[Item]
    object: Literal["response"] = "response"
    background: bool = False
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any] = {}
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = True
    temperature: float = 1.0
    text: dict[str, Any] = {}
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int = 0
    top_p: float = 1.0
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    weir: WeirNote | UnsetType = UNSET


class DeletedResponse(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ItemList(msgspec.Struct, kw_only=True):
    """One page of a response's input items."""

    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class InputTokens(msgspec.Struct, kw_only=True):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"
