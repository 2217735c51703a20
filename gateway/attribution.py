"""Whose end user, which conversation, which tags: dimensions for reports, read from headers and body. None of them
ever decides who pays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.calls import Attribution
from gateway.errors import InvalidRequest

MAX_ID_CHARS = 128
MAX_TAGS = 16
MAX_TAG_CHARS = 64


def attribution_of(
    headers: Mapping[str, str],
    *,
    metadata: Mapping[str, str] | None,
    user: str | None,
    safety_identifier: str | None,
    key_tags: Mapping[str, str],
    messages: list[dict[str, Any]] | None = None,
    project_id: str = "",
) -> Attribution:
    """The request's dimensions. `x-weir-conversation` beats `metadata.conversation_id` beats the first turns' hash.

    Raises: InvalidRequest for malformed tags.
    """
    conversation, source = _conversation(headers, metadata, messages, project_id)
    end_user = safety_identifier or user
    return Attribution(
        conversation_id=conversation,
        conversation_source=source,
        end_user=end_user[:MAX_ID_CHARS] if end_user else None,
        tags={**key_tags, **_tags(headers.get("x-weir-tags"))},
    )


def _conversation(
    headers: Mapping[str, str],
    metadata: Mapping[str, str] | None,
    messages: list[dict[str, Any]] | None,
    project_id: str,
) -> tuple[str | None, str]:
    if given := headers.get("x-weir-conversation"):
        if len(given) > MAX_ID_CHARS:
            raise InvalidRequest(
                f"Invalid header 'x-weir-conversation': longer than {MAX_ID_CHARS} characters.",
                param="x-weir-conversation",
            )
        return given, "header"
    if metadata and (given := metadata.get("conversation_id")):
        return given[:MAX_ID_CHARS], "metadata"
    if not messages:
        return None, "none"
    # Up to its first user turn a conversation stays the same while it grows; the project keeps two customers apart.
    first = msgspec.json.encode([project_id, *_first_turns(messages)])
    return "h-" + hashlib.sha256(first).hexdigest()[:32], "hash"


def _first_turns(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for number, message in enumerate(messages):
        if message.get("role") == "user":
            return messages[: number + 1]
    return messages[:1]


def _tags(header: str | None) -> dict[str, str]:
    """`team=search,env=prod` as a dict."""
    tags: dict[str, str] = {}
    for part in (header or "").split(","):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or len(name) > MAX_TAG_CHARS or len(value) > MAX_TAG_CHARS:
            raise InvalidRequest(
                "Invalid header 'x-weir-tags': expected name=value pairs with commas between them, each at most "
                f"{MAX_TAG_CHARS} characters.",
                param="x-weir-tags",
            )
        tags[name] = value
    if len(tags) > MAX_TAGS:
        raise InvalidRequest(f"Invalid header 'x-weir-tags': more than {MAX_TAGS} tags.", param="x-weir-tags")
    return tags
