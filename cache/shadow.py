"""How often is a semantic hit wrong? A sample of hits is generated again in the background and compared.

The sample is drawn by a hash of the request's id, so that a request cannot be asked twice and tests can foresee it.
Verdicts are counted per tenant in Redis; the estimate comes with an exact 95 % interval (Clopper and Pearson, 1934),
which stays honest at zero wrong of few.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from cache.embedder import Embedding
from cache.entry import CachedAnswer
from cache.guards.chain import first_refusal
from cache.store import RedisStore

_SAME_ANSWER = 0.85  # cosine; chosen by reading, not calibrated: a stricter judge can take `same_answer`'s place


class ShadowEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """`rate` is the share of wrong ones among `checked` hits; the true share lies in [low, high] with 95 %."""

    checked: int
    wrong: int
    rate: float
    low: float
    high: float


class TextEmbedder(Protocol):
    """What judging needs of an embedder."""

    async def embed(self, texts: Sequence[str]) -> list[Embedding]: ...


def is_sampled(request_id: str, share: float) -> bool:
    """Whether this hit is to be generated again; true for `share` of all ids."""
    digest = hashlib.sha256(b"weir-shadow" + request_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


async def same_answer(embedder: TextEmbedder, served: CachedAnswer, fresh: CachedAnswer) -> bool:
    """Whether two answers say the same as far as can be told without a judge: near in meaning, no number or negation
    that only one of them holds. Long free texts differ in numbers by chance: read the estimate as an upper bound.

    Raises: EmbedderUnavailable.
    """
    one, other = _text(served), _text(fresh)
    if one.strip() == other.strip():
        return True
    vectors = await embedder.embed([one, other])
    if float(np.dot(vectors[0].vector, vectors[1].vector)) < _SAME_ANSWER:
        return False
    return first_refusal(one, other) not in ("number", "negation")


def _text(answer: CachedAnswer) -> str:
    return "\n".join(choice.content or "" for choice in answer.choices)


class ShadowLog:
    """Counts of verdicts, per tenant, kept in Redis without expiry until `reset`."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    async def record(self, tenant: str, *, wrong: bool) -> None:
        """Raises: RedisError."""
        keys = self._store.keys(tenant)
        pipe = self._store.redis.pipeline(transaction=False)
        pipe.hincrby(keys.shadow, "checked", 1)
        pipe.hincrby(keys.shadow, "wrong", int(wrong))
        await pipe.execute()

    async def estimate(self, tenant: str) -> ShadowEstimate:
        """Raises: RedisError."""
        checked, wrong = await self._store.redis.hmget(self._store.keys(tenant).shadow, ["checked", "wrong"])
        return estimate(int(wrong or 0), int(checked or 0))

    async def reset(self, tenant: str) -> None:
        """Starts counting anew, as after a change of threshold. Raises: RedisError."""
        await self._store.redis.delete(self._store.keys(tenant).shadow)


def estimate(wrong: int, checked: int) -> ShadowEstimate:
    """Raises: ValueError unless 0 <= wrong <= checked."""
    if not 0 <= wrong <= checked:
        raise ValueError(f"{wrong} wrong of {checked} checked")
    low, high = clopper_pearson(wrong, checked)
    return ShadowEstimate(checked=checked, wrong=wrong, rate=wrong / checked if checked else 0.0, low=low, high=high)


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact binomial interval; (0, 1) without trials. Accurate to 1e-9."""
    if trials == 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else _solve(lambda p: 1 - binomial_cdf(successes - 1, trials, p), tail)
    high = 1.0 if successes == trials else _solve(lambda p: 1 - binomial_cdf(successes, trials, p), 1 - tail)
    return low, high


def upper_bound(successes: int, trials: int, confidence: float = 0.95) -> float:
    """The one-sided exact upper bound of a share: "at most this, with 95 %"."""
    return clopper_pearson(successes, trials, 2 * confidence - 1)[1]


def binomial_cdf(successes: int, trials: int, p: float) -> float:
    """P(X <= successes) for X of B(trials, p), summed in logarithms so that thousands of trials do not underflow."""
    if p <= 0.0:
        return 1.0
    if p >= 1.0:
        return 1.0 if successes >= trials else 0.0
    counts = np.arange(1, successes + 1)
    log_choose = np.concatenate([[0.0], np.cumsum(np.log((trials - counts + 1) / counts))])
    powers = np.arange(successes + 1)
    return min(1.0, math.fsum(np.exp(log_choose + powers * math.log(p) + (trials - powers) * math.log1p(-p))))


class _Growing(Protocol):
    def __call__(self, p: float, /) -> float: ...


def _solve(function: _Growing, target: float) -> float:
    """The p in [0, 1] at which a growing function reaches `target`, by halving."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < target else (low, middle)
    return (low + high) / 2
