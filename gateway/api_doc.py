"""`python -m gateway.api_doc` prints docs/api.md: every endpoint and field, from the schemas; a test holds it.

How a field is treated is said here beside its name only where it is more than "honoured": the rest comes from the
structs themselves (type, bounds, whether it must be there).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from gateway.schemas.batches import BatchRequest
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.embeddings import EmbeddingRequest
from gateway.schemas.messages import MessagesRequest
from gateway.schemas.responses import ResponsesRequest
from gateway.schemas.tokenize import DetokenizeRequest, TokenizeRequest

BODIES: dict[str, type[msgspec.Struct]] = {
    "POST /v1/chat/completions": ChatRequest,
    "POST /v1/completions": CompletionRequest,
    "POST /v1/embeddings": EmbeddingRequest,
    "POST /v1/responses": ResponsesRequest,
    "POST /v1/messages": MessagesRequest,
    "POST /v1/batches": BatchRequest,
    "POST /tokenize, /v1/tokenize": TokenizeRequest,
    "POST /detokenize, /v1/detokenize": DetokenizeRequest,
}

# Fields whose treatment needs a word. What is not here is honoured as its type says.
NOTES: dict[str, str] = {
    "max_tokens": "honoured, clamped to what the context leaves",
    "max_completion_tokens": "honoured before max_tokens, clamped to what the context leaves",
    "max_output_tokens": "honoured, clamped to what the context leaves",
    "best_of": "honoured; every candidate is generated and billed; not with stream",
    "suffix": "honoured where the model has infilling tokens, else refused (400)",
    "service_tier": "honoured: the engine's priority class and the price's tier, at most what the key may have",
    "priority": "honoured: smaller is more urgent, at most what the key may have",
    "prompt_cache_key": "accepted as a hint; isolation and prefix caching do not depend on it",
    "user": "honoured: attribution of usage, never who pays",
    "safety_identifier": "honoured before user: attribution of usage, never who pays",
    "metadata": "honoured: `conversation_id` in it attributes the request to a conversation",
    "chat_template": "refused (400) unless the server was started with allow_request_chat_template",
    "chat_template_kwargs": "honoured; a chat_template in it is refused (400)",
    "truncation": "honoured: auto drops the oldest turns whole, middle keeps head and tail",
    "seed": "honoured: any int64; neighbours never change the draws, nor the answer in float32 or with --deterministic",
    "logit_bias": "honoured; ids out of the model's logits are refused (400)",
    "stop_token_ids": "honoured; ids out of the model's logits are refused (400)",
    "reasoning_effort": "honoured by templates that read it",
    "store": "accepted; answers of this endpoint are not kept",
}
OF_ENDPOINT: dict[tuple[type[msgspec.Struct], str], str] = {
    (CompletionRequest, "max_tokens"): "honoured, 16 where absent; 0 only with echo",
    (
        CompletionRequest,
        "echo",
    ): "honoured; with logprobs the prompt leaves one token of the context free, for the token "
    "that scoring it makes; with logprobs refused (400) on upstreams",
    (EmbeddingRequest, "input"): "honoured for texts; token ids are refused (400)",
    (EmbeddingRequest, "dimensions"): "honoured: cut off and brought to length 1; above the model's own refused (400)",
    (EmbeddingRequest, "metadata"): "honoured: `conversation_id` in it attributes the request to a conversation",
    (ResponsesRequest, "store"): "honoured",
}
# OpenAI's fields that no struct has: ignored with a warning, refused with strict_fields.
IGNORED: dict[type[msgspec.Struct], tuple[str, ...]] = {
    ChatRequest: (
        "audio", "function_call", "functions", "modalities", "moderation", "prediction", "prompt_cache_options",
        "prompt_cache_retention", "verbosity", "web_search_options",
    ),
}  # fmt: skip

_HEAD = """# The HTTP surface

What each endpoint's body may hold and what becomes of it. This page is made by `python -m gateway.api_doc` from the
schemas that decode the bodies; a test holds it to them. The served OpenAPI document is at `/openapi/openapi.json`.

A body is sent uncompressed: any `content-encoding` but `identity` is 415.

Of every field: null is the same as absent, an integral float is an integer (`"n": 1.0`), and a value outside its type
or bounds is refused with 400 in OpenAI's words before anything is queued. An unknown field is ignored and named in the
`x-weir-warning` header; with the setting `strict_fields` it is refused with 400.

Headers a request may carry: `x-weir-conversation` and `x-weir-tags` (attribution), `x-weir-timeout` (seconds, at most
the server's limit), `x-weir-prefer: cheaper` (among the models of a route), `cache-control` or `x-weir-cache-control`
(`no-cache`, `no-store`, `max-age=S`) and
`x-weir-cache-threshold` (only a stricter one counts). Headers of an answer: `x-request-id`, `x-weir-cache`
(`hit`, `semantic`, `miss` or `bypass`, then where known `; reason=…; similarity=…; age=…`),
`x-weir-warning`, `x-weir-limit` (which limit refused), `x-ratelimit-*`,
`retry-after`, `retry-after-ms`, `x-should-retry`, `openai-processing-ms`.
"""
_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", dict: "object"}


def render() -> str:
    """The page."""
    return "\n".join([_HEAD, *(_section(title, struct) for title, struct in BODIES.items())])


def _section(title: str, struct: type[msgspec.Struct]) -> str:
    rows = [f"| `{name}` | {kind} | {treatment} |" for name, kind, treatment in _rows(struct)]
    return "\n".join([f"## {title}\n", "| field | type | treatment |", "|---|---|---|", *rows, ""])


def _rows(struct: type[msgspec.Struct]) -> Iterator[tuple[str, str, str]]:
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        required = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
        note = OF_ENDPOINT.get((struct, field.name)) or NOTES.get(field.name, "honoured")
        yield field.encode_name, kind_of(hints[field.name]), f"required; {note}" if required else note
    for name in IGNORED.get(struct, ()):
        yield name, "", "ignored with a warning; refused with strict_fields"


def kind_of(hint: Any) -> str:
    """A type in words, with its bounds."""
    origin = get_origin(hint)
    if origin is Annotated:
        bare, *metas = get_args(hint)
        bounds = [text for meta in metas if isinstance(meta, Meta) and (text := _bounds(meta))]
        return " ".join([kind_of(bare), *bounds])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    if origin in (list, tuple):
        return f"array of {kind_of(get_args(hint)[0])}"
    if origin is dict:
        return f"object of {kind_of(get_args(hint)[1])}" if get_args(hint)[1] is not Any else "object"
    if origin is Union or type(hint).__name__ == "UnionType":
        return " or ".join(kind_of(each) for each in get_args(hint) if each not in (type(None), msgspec.UnsetType))
    if isinstance(hint, type):
        return _NAMES.get(hint, "object")
    return "any"


def _bounds(meta: Meta) -> str:
    low = meta.ge if meta.ge is not None else meta.gt
    parts = []
    if low is not None or meta.le is not None:
        above = "above " if meta.ge is None and meta.gt is not None else ""
        parts.append(f"{above}{_number(low)} to {_number(meta.le)}" if meta.le is not None else f"from {_number(low)}")
    if meta.min_length is not None or meta.max_length is not None:
        parts.append(f"of {meta.min_length or 0} to {meta.max_length if meta.max_length is not None else 'any'}")
    return f"({', '.join(parts)})" if parts else ""


def _number(value: float | None) -> str:
    if value is None:
        return ""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return {str(2**63 - 1): "2^63-1", str(-(2**63)): "-2^63", str(2**31 - 1): "2^31-1"}.get(text, text)


def documented_names(page: str) -> set[str]:
    """Every field named in a page, for the test."""
    return set(re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE))


if __name__ == "__main__":
    print(render(), end="")
