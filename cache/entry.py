"""What is remembered: an answer in a neutral form that can be replayed as JSON or as a stream, and its surroundings."""

from __future__ import annotations

from typing import Any

import msgspec

from cache.outcome import NotStored

_FINISHED = frozenset({"stop", "tool_calls", "function_call"})


class CachedToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call, whole: `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


class CachedChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One choice, whole. `logprobs` is OpenAI's list of token objects, or None where none were asked for."""

    index: int = 0
    role: str = "assistant"
    content: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: tuple[CachedToolCall, ...] = ()
    finish_reason: str | None = None
    logprobs: list[dict[str, Any]] | None = None


class CachedUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the answer cost when it was made: on a hit these are tokens saved, never tokens used again."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class CachedAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole answer. `created` is Unix seconds; `request_id` names the request that paid for it.

    `num_choices` is the `n` asked for, so that a lost choice shows.
    """

    model: str
    created: int
    request_id: str
    choices: tuple[CachedChoice, ...]
    usage: CachedUsage
    num_choices: int = 1
    system_fingerprint: str | None = None

    def encode(self) -> bytes:
        """msgpack, as stored."""
        return _encoder.encode(self)

    @classmethod
    def decode(cls, raw: bytes) -> CachedAnswer:
        """Raises: msgspec.DecodeError, ValidationError on anything that `encode` did not write."""
        return _decoder.decode(raw)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CachedAnswer)


def why_not_stored(answer: CachedAnswer, *, max_bytes: int, allow_tool_calls: bool) -> NotStored | None:
    """The reason this answer must not be remembered; None if it may be.

    A half answer is worse than none: it would be served for as long as it lives.
    """
    if len(answer.choices) != answer.num_choices or any(c.finish_reason is None for c in answer.choices):
        return NotStored.INCOMPLETE
    reasons = {choice.finish_reason for choice in answer.choices}
    if "length" in reasons:
        return NotStored.TRUNCATED
    if "content_filter" in reasons:
        return NotStored.FILTERED
    if reasons - _FINISHED:
        return NotStored.ERRORED
    if not allow_tool_calls and any(choice.tool_calls for choice in answer.choices):
        return NotStored.TOOL_CALLS
    if any(not (choice.content or choice.tool_calls) for choice in answer.choices):
        return NotStored.EMPTY
    if len(answer.encode()) > max_bytes:
        return NotStored.OVER_LONG
    return None
