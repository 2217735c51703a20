"""A sample of semantic hits is generated again in the background and compared: how often is a hit wrong here?

The tenant pays nothing for it and has no row; the generation is the operator's cost. It runs behind all other work,
two at a time, and what would have to wait long is left out. A failure of any kind is no verdict.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing

import msgspec

from cache.embedder import Embedder
from cache.entry import CachedAnswer, why_not_stored
from cache.errors import EmbedderUnavailable
from cache.shadow import ShadowLog, is_sampled, same_answer
from cache.store import STORE_TROUBLE
from engine.types import Priority
from gateway.answers import Found, Lookup, as_answer
from gateway.attempts import Attempts
from gateway.background import Background
from gateway.calls import Call, Choice, Counts, gather
from gateway.errors import GatewayError
from gateway.faults import KNOWN
from gateway.metrics import Metrics
from gateway.routing import Route, Target

log = logging.getLogger(__name__)

AT_ONCE = 2
MAX_WAITING = 16
TIMEOUT_S = 120.0


class Shadow:
    """Checks semantic hits of one process; verdicts are counted per tenant in Redis (`weir cache shadow`)."""

    def __init__(self, verdicts: ShadowLog, embedder: Embedder, background: Background, metrics: Metrics) -> None:
        self._verdicts = verdicts
        self._embedder = embedder
        self._background = background
        self._metrics = metrics
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    def consider(self, call: Call, route: Route, plan: list[Target], lookup: Lookup, found: Found) -> None:
        """Starts a check where this hit is in its tenant's sample. Never holds the answer up."""
        if found.answer is None or not is_sampled(call.request_id, lookup.policy.shadow_share):
            return
        if self._waiting >= MAX_WAITING:
            self._metrics.shadow_check("undecided")
            return
        self._waiting += 1
        self._background.spawn(self._check(call, route, plan, lookup, found.answer), name="shadow")

    async def _check(self, call: Call, route: Route, plan: list[Target], lookup: Lookup, served: CachedAnswer) -> None:
        verdict = "undecided"
        try:
            async with self._slots:
                fresh = await self._generated(call, route, plan)
            policy = lookup.policy
            if not why_not_stored(fresh, max_bytes=policy.max_answer_bytes, allow_tool_calls=policy.tools == "exact"):
                same = await same_answer(self._embedder, served, fresh)
                await self._verdicts.record(call.principal.tenant_id, wrong=not same)
                verdict = "same" if same else "wrong"
        except (GatewayError, EmbedderUnavailable, *KNOWN, *STORE_TROUBLE) as exc:
            log.info("a shadow check came to nothing: %s", type(exc).__name__)
        finally:
            self._waiting -= 1
            self._metrics.shadow_check(verdict)

    async def _generated(self, call: Call, route: Route, plan: list[Target]) -> CachedAnswer:
        """The answer that the hit's own question gets. Raises: GatewayError and what an upstream raises."""
        again = msgspec.structs.replace(
            call,
            request_id=f"{call.request_id}-shadow",
            priority=Priority.BATCH,
            stream=False,
            deadline=time.monotonic() + TIMEOUT_S,
        )
        choices: dict[int, Choice] = {}
        counts = Counts()
        async with aclosing(Attempts(again, route, plan, self._metrics).run()) as steps:
            async for step in steps:
                counts = step.counts
                gather(choices, step.pieces)
        return as_answer(again, counts, list(choices.values()), created=int(time.time()))
