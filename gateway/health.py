"""What is well and what is not: the engine's loop, the database, the limits' Redis."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from engine.client import EngineClient
from engine.errors import EngineUnavailable
from engine.types import EngineStats

PROBE_TIMEOUT_S = 1.0
ENGINE_ALIVE = frozenset({"ready", "starting", "draining"})


class HealthReport(msgspec.Struct, kw_only=True):
    """`status`: ok, degraded (Redis away: limits by the stated policy) or down. `checks` names each part's state."""

    status: str
    checks: dict[str, str]

    @property
    def ok(self) -> bool:
        return self.status != "down"


class Probe:
    """Asks every part, each within PROBE_TIMEOUT_S. `required` parts down mean down; `optional` ones degraded. Of
    several engines the worst counts: all are this process's own. `last_stats`: each model's."""

    def __init__(
        self,
        engine: EngineClient | None,
        *,
        required: Mapping[str, Callable[[], Awaitable[object]]],
        optional: Mapping[str, Callable[[], Awaitable[object]]],
        further: Sequence[EngineClient] = (),
    ) -> None:
        self.engines = [*([] if engine is None else [engine]), *further]
        self._required = required
        self._optional = optional
        self.drain_begun: float | None = None  # time.monotonic()
        self.last_stats: dict[str, EngineStats] = {}

    async def alive(self) -> HealthReport:
        """Only what restarting this process could mend: the engine."""
        engine = await self._engine_state()
        return HealthReport(status="ok" if engine in (*ENGINE_ALIVE, "none") else "down", checks={"engine": engine})

    async def ready(self) -> HealthReport:
        """Whether a request sent here now would be served."""
        names = [*self._required, *self._optional]
        probes = [*self._required.values(), *self._optional.values()]
        engine, *states = await asyncio.gather(self._engine_state(), *(_answers(probe) for probe in probes))
        checks = {"engine": engine, **dict(zip(names, states, strict=True))}
        if self.drain_begun is not None:
            return HealthReport(status="down", checks={**checks, "gateway": "draining"})
        down = engine not in ("ready", "none") or any(checks[name] != "ok" for name in self._required)
        degraded = any(checks[name] != "ok" for name in self._optional)
        return HealthReport(status="down" if down else "degraded" if degraded else "ok", checks=checks)

    async def _engine_state(self) -> str:
        if not self.engines:
            return "none"
        states = await asyncio.gather(*map(_state, self.engines))
        dead = [state for state in states if state not in ENGINE_ALIVE]
        return next((state for state in (*dead, *states) if state != "ready"), "ready")

    async def watch_engine(self, period_s: float = 1.0) -> None:
        """Keeps `last_stats` fresh for the metrics; runs until cancelled."""
        while self.engines:
            for engine in self.engines:
                with contextlib.suppress(EngineUnavailable):  # its process is being started again
                    self.last_stats[engine.model.name] = await engine.stats()
            await asyncio.sleep(period_s)


async def _state(engine: EngineClient) -> str:
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            return (await engine.health()).status
    except TimeoutError:
        return "hung"


async def _answers(probe: Callable[[], Awaitable[object]]) -> str:
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await probe()
    except TimeoutError:
        return "timeout"
    except Exception as exc:  # noqa: BLE001 - whatever a driver raises, the part is down; its name says how
        return type(exc).__name__
    return "ok"
