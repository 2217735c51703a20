"""`best_of`: several candidates a prompt are generated, the likeliest `n` are answered with, and all are counted.

Done here rather than in the engine so that limits, budgets and the ledger see every candidate's tokens while they grow:
a client that leaves, or a budget that ends, is billed for what was computed and not for what would have been shown.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from engine.types import SamplingParams
from gateway.calls import Choice, Piece, gather
from gateway.upstreams.base import Progress


def candidates(sampling: SamplingParams) -> SamplingParams:
    """What the engine is asked for: every candidate, with log-probabilities to rank them by."""
    return msgspec.structs.replace(
        sampling,
        n=max(sampling.n, sampling.best_of or 0),
        best_of=None,
        logprobs=sampling.logprobs if sampling.logprobs is not None else 0,
    )


async def chosen(steps: AsyncGenerator[Progress, None], sampling: SamplingParams) -> AsyncGenerator[Progress, None]:
    """Counts as the candidates grow, then the winners. `steps` number candidates p * best_of + k for prompt p."""
    width = max(sampling.n, sampling.best_of or 0)
    choices: dict[int, Choice] = {}
    last: Progress | None = None
    async with aclosing(steps) as closing:
        async for step in closing:
            gather(choices, step.pieces)
            last = step
            yield Progress(pieces=[], counts=step.counts)
    if last is None:
        return
    winners: list[Piece] = []
    for prompt in sorted({index // width for index in choices}):
        mine = [choice for index, choice in choices.items() if index // width == prompt]
        ranked = sorted(mine, key=_mean_logprob, reverse=True)[: sampling.n]
        winners += [
            _piece(choice, prompt * sampling.n + rank, keep_logprobs=sampling.logprobs is not None)
            for rank, choice in enumerate(ranked)
        ]
    yield Progress(pieces=winners, counts=last.counts)


def _mean_logprob(choice: Choice) -> float:
    entries = choice.logprobs or []
    return sum(entry.logprob for entry in entries) / max(1, len(entries))


def _piece(choice: Choice, index: int, *, keep_logprobs: bool) -> Piece:
    return Piece(
        index=index,
        text=choice.text,
        reasoning=choice.reasoning,
        tool_calls=choice.tool_calls,
        token_ids=choice.token_ids,
        logprobs=choice.logprobs if keep_logprobs else None,
        prompt_logprobs=choice.prompt_logprobs,
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
    )
