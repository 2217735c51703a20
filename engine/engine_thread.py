"""`EngineThread`: a core stepping on a thread of its own, commands in, outputs out. No torch until it builds.

Commands are read between steps, so a request or an abort takes effect within one step; the outputs of a step are
handed over in one call. With nothing to do the thread sleeps on its queue.

A step is watched by its progress, not by its length: a large model on a slow host takes minutes over one, yet ends a
layer every few seconds. It counts as hung once it has not come further for `watchdog_timeout_s`, or for four times as
long as parts of steps have lately taken on this host.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.config import EngineConfig
from engine.core_output import CoreOutput
from engine.types import EngineHealth

if TYPE_CHECKING:
    from engine.core import EngineCore

    Command = Callable[[EngineCore], list[CoreOutput] | None]

logger = logging.getLogger(__name__)

SLACK = 4.0
# A part of a step that took long makes the watchdog patient, but no more than this many times its setting; and by a
# thousandth less with every step since.
MAX_PATIENCE = 6.0
FORGETTING = 0.999


class EngineThread:
    """Args: on_outputs and on_death run on the event loop that called `start`; clock gives seconds, monotonic."""

    def __init__(
        self,
        config: EngineConfig,
        build: Callable[[EngineConfig], EngineCore],
        *,
        on_outputs: Callable[[list[CoreOutput]], None],
        on_death: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._build = build
        self._on_outputs = on_outputs
        self._on_death = on_death
        self._clock = clock
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._progress_at: float | None = None  # of the step under way
        self._longest_part_s = 0.0
        self.status = "starting"
        self.detail = ""

    async def start(self) -> EngineCore:
        """The core, built on the thread. Raises: ModelLoadError and whatever else building raises."""
        self._loop = asyncio.get_running_loop()
        ready: asyncio.Future[EngineCore] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="weir-engine", daemon=True)
        self._thread.start()
        try:
            core = await ready
        except Exception as exc:
            self.status, self.detail = "dead", f"{type(exc).__name__}: {exc}"
            raise
        self.status = "ready"
        return core

    def put(self, command: Command) -> None:
        """Runs a command on the engine's thread before its next step; from any thread."""
        self._commands.put(command)

    def health(self) -> EngineHealth:
        since = self._progress_at
        age = 0.0 if since is None else self._clock() - since
        timeout_s = self._config.watchdog_timeout_s
        limit_s = min(max(timeout_s, SLACK * self._longest_part_s), MAX_PATIENCE * timeout_s)
        if self.status in ("ready", "draining") and age > limit_s:
            detail = f"a step has come no further for {age:.0f} s"
            return EngineHealth(status="hung", detail=detail, last_step_age_s=age)
        return EngineHealth(status=self.status, detail=self.detail, last_step_age_s=age)

    def _note_progress(self) -> None:
        now = self._clock()
        if self._progress_at is not None:
            self._longest_part_s = max(self._longest_part_s, now - self._progress_at)
        self._progress_at = now

    async def close(self) -> None:
        """Ends the thread after its current step; closing twice is harmless."""
        if self.status == "dead":
            return
        self.status, self.detail = "dead", "the engine was closed"
        self._commands.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 30.0)

    def _run(self, ready: asyncio.Future[EngineCore]) -> None:
        try:
            core = self._build(self._config)
        except BaseException as exc:  # noqa: BLE001 - start() raises it
            self._post(_settle, ready, None, exc)
            return
        core.report_progress(self._note_progress)
        self._post(_settle, ready, core, None)
        try:
            while self._turn(core):
                pass
        except Exception as exc:  # the loop is lost: health says so, open streams fail
            logger.exception("the engine's loop ended")
            self.status, self.detail = "dead", f"{type(exc).__name__}: {exc}"
            self._post(self._on_death, f"the engine stopped: {type(exc).__name__}: {exc}")

    def _turn(self, core: EngineCore) -> bool:
        """Commands, then one step. Returns False when closed."""
        outputs: list[CoreOutput] = []
        while True:
            try:
                command = self._commands.get(block=not core.has_work and not outputs)
            except queue.Empty:
                break
            if command is None:
                return False
            try:
                outputs += command(core) or []
            except Exception:  # one bad command must not end everyone's engine
                logger.exception("a command to the engine failed")
        if core.has_work:
            self._longest_part_s *= FORGETTING
            self._progress_at = self._clock()
            outputs += core.step()
            self._note_progress()
            self._progress_at = None
        if outputs:
            self._post(self._on_outputs, outputs)
        return True

    def _post(self, function: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)


def build_real_core(config: EngineConfig) -> EngineCore:
    from engine.startup import build_core

    return build_core(config)


def _settle(future: asyncio.Future[EngineCore], core: EngineCore | None, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
        return
    assert core is not None, "built"
    future.set_result(core)
