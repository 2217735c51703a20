"""What leaves the core: token ids and numbers, no text. msgspec structs, sent as they are over the child's socket."""

from __future__ import annotations

import msgspec

from engine.types import FinishReason


class TokenScore(msgspec.Struct, frozen=True, array_like=True):
    """One token's raw log-probability and rank, and the most likely tokens of its position."""

    token_id: int
    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class CoreOutput(msgspec.Struct, array_like=True, kw_only=True):
    """New tokens of one sequence. `error` is the message of `FinishReason.ERROR`; `engine_us` is the request's share of
    engine time so far; `request_done` marks the output with which its last sequence ends;
    `ends_by_token`: the last token is an eos or stop id, whose text is no part of the answer. prompt_scores: of prompt
    tokens 1, 2, ..., those computed since the last output."""

    request_id: str
    index: int
    token_ids: list[int]
    prompt_tokens: int
    cached_tokens: int
    scores: list[TokenScore] | None = None
    prompt_scores: list[TokenScore] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    ends_by_token: bool = False
    error: str | None = None
    engine_us: int = 0
    request_done: bool = False
