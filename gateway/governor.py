"""Billing as the pipeline asks for it: admit, hold, keep within what is granted, book, release.

Admitting shares its Redis trip with the cache's exact lookup, releasing its own with the cache's store, where both use
the same Redis. What happens while Redis is away is `billing.limits.admission`'s policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import msgspec
from redis.asyncio import Redis

from billing.deadline import LoopDeadline
from billing.errors import HoldLost, QuotaDenied, ScriptsFlushed, UnknownPrice
from billing.limits.admission import REDIS_ERRORS, Admission
from billing.limits.ticket import Admitted, Held, HoldTerms, RateInfo, Ticket
from billing.prices import PriceBook, Rates
from cache.store import STORE_TROUBLE, ExactLookup, ExactResult, RedisStore
from gateway.answers import Remembering
from gateway.booking import Booking, Ending, token_counts
from gateway.calls import Call, Counts
from gateway.metrics import Metrics
from gateway.routing import Route, Target

CONCURRENCY = "concurrency"
log = logging.getLogger(__name__)


class AdmittedCall:
    """A call that passed the request limits. Leaving the context releases it, unless a hold has taken it over."""

    def __init__(self, governor: Governor, ticket: Ticket, admitted: Admitted) -> None:
        self._governor = governor
        self.ticket = ticket
        self.headers = rate_headers("requests", admitted.requests)
        if admitted.degraded:
            self.headers["x-weir-limits"] = "degraded"
        self.handed_over = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.handed_over:
            await self._governor.release_unheld(self)


class Hold:
    """Tokens and money set aside for one call; `covers` is asked before anything is delivered."""

    def __init__(self, admission: Admission, ticket: Ticket, rates: dict[str, Rates]) -> None:
        self.ticket = ticket
        self.rates = rates
        self.amount_nano = 0
        self.tokens = 0
        self._admission = admission
        self._extending: asyncio.Task[None] | None = None

    async def covers(self, counts: Counts) -> bool:
        """Whether output up to `counts` may be delivered; asks for more ahead of need, and waits only where the grant
        has run out. False: a hard budget's end. Raises: HoldLost when the reaper has booked the request."""
        ticket = self.ticket
        if ticket.lost:
            raise HoldLost(f"the hold of request {ticket.request_id} is gone")
        ticket.note(
            prompt_tokens=counts.prompt_tokens,
            cached_tokens=counts.cached_tokens,
            output_tokens=min(counts.completion_tokens, ticket.granted_output_tokens),
        )
        while counts.completion_tokens > ticket.granted_output_tokens:
            if ticket.at_end:
                return False
            before = ticket.granted_output_tokens
            await self._extended()
            if ticket.granted_output_tokens <= before:
                return False
        if ticket.needs_extension and self._extending is None:
            self._extending = asyncio.create_task(self._extend(), name="extend-hold")
        return True

    async def _extended(self) -> None:
        if self._extending is None:
            self._extending = asyncio.create_task(self._extend(), name="extend-hold")
        await asyncio.shield(self._extending)

    async def _extend(self) -> None:
        try:
            await self._admission.extend(self.ticket)
        except HoldLost:
            self.ticket.lost = True  # told at the next `covers`
        finally:
            self._extending = None

    async def finish_extending(self) -> None:
        """No extension may run while the hold is being settled."""
        if self._extending is not None:
            await asyncio.shield(self._extending)


class HitHold(msgspec.Struct):
    """What an answer served again is charged. `rates` None: no price is in force; `hold` None: nothing is charged."""

    ticket: Ticket
    rates: Rates | None
    hold: Hold | None = None

    async def covers(self, counts: Counts) -> bool:
        """As `Hold.covers`."""
        return self.hold is None or await self.hold.covers(counts)


class Governor:
    """One a process."""

    def __init__(
        self,
        *,
        admission: Admission,
        prices: PriceBook,
        booking: Booking,
        limits_redis: Redis,
        store: RedisStore | None,
        metrics: Metrics,
        deadline_s: float,
    ) -> None:
        """Args: deadline_s bounds all Redis work of a request before its answer, seconds."""
        self._admission = admission
        self._prices = prices
        self._booking = booking
        self._store = store
        self._shared = store is not None and store.redis is limits_redis
        self._metrics = metrics
        self._deadline_s = deadline_s
        self._leaving: dict[Ticket, asyncio.Future[None]] = {}

    # -- admit, and look up in the same trip

    async def admit(
        self, call: Call, plan: list[Target], lookup: ExactLookup | None
    ) -> tuple[AdmittedCall, ExactResult | None]:
        """Requests and concurrency; with it the exact lookup's result, None where nothing was looked up.

        Raises: QuotaDenied (nothing was taken), PolicyUnavailable.
        """
        model = plan[0].upstream.model
        ticket = await self._admission.open(call.principal, model, call.request_id, endpoint=call.endpoint)
        self._describe(ticket, call)
        try:
            admitted, exact = await self._admitted_late(ticket, lookup)
        except QuotaDenied as exc:
            self._metrics.refused(exc.limit)
            raise
        except asyncio.CancelledError:  # Redis may have admitted it: its slot would stay taken until it runs out
            await self._admission.release(ticket)
            raise
        return AdmittedCall(self, ticket, admitted), exact

    async def _admitted_late(self, ticket: Ticket, lookup: ExactLookup | None) -> tuple[Admitted, ExactResult | None]:
        """An answer leaves before its slot is given back: a client that asks again at once at the limit of concurrency
        waits for that, and is not refused for a request of its own that is over."""
        try:
            return await self._admitted(ticket, lookup)
        except QuotaDenied as exc:
            leaving = self._leaving_slots(ticket) if exc.limit == CONCURRENCY else []
            if not leaving:
                raise
        await asyncio.wait(leaving, timeout=self._deadline_s)
        return await self._admitted(ticket, lookup)

    def _leaving_slots(self, ticket: Ticket) -> list[asyncio.Future[None]]:
        slots = set(ticket.policy.leases)
        return [done for other, done in self._leaving.items() if slots.intersection(other.policy.leases)]

    @contextlib.contextmanager
    def leaving(self, ticket: Ticket) -> Iterator[None]:
        """Around what gives a ticket's slot back once its answer may go out."""
        self._leaving[ticket] = done = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            done.set_result(None)
            del self._leaving[ticket]

    def _describe(self, ticket: Ticket, call: Call) -> None:
        """What the reaper books with, should this process die."""
        ticket.stream = call.stream
        ticket.service_tier = call.service_tier
        ticket.route = call.model
        ticket.conversation_id = call.attribution.conversation_id
        ticket.end_user = call.attribution.end_user
        ticket.tags = dict(call.attribution.tags)

    async def _admitted(self, ticket: Ticket, lookup: ExactLookup | None) -> tuple[Admitted, ExactResult | None]:
        if lookup is None or not self._shared or self._admission.degraded:
            admitted = await self._admission.admit(ticket)
            if lookup is None or self._store is None or ticket.degraded:
                return admitted, None
            return admitted, await lookup.run(self._store.redis, timeout_s=self._deadline_s)
        stage = self._admission.admit_stage(ticket)
        commands = [*stage.commands, *lookup.commands]
        try:
            replies, used_s = await self._admission.trips.execute(commands, deadline_s=ticket.redis_left_s)
            ticket.redis_left_s -= used_s
            exact = lookup.parse(replies[1:])
            return stage.parse(replies[:1]), exact
        except ScriptsFlushed:
            return await self._admission.admit(ticket), exact
        except REDIS_ERRORS as exc:
            self._admission.note_away(exc)
            return self._admission.admit_locally(ticket), None

    async def costs(self, call: Call, route: Route) -> dict[str, int]:
        """What a million tokens in and out cost together, by model; those without a price are left out."""
        costs: dict[str, int] = {}
        for model in {target.upstream.model for target in route.targets}:
            with contextlib.suppress(UnknownPrice):
                rates = await self._prices.rates(call.principal.tenant_id, model, service_tier=call.service_tier)
                costs[model] = rates.input + rates.output
        return costs

    # -- hold

    async def hold(self, admitted: AdmittedCall, call: Call, plan: list[Target]) -> Hold:
        """Sets aside the prompt, the output asked for and the first slice of money, at the dearest rate of the plan.

        Raises: QuotaDenied (what admitting took is given back), UnknownPrice, LimitsUnavailable.
        """
        rates = await self._rates(call, plan)
        terms = HoldTerms(
            prompt_tokens=call.num_prompt_tokens,
            max_output_tokens=call.num_sequences * (call.sampling.max_tokens or 0),
            rates=max(rates.values(), key=lambda each: (each.output, each.input)),
            batch=call.batch,
        )
        held = await self._held(admitted, terms)
        call.metered = any(rule.hard is not None for rule, _ in admitted.ticket.budgets)
        admitted.headers.update(rate_headers("tokens", held.tokens))
        return Hold(self._admission, admitted.ticket, rates)

    async def _held(self, admitted: AdmittedCall, terms: HoldTerms) -> Held:
        try:
            held = await self._admission.hold(admitted.ticket, terms)
        except QuotaDenied as exc:
            self._metrics.refused(exc.limit)
            raise
        admitted.handed_over = True
        return held

    async def hold_hit(
        self, admitted: AdmittedCall, call: Call, *, share_ppm: int, outcome: str, saved: Counts
    ) -> HitHold:
        """Sets aside the exact price of an answer that was made before; it counts against no rate in tokens.

        Args: share_ppm is the part of its price that is charged; outcome the ledger's word for the cache.
        Raises: QuotaDenied (what admitting took is given back), UnknownPrice, LimitsUnavailable.
        """
        rates = await self._hit_rates(admitted.ticket, call, share_ppm)
        amount = rates.amounts(token_counts(saved, batch=call.batch)).total if rates is not None else 0
        if rates is None or not amount:
            return HitHold(admitted.ticket, rates)
        terms = HoldTerms(
            prompt_tokens=0, max_output_tokens=0, rates=rates, batch=call.batch, hit=outcome, exact_nano=amount
        )
        await self._held(admitted, terms)
        return HitHold(admitted.ticket, rates, Hold(self._admission, admitted.ticket, {}))

    async def hold_follower(self, admitted: AdmittedCall, call: Call, *, share_ppm: int, outcome: str) -> HitHold:
        """For a stream of another's generation, whose price is known at its end: the prompt and slices of output, as
        for a generation, at the share that is charged. Raises: as `hold_hit`."""
        rates = await self._hit_rates(admitted.ticket, call, share_ppm)
        if rates is None or rates.free:
            return HitHold(admitted.ticket, rates)
        terms = HoldTerms(
            prompt_tokens=call.num_prompt_tokens,
            max_output_tokens=call.num_sequences * (call.sampling.max_tokens or 0),
            rates=rates,
            batch=call.batch,
            hit=outcome,
        )
        await self._held(admitted, terms)
        return HitHold(admitted.ticket, rates, Hold(self._admission, admitted.ticket, {}))

    async def _hit_rates(self, ticket: Ticket, call: Call, share_ppm: int) -> Rates | None:
        """None where no price is in force, of which nothing would be charged. Raises: UnknownPrice."""
        try:
            rates = await self._prices.rates(call.principal.tenant_id, ticket.model, service_tier=call.service_tier)
        except UnknownPrice:
            if share_ppm:
                raise
            return None
        return rates.shared(share_ppm)

    async def _rates(self, call: Call, plan: list[Target]) -> dict[str, Rates]:
        """By model. Targets without a price leave the plan: they would be served for nothing. Raises: UnknownPrice."""
        rates: dict[str, Rates] = {}
        missing: UnknownPrice | None = None
        for target in list(plan):
            model = target.upstream.model
            if model in rates:
                continue
            try:
                rates[model] = await self._prices.rates(call.principal.tenant_id, model, service_tier=call.service_tier)
            except UnknownPrice as exc:
                missing = exc
                plan.remove(target)
        if missing is not None and not rates:
            raise missing
        return rates

    # -- the end

    async def book(self, hold: Hold, call: Call, route: Route, ending: Ending) -> None:
        """The row, durable; afterwards `release` settles the same amounts. Raises: LedgerUnavailable."""
        await hold.finish_extending()
        if hold.ticket.lost:
            return  # the reaper has booked it
        target = ending.target
        rates = hold.rates[target.upstream.model] if target is not None else next(iter(hold.rates.values()))
        hold.amount_nano = await self._booking.usage(hold.ticket, call, route, rates, ending)
        hold.tokens = ending.counts.prompt_tokens + ending.counts.completion_tokens

    async def release(self, hold: Hold, entry: Remembering | None) -> None:
        """Settles the hold and stores the answer: one trip where both use one Redis. Never raises for Redis."""
        ticket = hold.ticket
        if ticket.lost:
            return
        if entry is None or not self._shared or ticket.degraded:
            await self._admission.settle(ticket, amount_nano=hold.amount_nano, tokens=hold.tokens)
            if entry is not None and self._store is not None:
                await self._stored(entry)
            return
        stage = self._admission.settle_stage(ticket, amount_nano=hold.amount_nano, tokens=hold.tokens)
        commands = [*stage.commands, *entry.stage.commands]
        try:
            replies, _ = await self._admission.trips.execute(commands, deadline_s=self._deadline_s)
            await self._finish_storing(entry, replies[1:])
            stage.parse(replies[:1])
        except ScriptsFlushed:
            await self._admission.settle(ticket, amount_nano=hold.amount_nano, tokens=hold.tokens)
        except REDIS_ERRORS as exc:
            self._admission.note_away(exc)
            self._admission.settle_later(ticket, amount_nano=hold.amount_nano, tokens=hold.tokens)

    async def _stored(self, entry: Remembering) -> None:
        assert self._store is not None
        pipe = self._store.redis.pipeline(transaction=False)
        entry.stage.queue(pipe)
        try:
            async with LoopDeadline(self._deadline_s):
                await self._finish_storing(entry, await pipe.execute(raise_on_error=False))
        except STORE_TROUBLE as exc:
            log.warning("an answer was not stored: %s", type(exc).__name__)

    async def _finish_storing(self, entry: Remembering, replies: list[Any]) -> None:
        assert self._store is not None
        try:
            await self._store.finish(entry.stage, entry.keys, replies)
        except STORE_TROUBLE as exc:
            log.warning("an answer was not stored: %s", type(exc).__name__)

    async def book_hit(self, hit: HitHold, call: Call, route: Route, saved: Counts, ending: Ending) -> None:
        """An answer's row that was served again: what it is charged and what it saved. Raises: LedgerUnavailable,
        HoldLost when the reaper has booked it."""
        if hit.hold is not None:
            await hit.hold.finish_extending()
            if hit.ticket.lost:
                raise HoldLost(f"the hold of request {call.request_id} is gone")
        amount = await self._booking.hit(hit.ticket, call, route, rates=hit.rates, saved=saved, ending=ending)
        if hit.hold is not None:
            hit.hold.amount_nano = amount

    async def unhold_hit(self, admitted: AdmittedCall, hit: HitHold) -> None:
        """A follower's money given back: the request goes on, and holds anew for a generation of its own."""
        if hit.hold is not None:
            await hit.hold.finish_extending()
            await self._admission.unhold(hit.ticket)
            admitted.handed_over = False

    async def release_hit(self, hit: HitHold) -> None:
        """Settles what was held for a hit, where anything was: at 0 if it was not booked. Never raises for Redis."""
        if hit.hold is not None and not hit.ticket.lost:
            with self.leaving(hit.ticket):
                await self._admission.settle(hit.ticket, amount_nano=hit.hold.amount_nano, tokens=0)

    async def release_unheld(self, admitted: AdmittedCall) -> None:
        """The call ended without a hold."""
        admitted.handed_over = True
        await self._admission.release(admitted.ticket)


def rate_headers(kind: str, info: RateInfo | None) -> dict[str, str]:
    """x-ratelimit-limit/-remaining/-reset for `requests` or `tokens`."""
    if info is None:
        return {}
    return {
        f"x-ratelimit-limit-{kind}": str(info.limit),
        f"x-ratelimit-remaining-{kind}": str(max(0, info.remaining)),
        f"x-ratelimit-reset-{kind}": go_duration(info.reset_s),
    }


def go_duration(seconds: float) -> str:
    """Go's spelling, as OpenAI's headers have it: 12ms, 9s, 6m0s, 1h0m0s."""
    milliseconds = max(0, round(seconds * 1000))
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest_ms = divmod(milliseconds, 60_000)
    text = f"{rest_ms / 1000:g}s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{minutes}m{text}"
        if hours:
            text = f"{hours}h{text}"
    return text
