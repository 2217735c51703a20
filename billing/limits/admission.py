"""Admission: the stages with Redis behind them, and the stated policy for when Redis is away.

| Redis away | what happens |
|---|---|
| rates, concurrency | the local limiter: each limit divided by the number of replicas |
| hard budgets | LimitsUnavailable (503), unless the tenant has a grace allowance left in this process |
| running streams | go on to the last granted token; beyond it only by grace |
| settling | queued in memory and retried; the ledger has the row already |

A hold whose process died is booked and released by `billing.limits.reaper`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

import msgspec
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from billing.clock import Clock, utc_now
from billing.db import Database
from billing.errors import HoldLost, LimitsUnavailable, QuotaDenied, ScriptsFlushed
from billing.limits import stages
from billing.limits.local import LocalLimiter
from billing.limits.policy import PolicyStore, Rule
from billing.limits.seed import Seeder
from billing.limits.stage import Stage
from billing.limits.ticket import Admitted, Extended, Held, HoldTerms, Ticket
from billing.principal import Principal
from billing.trips import Trips
from billing.windows import Window

REDIS_ERRORS = (RedisError, OSError, TimeoutError)
PROBE_EVERY_S = 0.5  # while Redis is away one request in this time finds out whether it is back
MAX_PENDING = 50_000
_BEAT_CHUNK = 32  # at once: heartbeats must not use up the connections that requests need
T = TypeVar("T")
log = logging.getLogger(__name__)


class LimitEvent(msgspec.Struct, frozen=True):
    """A limit was reached: `soft` or `hard`, by which rule, in which budget window (None for rates)."""

    kind: str
    tenant_id: str
    rule: Rule
    window: Window | None


class _Pending(msgspec.Struct):
    ticket: Ticket
    amount_nano: int
    tokens: int
    booked_at: float


class Admission:
    """One a process. `replicas` tells how many gateways share the limits; `on_limit` hears of limits reached."""

    def __init__(
        self,
        redis: Redis,
        policies: PolicyStore,
        db: Database,
        *,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
        replicas: Callable[[], int] = lambda: 1,
        on_limit: Callable[[LimitEvent], None] = lambda _: None,
        deadline_s: float = 0.1,
    ) -> None:
        self._redis = redis
        self.trips = Trips(redis)
        self._policies = policies
        self._clock = clock
        self._monotonic = monotonic
        self._replicas = replicas
        self._on_limit = on_limit
        self._deadline_s = deadline_s
        self._seeder = Seeder(redis, db)
        self._local = LocalLimiter(monotonic=monotonic)
        self._live: dict[str, Ticket] = {}
        self._pending: deque[_Pending] = deque(maxlen=MAX_PENDING)
        self._grace_used: dict[str, int] = {}
        self._away_until = 0.0
        self._beats: asyncio.Task[None] | None = None
        self.num_degraded = 0
        self.num_outages = 0

    @property
    def degraded(self) -> bool:
        """True while Redis is held to be away."""
        return self._away_until > 0.0

    @property
    def num_live(self) -> int:
        """Requests between admit and settle in this process."""
        return len(self._live)

    @property
    def num_pending_settles(self) -> int:
        """Settles that wait for Redis."""
        return len(self._pending)

    async def open(
        self,
        principal: Principal,
        model: str,
        request_id: str,
        *,
        endpoint: str = "chat",
        accepted_at: datetime | None = None,
    ) -> Ticket:
        """A ticket with the limits that bear on this key and model. Raises: PolicyUnavailable."""
        policy = await self._policies.policy(principal, model)
        ticket = Ticket(principal, model, request_id, policy, accepted_at or self._clock(), endpoint=endpoint)
        ticket.redis_left_s = self._deadline_s
        return ticket

    # --- admit ---------------------------------------------------------------------------------------------------

    def admit_stage(self, ticket: Ticket) -> Stage[Admitted]:
        """For a pipeline shared with the cache's lookup. On a Redis error call `admit_locally`."""
        return stages.admit_stage(ticket).then(lambda _: self._admitted(ticket))

    async def admit(self, ticket: Ticket) -> Admitted:
        """Requests and concurrency, in a trip of its own. Raises: QuotaDenied (nothing taken)."""
        try:
            return await self._run(ticket, self.admit_stage(ticket))
        except QuotaDenied as exc:
            self._refused(ticket, exc)
            raise
        except REDIS_ERRORS:
            return self.admit_locally(ticket)

    def admit_locally(self, ticket: Ticket) -> Admitted:
        """Redis is away: this process's share of each limit. Raises: QuotaDenied with `degraded`."""
        ticket.degraded = True
        self.num_degraded += 1
        replicas, policy = max(1, self._replicas()), ticket.policy
        refused = self._local.take(policy.admit_rates, 1, replicas)
        if refused is not None:
            raise stages.denied(*refused, degraded=True)
        busy = self._local.open_lease(policy.leases, replicas)
        if busy is not None:
            self._local.give_back(policy.admit_rates, 1, replicas)
            raise stages.denied(busy, 1.0, degraded=True)
        ticket.admitted = True
        self._live[ticket.request_id] = ticket
        return Admitted(None, degraded=True)

    def _admitted(self, ticket: Ticket) -> None:
        self._local.record(ticket.policy.admit_rates, 1, max(1, self._replicas()))
        self._local.open_lease(ticket.policy.leases, None)
        self._live[ticket.request_id] = ticket
        self._tell_soft(ticket)

    # --- hold ----------------------------------------------------------------------------------------------------

    async def hold(self, ticket: Ticket, terms: HoldTerms) -> Held:
        """Tokens and the first slice of money. A refusal has given back what admitting took; a cancellation all of it.

        Raises: QuotaDenied; LimitsUnavailable when a hard budget cannot be asked and there is no grace.
        """
        bound = ticket.policy.max_tokens
        if bound is not None and terms.tokens > bound.capacity:
            await self.release(ticket, give_back=True)
            raise stages.denied(bound, None)
        try:
            held = await self._run_seeded(ticket, lambda: stages.hold_stage(ticket, terms))
        except QuotaDenied as exc:
            self._closed(ticket)
            self._refused(ticket, exc)
            raise
        except LimitsUnavailable:
            await self.release(ticket, give_back=True)
            raise
        except REDIS_ERRORS:
            return self._hold_locally(ticket, terms)
        except asyncio.CancelledError:  # Redis may have made the hold, and nobody would end it before it runs out
            await self.settle(ticket, amount_nano=0, tokens=0)
            raise
        ticket.degraded = False  # admitted while Redis was away, held by it now
        self._local.record(ticket.token_rates, ticket.held_tokens, max(1, self._replicas()))
        self._tell_soft(ticket)
        return held

    def _hold_locally(self, ticket: Ticket, terms: HoldTerms) -> Held:
        stages.hold_stage(ticket, terms)  # fills in the terms and the budgets' keys
        ticket.degraded = True
        replicas, tokens = max(1, self._replicas()), terms.tokens
        refused = self._local.take(ticket.token_rates, tokens, replicas)
        if refused is not None:
            self._give_back_locally(ticket)
            raise stages.denied(*refused, degraded=True)
        amount = terms.amount_nano(terms.max_output_tokens)
        capped = any(rule.hard is not None for rule, _ in ticket.budgets)
        if capped and not self._take_grace(ticket, amount, replicas):
            self._local.give_back(ticket.token_rates, tokens, replicas)
            self._give_back_locally(ticket)
            raise LimitsUnavailable("budgets cannot be checked at the moment; try again", retry_after_s=2)
        ticket.held_nano, ticket.held_tokens, ticket.granted_output_tokens = amount, tokens, terms.max_output_tokens
        return Held(terms.max_output_tokens, None, degraded=True)

    def _give_back_locally(self, ticket: Ticket) -> None:
        self._local.give_back(ticket.policy.admit_rates, 1, max(1, self._replicas()))
        self._closed(ticket)

    def _take_grace(self, ticket: Ticket, amount: int, replicas: int) -> bool:
        tenant = ticket.principal.tenant_id
        used = self._grace_used.get(tenant, 0)
        if used + amount > ticket.principal.grace_nano_usd // replicas:
            return False
        self._grace_used[tenant] = used + amount
        ticket.grace_nano += amount
        return True

    async def unhold(self, ticket: Ticket) -> None:
        """Give a hold's money back while the request goes on: it may `hold` anew, on other terms.

        While Redis is away the old hold stays there; settling counts the exact amount in its place. Cancelled, the
        ticket is as before, to be settled: settling does not mind whether the money went back already.
        """
        stage, held = stages.unhold_stage(ticket), ticket.holding
        before = ticket.terms, ticket.budgets, ticket.holding
        ticket.terms, ticket.budgets, ticket.holding, ticket.at_end = None, (), False, False  # no heartbeat extends it
        ticket.held_nano = ticket.held_tokens = ticket.granted_output_tokens = 0
        ticket.note(prompt_tokens=0, output_tokens=0)
        if held:
            try:
                await self._run(ticket, stage, deadline_s=self._deadline_s)
            except REDIS_ERRORS:
                pass
            except asyncio.CancelledError:
                ticket.terms, ticket.budgets, ticket.holding = before
                raise

    # --- while it runs -------------------------------------------------------------------------------------------

    async def extend(self, ticket: Ticket, want_tokens: int | None = None) -> Extended:
        """Renew lease and hold, write the tokens so far, ask for more output money when it runs short.

        Called by the heartbeat for every live ticket; the pipeline calls it too when `ticket.needs_extension`.
        Raises: HoldLost when the reaper has booked the request: cut the stream and book nothing.
        """
        want = stages.next_slice(ticket) if want_tokens is None else want_tokens
        if ticket.lost:
            raise HoldLost(f"the hold of request {ticket.request_id} is gone")
        if ticket.ended or ticket.terms is None:
            return Extended(ticket.granted_output_tokens, ticket.at_end, degraded=ticket.degraded)
        try:
            extended = await self._run_seeded(
                ticket, lambda: stages.extend_stage(ticket, want), deadline_s=self._deadline_s
            )
        except HoldLost:
            ticket.lost = True
            self._closed(ticket)  # the reaper has settled it
            raise
        except (*REDIS_ERRORS, LimitsUnavailable):
            return self._extend_locally(ticket, want)
        ticket.holding, ticket.degraded = not ticket.ended, False  # one begun while Redis was away has a hold now
        return extended

    def _extend_locally(self, ticket: Ticket, want: int) -> Extended:
        terms = ticket.terms
        assert terms is not None
        want = min(want, terms.max_output_tokens - ticket.granted_output_tokens)
        amount = terms.rates.hold_output(want, batch=terms.batch)
        if want > 0 and self._take_grace(ticket, amount, max(1, self._replicas())):
            ticket.granted_output_tokens += want
        used_up = ticket.output >= ticket.granted_output_tokens < terms.max_output_tokens
        ticket.at_end = used_up  # asked again at every heartbeat until the last granted token is out
        return Extended(ticket.granted_output_tokens, used_up, degraded=True)

    # --- the end -------------------------------------------------------------------------------------------------

    def settle_stage(self, ticket: Ticket, *, amount_nano: int, tokens: int) -> Stage[stages.Settled]:
        """For a pipeline shared with the cache's store, after the row is durable. On a Redis error: `settle_later`."""
        self._closed(ticket)
        return stages.settle_stage(ticket, amount_nano=amount_nano, tokens=tokens).then(
            lambda settled: self._settled(ticket, settled)
        )

    async def settle(self, ticket: Ticket, *, amount_nano: int, tokens: int) -> None:
        """Once the ledger row is durable: exact money and tokens in place of what was held. Never raises for Redis.

        `tokens` is what counts against tokens per minute: prompt and output together.
        """
        stage = self.settle_stage(ticket, amount_nano=amount_nano, tokens=tokens)
        try:
            await self._run(ticket, stage, deadline_s=self._deadline_s)
        except REDIS_ERRORS:
            self.settle_later(ticket, amount_nano=amount_nano, tokens=tokens)

    def settle_later(self, ticket: Ticket, *, amount_nano: int, tokens: int) -> None:
        """Queue a settle for when Redis is back; the hold's expiry and the ledger cover a death before that."""
        self._pending.append(_Pending(ticket, amount_nano, tokens, self._monotonic()))

    async def release(self, ticket: Ticket, *, give_back: bool = False) -> None:
        """The request ends without a hold: a cache hit, an error before it. `give_back`: the request does not count."""
        if ticket.ended:
            return
        if ticket.holding:
            await self.settle(ticket, amount_nano=0, tokens=0)
            return
        self._closed(ticket)
        if ticket.degraded:
            if give_back:
                self._local.give_back(ticket.policy.admit_rates, 1, max(1, self._replicas()))
            return
        stage = stages.release_stage(ticket, give_back=give_back)
        with contextlib.suppress(*REDIS_ERRORS):  # the lease runs out by itself
            await self._run(ticket, stage, deadline_s=self._deadline_s)

    def release_stage(self, ticket: Ticket) -> Stage[None]:
        """`release` for a pipeline."""
        self._closed(ticket)
        return stages.release_stage(ticket, give_back=False)

    def _closed(self, ticket: Ticket) -> None:
        if self._live.pop(ticket.request_id, None) is not None:
            self._local.close_lease(ticket.policy.leases)
        ticket.ended = True
        ticket.holding = False

    def _settled(self, ticket: Ticket, settled: stages.Settled) -> None:
        for (rule, _), used in zip(ticket.budgets, settled.used, strict=True):
            if rule.soft is not None and used is not None and used >= rule.soft:
                window = rule.window(ticket.accepted_at, ticket.principal.time_zone)
                self._on_limit(LimitEvent("soft", ticket.principal.tenant_id, rule, window))

    # --- Redis ---------------------------------------------------------------------------------------------------

    async def _run(self, ticket: Ticket, stage: Stage[T], *, deadline_s: float | None = None) -> T:
        """One trip within the request's deadline. Raises: TimeoutError at once while Redis is away."""
        started = self._monotonic()
        if started < self._away_until:
            raise TimeoutError("Redis is away")
        if self._away_until:
            self._away_until = started + PROBE_EVERY_S  # this request is the probe, the others go on without
        left = ticket.redis_left_s if deadline_s is None else deadline_s
        try:
            result, used_s = await self._trip(stage, left)
        except REDIS_ERRORS as exc:
            if deadline_s is None and isinstance(exc, TimeoutError):
                ticket.redis_left_s = 0.0
            self.note_away(exc)
            if isinstance(exc, RedisConnectionError):
                # After a restart every pooled connection is dead: without this each would fail one more request.
                await self._redis.connection_pool.disconnect(inuse_connections=False)
            raise
        if deadline_s is None:
            ticket.redis_left_s = max(0.0, left - used_s)
        self.note_back()
        return result

    async def _trip(self, stage: Stage[T], left_s: float) -> tuple[T, float]:
        """The stage's result, and the seconds counted."""
        replies, used_s = await self.trips.execute(stage.commands, deadline_s=left_s)
        try:
            return stage.parse(replies), used_s
        except ScriptsFlushed:
            replies, more_s = await self.trips.execute(stage.loading, deadline_s=left_s - used_s)
            return stage.parse(replies), used_s + more_s

    async def _run_seeded(self, ticket: Ticket, make: Callable[[], Stage[T]], *, deadline_s: float | None = None) -> T:
        try:
            return await self._run(ticket, make(), deadline_s=deadline_s)
        except stages.NeedsSeed as exc:
            await self._seeder.seed(ticket, exc.which)
        return await self._run(ticket, make(), deadline_s=deadline_s)

    def note_away(self, exc: BaseException) -> None:
        """Redis failed (also told by the gateway, for pipelines of its own)."""
        if isinstance(exc, ResponseError):  # it answers, but will not do it: a replica, out of memory, a script's fault
            log.error("limits: Redis refused a script: %s", exc)
        elif not self._away_until:
            log.warning("limits: Redis is away (%s); local limits are in force", type(exc).__name__)
        self._away_until = self._monotonic() + PROBE_EVERY_S

    def note_back(self) -> None:
        """Redis answered."""
        if self._away_until:
            log.warning("limits: Redis is back")
            self.num_outages += 1
            self._away_until = 0.0
            self._grace_used.clear()

    # --- news ----------------------------------------------------------------------------------------------------

    def _refused(self, ticket: Ticket, denial: QuotaDenied) -> None:
        if not denial.money:
            return
        for rule, _ in ticket.budgets:
            if rule.scope == denial.scope and rule.quota.name == denial.limit and rule.model == denial.model:
                window = rule.window(ticket.accepted_at, ticket.principal.time_zone)
                self._on_limit(LimitEvent("hard", ticket.principal.tenant_id, rule, window))

    def _tell_soft(self, ticket: Ticket) -> None:
        for rule in ticket.soft_reached:
            self._on_limit(LimitEvent("soft", ticket.principal.tenant_id, rule, None))
        ticket.soft_reached.clear()

    # --- heartbeat -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin the heartbeat in a task of the running loop."""
        self._beats = asyncio.create_task(self._beat_forever(), name="billing-heartbeat")

    async def stop(self) -> None:
        """End the heartbeat, with a last try at the settles that wait."""
        if self._beats is not None:
            self._beats.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beats
            self._beats = None
        await self.beat()
        await self.trips.close()

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(stages.HEARTBEAT_S)
            try:
                await self.beat()
            except Exception:
                log.exception("limits: a heartbeat failed")

    async def beat(self) -> None:
        """Renew every live ticket's lease and hold, then retry the settles that wait for Redis."""
        tickets = list(self._live.values())
        for first in range(0, len(tickets), _BEAT_CHUNK):
            chunk = tickets[first : first + _BEAT_CHUNK]
            results = await asyncio.gather(*(self._beat_one(t) for t in chunk), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException) and not isinstance(result, HoldLost | stages.NeedsSeed):
                    raise result
        for _ in range(len(self._pending)):
            item = self._pending.popleft()
            stage = stages.settle_stage(
                item.ticket,
                amount_nano=item.amount_nano,
                tokens=item.tokens,
                booked_ago_s=self._monotonic() - item.booked_at,
            )
            try:
                await self._run(item.ticket, stage, deadline_s=1.0)
            except REDIS_ERRORS:
                self._pending.appendleft(item)
                return

    async def _beat_one(self, ticket: Ticket) -> None:
        if ticket.terms is not None:
            await self.extend(ticket)
        elif ticket.admitted and ticket.policy.leases:
            with contextlib.suppress(*REDIS_ERRORS):
                await self._run(ticket, stages.renew_stage(ticket), deadline_s=self._deadline_s)
