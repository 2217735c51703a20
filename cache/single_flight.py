"""Single flight: identical concurrent misses make one generation, and everyone watches it being made.

    flight = flights.join(key, produce)         # key: partition.exact_key, so never across partitions
    async for event in flight: ...              # from the first event on, however late this participant came

`produce` is called for the first participant only, in a task of the flight's own: whoever leaves, the generation goes
on for the others, and it is cancelled (its iterator closed) when the last one left. Events are opaque. The key stays
joinable until `produce`'s iterator is exhausted, so work done after its last event (settling, storing) still shields
the model from a second generation.

Failing: the leader gets the exception that `produce` raised. A follower gets `LeaderFailed`, whose `delivered` says
whether it can be retried on its own without its client noticing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from cache.errors import LeaderFailed

E = TypeVar("E")
Produce = Callable[[], AsyncIterator[E]]

MAX_BUFFERED_EVENTS = 262_144  # later participants replay from the start, so all events of a flight are kept

WATCH_INTERVAL_S = 0.5  # how soon an abandoned generation is cancelled after the last outside follower left

log = logging.getLogger(__name__)


def _never(_event: object) -> bool:
    return False


class SingleFlight(Generic[E]):
    """The flights of one process. Used from one event loop."""

    def __init__(
        self,
        *,
        is_last: Callable[[E], bool] = _never,
        max_buffered_events: int = MAX_BUFFERED_EVENTS,
        watched: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        """`watched(key)`: whether somebody outside this process follows; asked when the last seat here was left."""
        self.is_last, self.max_buffered_events, self.watched = is_last, max_buffered_events, watched
        self._running: dict[str, _Generation[E]] = {}

    @property
    def num_running(self) -> int:
        return len(self._running)

    def join(self, key: str, produce: Produce[E]) -> Flight[E]:
        """A seat in the generation of `key`; starts it by `produce()` if none runs. Close the seat when done."""
        generation = self._running.get(key)
        if generation is not None and generation.joinable:
            return Flight(generation, leader=False)
        generation = _Generation(key, produce, self)
        self._running[key] = generation
        return Flight(generation, leader=True)

    async def close(self) -> None:
        """Cancels what still runs; its participants get LeaderFailed."""
        generations = list(self._running.values())
        for generation in generations:
            generation.task.cancel()
        await asyncio.gather(*(generation.task for generation in generations), return_exceptions=True)

    def _ended(self, generation: _Generation[E]) -> None:
        if self._running.get(generation.key) is generation:
            del self._running[generation.key]


class Flight(Generic[E]):
    """One participant's seat: an async iterator over all events, and an async context manager that leaves the seat."""

    def __init__(self, generation: _Generation[E], *, leader: bool) -> None:
        self._generation = generation
        self._next = 0
        self._left = False
        self.leader = leader
        generation.num_seats += 1

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        """Raises: what `produce` raised (leader), LeaderFailed (follower)."""
        generation = self._generation
        while self._next >= len(generation.events) and not generation.ended:
            await generation.wait()
        if self._next < len(generation.events):
            self._next += 1
            return generation.events[self._next - 1]
        if generation.error is None:
            raise StopAsyncIteration
        if self.leader:
            raise generation.error
        message = f"the generation that {self._next} events came from failed: {type(generation.error).__name__}"
        raise LeaderFailed(message, delivered=self._next) from generation.error

    def leave(self) -> None:
        """Gives the seat up; the last one to leave cancels the generation. Leaving twice is harmless."""
        if self._left:
            return
        self._left = True
        self._generation.seat_left()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()


class _Generation(Generic[E]):
    """One running `produce`, its events so far, and the seats that watch it."""

    def __init__(self, key: str, produce: Produce[E], flights: SingleFlight[E]) -> None:
        self.key, self._flights = key, flights
        self.events: list[E] = []
        self.error: Exception | None = None
        self.ended = False
        self._finishing = False
        self.num_seats = 0
        self._farewell: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(self._run(produce), name=f"flight-{key[:12]}")

    @property
    def joinable(self) -> bool:
        return not self.ended and not self.task.cancelling() and len(self.events) <= self._flights.max_buffered_events

    async def wait(self) -> None:
        """Until there is another event or the end. One Event per change, so that no waiter misses one or spins."""
        await self._changed.wait()

    def seat_left(self) -> None:
        self.num_seats -= 1
        if self.num_seats or self.ended or self._finishing:
            return
        if self._flights.watched is None:
            self.task.cancel()
        elif self._farewell is None:
            self._farewell = asyncio.create_task(self._cancel_when_unwatched(self._flights.watched))

    async def _cancel_when_unwatched(self, watched: Callable[[str], Awaitable[bool]]) -> None:
        while await watched(self.key):
            await asyncio.wait([self.task], timeout=WATCH_INTERVAL_S)
            if self.num_seats or self.ended or self._finishing:
                break
        self._farewell = None
        if not (self.num_seats or self.ended or self._finishing):
            self.task.cancel()

    async def _run(self, produce: Produce[E]) -> None:
        iterator = produce()
        try:
            async for event in iterator:
                self.events.append(event)
                self._finishing = self._flights.is_last(event)
                self._notify()
        except asyncio.CancelledError:
            self.error = LeaderFailed("the generation was cancelled", delivered=len(self.events))
            raise
        except Exception as exc:  # noqa: BLE001  # supervises foreign code: handed on to every participant
            self.error = exc
        finally:
            await _close(iterator)
            self.ended = True
            self._flights._ended(self)
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


async def _close(iterator: AsyncIterator[E]) -> None:
    """Closes a generator at once rather than when it is collected, so that an abort reaches the engine."""
    aclose = getattr(iterator, "aclose", None)
    if aclose is None:
        return
    try:
        await aclose()
    except Exception:
        log.exception("closing a flight's generation failed")
