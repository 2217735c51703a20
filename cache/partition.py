"""The partition: everything that determines an answer except the last user text, as one hex digest.

Two requests can share an answer only inside one partition, so what is not in here is what leaks. Hence the rule:
every field of the body counts unless it is named in `NEUTRAL_FIELDS`; a field nobody thought of narrows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from cache.canonical import canonical_json, framed_digest, normalised_text
from cache.errors import UncacheableRequest
from cache.request import CacheRequest, is_text_part

SCHEMA = "weir-cache-2"  # raised when the meaning of a key or an entry changes, what is embedded too

# Fields that change how an answer is delivered, billed or found again, but not what it says. `user` and
# `safety_identifier` name the end user, which enters by `end_user_scope` alone.
NEUTRAL_FIELDS = frozenset({
    "model", "stream", "stream_options", "user", "safety_identifier", "metadata", "store", "service_tier",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "priority", "weir",
})  # fmt: skip

# OpenAI's defaults: a caller that spells one out asks the same question as one that is silent.
OPENAI_DEFAULTS: Mapping[str, Any] = {
    "temperature": 1,
    "top_p": 1,
    "n": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logprobs": False,
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "reasoning_effort": None,
    "top_k": 0,
    "min_p": 0,
    "repetition_penalty": 1,
    "echo": False,
    "best_of": 1,
    "tools": [],
    "functions": [],
    "logit_bias": {},
    "stop": [],
}

# The text's place in the canonical body: a marker that no JSON string can be, as the body holds an object here.
_TEXT_PLACE = {"weir": "text"}


@lru_cache(maxsize=4096)
def tenant_digest(tenant: str) -> str:
    """The tenant in Redis keys: 32 hex digits. Names are never written raw: RediSearch splits and folds them."""
    return framed_digest([SCHEMA, "tenant", tenant])[:32]


@lru_cache(maxsize=4096)
def scope_digest(kind: str, *parts: str) -> str:
    """A name by which entries are found for invalidation (a project, a model, a tag): 32 hex digits."""
    return framed_digest([SCHEMA, kind, *parts])[:32]


def partition_digest(request: CacheRequest, *, embedder_fingerprint: str, end_user_scope: bool) -> str:
    """64 hex digits naming the set of requests that may share answers by their last user text alone.

    Raises: UncacheableRequest where the body has no canonical form.
    """
    end_user = ["end-user", request.end_user or ""] if end_user_scope else ["shared"]
    namespace = ["namespace", request.namespace] if request.namespace is not None else ["no-namespace"]
    return framed_digest([
        SCHEMA,
        request.tenant,
        request.project,
        *end_user,
        *namespace,
        request.endpoint,
        request.model,
        request.model_revision,
        embedder_fingerprint,
        canonical_json(_determining(request)),
    ])  # fmt: skip


def exact_key(partition: str, text: str | None) -> str:
    """64 hex digits naming one request of a partition; also the entry's id. `text`: the request's last user text."""
    asked = ["text", normalised_text(text)] if text is not None else ["no-text"]
    return framed_digest([SCHEMA, "exact", partition, *asked])


def _determining(request: CacheRequest) -> dict[str, Any]:
    """The body without neutral fields, without the text and without what is OpenAI's default; null is absent."""
    given = {name: value for name, value in request.body.items() if value is not None}
    if request.defaults:
        given = {**request.defaults, **given}
    body = {
        name: value
        for name, value in given.items()
        if name not in NEUTRAL_FIELDS and value is not None and not _is_default(name, value)
    }
    if "max_completion_tokens" in body:  # the newer name of the same limit, which wins
        body["max_tokens"] = body.pop("max_completion_tokens")
    if isinstance(body.get("stop"), str):
        body["stop"] = [body["stop"]]
    if request.text is None:
        return body
    if "messages" not in request.body:
        return body | {"prompt": _TEXT_PLACE}
    messages = request.messages
    if len(messages) != len(request.body["messages"]):
        raise UncacheableRequest("a message is not a JSON object")
    return body | {"messages": [*map(_without_nulls, messages[:-1]), _without_text(messages[-1])]}


def _is_default(name: str, value: Any) -> bool:
    """Whether the field may as well be absent. `true` is no 1 here, nor `false` a 0."""
    default = OPENAI_DEFAULTS.get(name)
    return default is not None and value == default and isinstance(value, bool) is isinstance(default, bool)


def _without_nulls(message: Mapping[str, Any]) -> dict[str, Any]:
    """Clients that echo an SDK's message object send `refusal: null`, `tool_calls: null` and the like along."""
    return {name: value for name, value in message.items() if value is not None}


def _without_text(message: Mapping[str, Any]) -> dict[str, Any]:
    """The last message with its last text taken out; other texts, images, audio and their order stay."""
    rest = _without_nulls(message)
    if isinstance(rest["content"], str):
        return rest | {"content": [_TEXT_PLACE]}
    parts = list(rest["content"])
    last = max(index for index, part in enumerate(parts) if is_text_part(part))
    parts[last] = {name: value for name, value in parts[last].items() if name not in ("text", "type")} | _TEXT_PLACE
    return rest | {"content": parts}
