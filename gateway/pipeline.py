"""The road of one inference request, top to bottom: admit, look up, hold, route, generate, settle, remember.

Every inference endpoint goes through it. `Exchange.pieces` is that road; what an endpoint does with the pieces is its
presenter's business. Settling happens for every ending, and pieces that carry a finish reason leave only after the
ledger row is durable. Cache hits and followers of another's generation (single flight) have a row of their own kind,
and pay what the tenant's cache policy says.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec import UnsetType

from billing.tables import EntryStatus
from cache.errors import LeaderFailed
from cache.outcome import Outcome, Reason
from cache.shared_flight import SharedFlight
from gateway.answers import Found, Lookup, ResponseCache
from gateway.attempts import Attempts
from gateway.background import Background
from gateway.booking import Ending
from gateway.calls import Call, Choice, Counts, Piece, gather
from gateway.errors import GatewayError, RequestTimeout
from gateway.faults import KNOWN, as_gateway_error
from gateway.flights import Served, finishes
from gateway.governor import AdmittedCall, Governor, HitHold, Hold
from gateway.metrics import Metrics
from gateway.presenters.notes import note
from gateway.routing import Route, Router, Target
from gateway.schemas.common import WeirNote
from gateway.shadowing import Shadow
from gateway.splicing import Diverged, Shown
from gateway.thrift import SoftBudgets

_FOLLOWED = Found(outcome=Outcome.HIT, reason=Reason.FLIGHT)


class Pipeline:
    """What the requests of this process share."""

    def __init__(
        self,
        *,
        governor: Governor,
        cache: ResponseCache,
        router: Router,
        metrics: Metrics,
        background: Background,
        flights: SharedFlight[Served] | None,
        shares_flights: bool = False,
        shadow: Shadow | None = None,
        soft_budgets: SoftBudgets | None = None,
    ) -> None:
        """Args: flights None where nothing is cached; shares_flights: other gateways use the cache's Redis too."""
        self.governor = governor
        self.cache = cache
        self.router = router
        self.metrics = metrics
        self.background = background
        self._soft_budgets = soft_budgets or SoftBudgets()
        self.flights = flights
        self.shares_flights = shares_flights
        self.shadow = shadow

    async def plan(self, call: Call, route: Route) -> list[Target]:
        """The targets in the order this request tries them."""
        thrifty = call.prefer_cheaper or self._soft_budgets.reached(call.principal)
        if len(route.targets) > 1 and (thrifty or route.strategy == "cheapest"):
            prices = await self.governor.costs(call, route)
            return self.router.plan(route, cost=prices.get, prefer_cheaper=thrifty)
        return self.router.plan(route)

    def begin(self, call: Call) -> Exchange:
        """Raises: ModelNotFound before anything is taken."""
        return Exchange(self, call, self.router.resolve(call.model, call.principal))


class Exchange:
    """One request on its road. `headers` are known once the first pieces have come."""

    def __init__(self, pipeline: Pipeline, call: Call, route: Route) -> None:
        self.call = call
        self.route = route
        self.counts = Counts()
        self.headers: dict[str, str] = {}
        self._found = Found(outcome=Outcome.BYPASS)
        self._pipeline = pipeline
        self._plan: list[Target] = []
        self._first_at: float | None = None
        self._truncated_reason: str | None = None
        self._served_by: str | None = None
        self._pays = False
        self._hit: HitHold | None = None  # of a stream that watches another's generation, until it is booked
        self._shown = Shown()  # of the same stream
        self._looked_up: Found | None = None

    @property
    def fingerprint(self) -> str:
        """Changes when the numerics may: over the revisions of the models behind the name."""
        revisions = "|".join(target.upstream.revision for target in self.route.targets)
        return "fp_" + hashlib.sha256(revisions.encode()).hexdigest()[:12]

    def note(self) -> WeirNote | UnsetType:
        """What OpenAI's fields have no room for."""
        return note(
            truncated_reason=self._truncated_reason,
            served_by=self._served_by if self.route.is_alias else None,
            estimated=self.counts.estimated,
            dropped_turns=self.call.dropped_turns,
        )

    async def collect(self) -> list[Choice]:
        """The whole answer, for a plain call. Raises: GatewayError."""
        choices: dict[int, Choice] = {}
        async with aclosing(self.pieces()) as stream:
            async for pieces in stream:
                gather(choices, pieces)
        return [choices[index] for index in sorted(choices)]

    async def pieces(self) -> AsyncGenerator[list[Piece], None]:
        """The road. Raises: GatewayError, and nothing else on purpose."""
        pipeline, call = self._pipeline, self.call
        pipeline.metrics.in_flight.inc()
        try:
            self._plan = await pipeline.plan(call, self.route)
            lookup = pipeline.cache.prepare(call, self.route)
            admitted, exact = await pipeline.governor.admit(call, self._plan, lookup.stage)
            self.headers = admitted.headers
            async with admitted:
                found = self._looked_up = await pipeline.cache.look_up(lookup, exact)
                self._say(found)
                road = self._replayed(admitted, lookup, found) if found.hit else self._generated(admitted, lookup)
                async with aclosing(road) as stream:
                    async for pieces in stream:
                        yield pieces
        except KNOWN as exc:
            raise self._refusal(as_gateway_error(exc)) from exc
        except GatewayError as exc:
            raise self._refusal(exc) from exc.__cause__
        finally:
            pipeline.metrics.in_flight.dec()
            if self._looked_up is not None:  # once, as it came out: a miss may yet become a follower
                pipeline.metrics.cache_lookup(self._found.outcome, self._found.reason)

    def _refusal(self, error: GatewayError) -> GatewayError:
        error.headers = {**self.headers, **error.headers}
        return error

    def _say(self, found: Found) -> None:
        """x-weir-cache, as long as headers have not left."""
        self._found = found
        self.headers["x-weir-cache"] = found.header

    def _mark_first(self) -> None:
        if self._first_at is None:
            self._first_at = time.monotonic()
            waited = self._first_at - self.call.accepted_at
            self._pipeline.metrics.first_token(self.call.endpoint, self.route.name, waited)

    # -- look up: the answer was already paid for

    async def _replayed(
        self, admitted: AdmittedCall, lookup: Lookup, found: Found
    ) -> AsyncGenerator[list[Piece], None]:
        """A remembered answer: its known price is held before anything is told, and it has a row of its own."""
        hit = await self._pipeline.governor.hold_hit(
            admitted,
            self.call,
            share_ppm=lookup.policy.hit_share_ppm,
            outcome=found.booked_as,
            saved=found.counts,
        )
        self.counts = found.counts
        self._mark_first()
        await self._book_hit(hit, found.counts)
        shadow = self._pipeline.shadow
        if shadow is not None and found.outcome is Outcome.SEMANTIC:
            shadow.consider(self.call, self.route, self._plan, lookup, found)
        yield found.pieces()

    async def _book_hit(self, hit: HitHold, saved: Counts, status: EntryStatus | None = None) -> None:
        self._hit = None
        if status is None:
            status = EntryStatus.OK if self._truncated_reason is None else EntryStatus.BUDGET_CUT
        settling = self._settle_hit(hit, saved, self._ending(status, {}))
        await self._pipeline.background.finish(settling, name="settle-hit")

    async def _settle_hit(self, hit: HitHold, saved: Counts, ending: Ending) -> None:
        """The row, durable; what was held is settled behind the answer. Raises: LedgerUnavailable, HoldLost."""
        pipeline = self._pipeline
        try:
            await pipeline.governor.book_hit(hit, self.call, self.route, saved, ending)
        finally:
            pipeline.background.spawn(pipeline.governor.release_hit(hit), name="release-hit")
        self._measure(ending.status, Counts())

    # -- generate, alone or watching another's generation of the same answer

    async def _generated(self, admitted: AdmittedCall, lookup: Lookup) -> AsyncGenerator[list[Piece], None]:
        # A caller's own deadline ends its own request only: it neither leads others nor waits for them.
        flights, key = self._pipeline.flights, lookup.flight_key
        if flights is None or key is None or self.call.own_deadline:
            road = self._paid(admitted, lookup)
        else:
            road = self._shared(flights, key, admitted, lookup)
        async with aclosing(road) as stream:
            async for served in stream:
                yield self._seen(served)

    async def _shared(
        self, flights: SharedFlight[Served], key: str, admitted: AdmittedCall, lookup: Lookup
    ) -> AsyncGenerator[Served, None]:
        """Leads the generation or follows it. A plain follower keeps what it sees until the end, so that it can be
        answered by a generation of its own where the followed one fails or is cut by its payer's budget."""
        road = self._joined(flights, key, admitted, lookup)
        status = EntryStatus.FAILED
        try:
            async with aclosing(road) as stream:
                async for served in stream:
                    yield served
        except (asyncio.CancelledError, GeneratorExit):
            status = EntryStatus.CLIENT_DISCONNECT
            raise
        finally:
            if self._hit is not None and self._hit.hold is not None:  # what was shown is charged, as if generated
                await self._book_hit(self._hit, self.counts, status)

    async def _joined(
        self, flights: SharedFlight[Served], key: str, admitted: AdmittedCall, lookup: Lookup
    ) -> AsyncGenerator[Served, None]:
        call = self.call
        here_only = lookup.alone or not self._pipeline.shares_flights
        whole, failure = False, None
        while not whole:
            kept: list[Served] = []
            # The first here may itself follow another gateway: who pays is who is asked to produce.
            flight = flights.join(call.principal.tenant_id, key, lambda: self._paid(admitted, lookup), alone=here_only)
            async with flight:
                try:
                    async for served in flight:
                        if self._pays:
                            yield served
                        elif call.stream:
                            watched = await self._watched(admitted, lookup, served)
                            yield watched
                            if watched is not served:
                                break
                        else:
                            kept.append(served)
                    whole = True
                except LeaderFailed as exc:
                    if self._pays or (flight.leader and not exc.delivered):
                        raise
                    if call.stream and exc.delivered:
                        failure = exc
                        break
                    whole = bool(kept) and finishes(kept[-1].pieces)  # its payer's row is durable, so it is an answer
        if failure is not None:
            async with aclosing(self._continued(admitted, lookup, failure)) as stream:
                async for served in stream:
                    yield served
            return
        if kept and kept[-1].truncated_reason is not None:
            async with aclosing(self._paid(admitted, lookup)) as stream:
                async for served in stream:
                    yield served
            return
        if kept:
            self._say(_FOLLOWED)
            hit = await self._pipeline.governor.hold_hit(
                admitted,
                call,
                share_ppm=lookup.policy.hit_share_ppm,
                outcome=_FOLLOWED.booked_as,
                saved=kept[-1].counts,
            )
            await self._book_hit(hit, kept[-1].counts)
        for served in kept:
            yield served

    async def _watched(self, admitted: AdmittedCall, lookup: Lookup, served: Served) -> Served:
        """An event of a generation that somebody else pays for, or the end that this request's own budget makes of it;
        the last one waits for this request's own row."""
        if self._hit is None:
            self._say(_FOLLOWED)
            self._hit = await self._pipeline.governor.hold_follower(
                admitted, self.call, share_ppm=lookup.policy.hit_share_ppm, outcome=_FOLLOWED.booked_as
            )
        if not await self._hit.covers(served.counts):
            pieces = [Piece(index=index, finish_reason="length") for index in range(self.call.num_choices)]
            served = Served(pieces, self.counts, "budget")
        self._shown.add(served.pieces)
        if finishes(served.pieces):
            self._truncated_reason = served.truncated_reason
            await self._book_hit(self._hit, served.counts)
        return served

    async def _continued(
        self, admitted: AdmittedCall, lookup: Lookup, failure: LeaderFailed
    ) -> AsyncGenerator[Served, None]:
        """A stream whose leader failed after it had shown tokens generates on its own what must begin with the same.

        Raises: LeaderFailed where it cannot or does not begin with the same."""
        if not self._shown.can_go_on(self.call):
            raise failure
        if self._hit is not None:
            await self._pipeline.governor.unhold_hit(admitted, self._hit)
            self._hit = None  # not before: whoever leaves meanwhile is charged for what was shown
        assert self._looked_up is not None
        self._found = self._looked_up  # no hit any more: it pays
        async with aclosing(self._paid(admitted, lookup)) as stream:
            async for served in stream:
                try:
                    pieces = self._shown.beyond(served.pieces)
                except Diverged:
                    await stream.athrow(failure)  # its row says failed, not that the client has left
                    raise failure from None
                if pieces:
                    yield msgspec.structs.replace(served, pieces=pieces)

    def _seen(self, served: Served) -> list[Piece]:
        self.counts = served.counts
        self._mark_first()
        return served.pieces

    # -- hold, route, generate, settle, remember: the generation that is paid for

    async def _paid(self, admitted: AdmittedCall, lookup: Lookup) -> AsyncGenerator[Served, None]:
        """Runs in the flight's own task when there is one: it goes on while anybody watches."""
        pipeline, call = self._pipeline, self.call
        if admitted.handed_over:  # this request has left while it followed another gateway, and was released
            raise LeaderFailed("the request that was to pay has left", delivered=0)
        self._pays = True
        hold = await pipeline.governor.hold(admitted, call, self._plan)
        if admitted.ticket.ended:  # it left while the hold was on its way, for those who still watch
            await pipeline.governor.release(hold, None)
            raise LeaderFailed("the request that was to pay has left", delivered=0)
        attempts = Attempts(call, self.route, self._plan, pipeline.metrics)
        withheld: list[Piece] = []
        choices: dict[int, Choice] = {}
        counts, status = Counts(), EntryStatus.FAILED
        try:
            async with aclosing(attempts.run()) as steps:
                async for step in steps:
                    if not await hold.covers(step.counts):
                        self._cut(choices, withheld)
                        break
                    counts = step.counts
                    gather(choices, step.pieces)
                    if now := _split(step.pieces, withheld):
                        yield Served(now, counts)
            if self._shown.repeated:  # else its end is no end of what was shown, and its stream gets an error for it
                status = EntryStatus.OK if self._truncated_reason is None else EntryStatus.BUDGET_CUT
        except (asyncio.CancelledError, GeneratorExit):
            # A batch's line will be asked again under the same id; the books then correct this row to its real end.
            status = EntryStatus.INTERRUPTED if call.batch else EntryStatus.CLIENT_DISCONNECT
            raise
        except RequestTimeout:
            status = EntryStatus.TIMEOUT
            raise
        finally:
            self._served_by = attempts.target.label if attempts.target is not None else None
            ending = self._ending(status, choices, attempts, counts)
            await pipeline.background.finish_first(
                lambda durable: self._settle(hold, lookup, ending, choices, durable), name="settle"
            )
        yield Served(withheld, counts, self._truncated_reason)

    def _cut(self, choices: dict[int, Choice], withheld: list[Piece]) -> None:
        """A hard budget's last granted token was reached: every open choice ends with `length`."""
        self._truncated_reason = "budget"
        for index in range(self.call.num_choices):
            if index not in choices or choices[index].finish_reason is None:
                piece = Piece(index=index, finish_reason="length")
                withheld.append(piece)
                gather(choices, [piece])

    async def _settle(
        self, hold: Hold, lookup: Lookup, ending: Ending, choices: dict[int, Choice], durable: asyncio.Future[None]
    ) -> None:
        """The row, durable; what follows it in Redis does not hold up the answer. Raises: LedgerUnavailable."""
        pipeline = self._pipeline
        try:
            await pipeline.governor.book(hold, self.call, self.route, ending)
        except BaseException:
            # Not in the books: what was held goes back, or the heartbeat would keep it for good.
            pipeline.background.spawn(pipeline.governor.release(hold, None), name="release")
            raise
        self._measure(ending.status, ending.counts)
        with pipeline.governor.leaving(hold.ticket):
            durable.set_result(None)
            await self._release(hold, lookup, ending, choices)

    async def _release(self, hold: Hold, lookup: Lookup, ending: Ending, choices: dict[int, Choice]) -> None:
        """What was held goes back, and the answer is remembered."""
        cache, entry = self._pipeline.cache, None
        if ending.status is EntryStatus.OK:
            await cache.embed_refreshed(lookup)
            entry = cache.entry(lookup, self.call, ending.counts, list(choices.values()))
        await self._pipeline.governor.release(hold, entry)

    def _ending(
        self,
        status: EntryStatus,
        choices: dict[int, Choice],
        attempts: Attempts | None = None,
        counts: Counts | None = None,
    ) -> Ending:
        call = self.call
        reasons = sorted({choice.finish_reason for choice in choices.values() if choice.finish_reason})
        return Ending(
            status=status,
            counts=counts or Counts(),
            target=attempts.target if attempts is not None else None,
            finish_reason=",".join(reasons)[:32] or None,
            cache_outcome=self._found.booked_as,
            ttft_s=self._first_at - call.accepted_at if self._first_at is not None else None,
            latency_s=time.monotonic() - call.accepted_at,
        )

    def _measure(self, status: EntryStatus, counts: Counts) -> None:
        self._pipeline.metrics.finished(
            self.call.endpoint,
            self.route.name,
            status,
            time.monotonic() - self.call.accepted_at,
            prompt=counts.prompt_tokens,
            cached=counts.cached_tokens,
            completion=counts.completion_tokens,
        )


def _split(pieces: list[Piece], withheld: list[Piece]) -> list[Piece]:
    """What may go out now; finish reasons are moved to `withheld` until the row is durable."""
    now: list[Piece] = []
    for piece in pieces:
        if piece.finish_reason is None:
            now.append(piece)
            continue
        withheld.append(Piece(index=piece.index, finish_reason=piece.finish_reason, stop_reason=piece.stop_reason))
        rest = msgspec.structs.replace(piece, finish_reason=None, stop_reason=None)
        if not rest.empty or rest.token_ids or rest.prompt_logprobs:
            now.append(rest)
    return now
