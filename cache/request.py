"""What the gateway tells the cache of one request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from cache.errors import InvalidCacheControl

MAX_AGE_LIMIT_S = 10 * 365 * 86_400

_DIRECTIVE = re.compile(r"\s*([A-Za-z-]+)\s*(?:=\s*\"?([^\",]*)\"?)?\s*")


class CacheControl(msgspec.Struct, frozen=True, kw_only=True):
    """A caller's wishes. `no_cache`: do not read, but refresh and overwrite. `no_store`: do not write.

    `max_age_s`: an older answer is a miss. `threshold`: cosine; only a stricter one than the policy's counts.
    """

    no_cache: bool = False
    no_store: bool = False
    max_age_s: int | None = None
    threshold: float | None = None

    @classmethod
    def parse(cls, header: str | None, *, threshold: float | None = None) -> CacheControl:
        """Reads a `cache-control` value; directives it does not know are ignored, as RFC 9111 5.2.3 wants.

        Raises: InvalidCacheControl for a max-age that is no whole number of seconds, a threshold outside 0 to 1.
        """
        if threshold is not None and not 0.0 <= threshold <= 1.0:
            raise InvalidCacheControl(f"the cache threshold is {threshold}: it must be 0 to 1", param="threshold")
        no_cache = no_store = False
        max_age_s: int | None = None
        for part in (header or "").split(","):
            match = _DIRECTIVE.fullmatch(part)
            if match is None:
                continue
            name, value = match[1].lower(), match[2]
            no_cache |= name == "no-cache"
            no_store |= name == "no-store"
            if name == "max-age":
                max_age_s = _seconds(value)
        return cls(no_cache=no_cache, no_store=no_store, max_age_s=max_age_s, threshold=threshold)


def _seconds(value: str | None) -> int:
    text = (value or "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise InvalidCacheControl(f"max-age={text!r} is not a whole number of seconds", param="cache-control")
    return min(int(text), MAX_AGE_LIMIT_S)


class CacheRequest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One request as the cache sees it.

    `body` is the decoded OpenAI body as plain dicts and lists (`msgspec.to_builtins` of a struct does). Everything in
    it but the last user text and `partition.NEUTRAL_FIELDS` determines the answer, unknown fields too. `model` is the
    name after aliases, `model_revision` a digest over weights, config and chat template (for an upstream: its name
    and base URL). `defaults` are the sampling defaults in force where the body is silent. `namespace` can only narrow.
    `tags` are for invalidation. `retrieval`: the gateway added context of its own (search, files).
    """

    tenant: str
    project: str
    model: str
    model_revision: str
    body: Mapping[str, Any]
    end_user: str | None = None
    endpoint: str = "chat.completions"
    defaults: Mapping[str, Any] = {}
    namespace: str | None = None
    tags: tuple[str, ...] = ()
    retrieval: bool = False
    control: CacheControl = CacheControl()

    @cached_property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """The chat's messages; empty for a completion."""
        messages = self.body.get("messages")
        if not isinstance(messages, list | tuple):
            return ()
        return tuple(message for message in messages if isinstance(message, Mapping))

    @cached_property
    def text(self) -> str | None:
        """What exact and semantic lookups compare: the last text part of a last message of the user's, or the prompt.

        None where the request does not end in one (a tool's result, a prefilled answer, a list of prompts). Earlier
        parts of the same message stay in the partition: joined, (a, image, b) could be mistaken for another split.
        """
        if "messages" not in self.body:
            prompt = self.body.get("prompt")
            return prompt if isinstance(prompt, str) else None
        messages = self.messages
        if not messages or messages[-1].get("role") != "user":
            return None
        texts = text_parts(messages[-1])
        return texts[-1] if texts else None


def text_parts(message: Mapping[str, Any]) -> list[str]:
    """The texts of one message in their order: its string content, or its text parts."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list | tuple):
        return []
    return [part["text"] for part in content if is_text_part(part)]


def is_text_part(part: Any) -> bool:
    """Whether a content part is text (`text` in chat, `input_text` in responses)."""
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)
