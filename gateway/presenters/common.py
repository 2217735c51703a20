"""What every presenter needs: the head of an answer, its usage, log-probabilities as OpenAI writes them."""

from __future__ import annotations

import time

import msgspec

from engine.types import TokenLogprob
from gateway.calls import Call, Counts
from gateway.schemas.chat import ChoiceLogprobs, TokenLogprobOut, TopLogprob
from gateway.schemas.common import Usage, usage_of

MIN_LOGPROB = -9999.0  # vLLM's own clamp: JSON has no -Infinity


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same in every frame of one answer."""

    id: str
    created: int
    model: str
    system_fingerprint: str | None


def head_of(prefix: str, call: Call, fingerprint: str | None) -> Head:
    """`id` is the prefix and the request id, so that an answer can be found in the ledger."""
    return Head(
        id=f"{prefix}{call.request_id.removeprefix('req_')}",
        created=int(time.time()),
        model=call.model,
        system_fingerprint=fingerprint,
    )


def usage(counts: Counts) -> Usage:
    """The usage object of the counts."""
    return usage_of(counts.prompt_tokens, counts.completion_tokens, counts.cached_tokens, counts.reasoning_tokens)


def clamp(logprob: float) -> float:
    """A finite log-probability; NaN never leaves the engine, infinities do when a mask made them."""
    return logprob if logprob > MIN_LOGPROB else MIN_LOGPROB


def chat_logprobs(entries: list[TokenLogprob] | None, top: int) -> ChoiceLogprobs | None:
    """OpenAI's `logprobs.content` for the tokens; `top` is how many alternatives were asked for."""
    if entries is None:
        return None
    return ChoiceLogprobs(content=[_chat_logprob(entry, top) for entry in entries])


def _chat_logprob(entry: TokenLogprob, top: int) -> TokenLogprobOut:
    return TokenLogprobOut(
        token=entry.text,
        logprob=clamp(entry.logprob),
        bytes=list(entry.bytes),
        top_logprobs=[
            TopLogprob(token=other.text, logprob=clamp(other.logprob), bytes=list(other.bytes))
            for other in entry.top[:top]
        ],
    )
