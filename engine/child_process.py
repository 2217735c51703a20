"""The child engine's process: one core, a Unix socket, any number of gateway workers.

Started by `ChildClient` as `python -m engine.child_process SOCKET` with the config as one JSON line on stdin. It never
outlives its parent: the kernel kills it with the parent's death signal, and stdin's end is watched as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import itertools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.config import EngineConfig
from engine.core_output import CoreOutput
from engine.engine_thread import EngineThread, build_real_core
from engine.errors import EngineError
from engine.wire import (
    Abort,
    Ask,
    FromEngine,
    Generate,
    Outputs,
    Ready,
    Refused,
    Report,
    StopSequence,
    ToEngine,
    frame,
    read_to_engine,
)

if TYPE_CHECKING:
    from engine.core import EngineCore

logger = logging.getLogger(__name__)

# A worker that does not read for this many bytes of deltas (some hundred thousand tokens) is cut off.
MAX_UNREAD_BYTES = 32 << 20
_PR_SET_PDEATHSIG = 1


class EngineServer:
    """Serves one engine on a Unix socket. Request ids are made unique per connection inside the core."""

    def __init__(self, config: EngineConfig, build: Callable[[EngineConfig], EngineCore] = build_real_core) -> None:
        self._thread = EngineThread(config, build, on_outputs=self._deliver, on_death=self._die, clock=time.monotonic)
        self._core: EngineCore | None = None
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._open: dict[str, set[str]] = {}
        self._numbers = itertools.count()
        self._ended = asyncio.Event()

    async def run(self, socket_path: Path) -> None:
        """Loads the model, then serves until the engine dies. Raises: ModelLoadError."""
        self._core = await self._thread.start()
        gc.collect()
        gc.freeze()  # what was loaded stays: the collector need not walk it in the middle of a step
        temporary = socket_path.with_suffix(f".{os.getpid()}")
        server = await asyncio.start_unix_server(self._serve, temporary)
        temporary.chmod(0o600)
        # Renamed into place, so that a socket that can be seen is one that answers, to its owner alone.
        temporary.rename(socket_path)
        async with server:
            await self._ended.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = str(next(self._numbers))
        self._writers[connection], self._open[connection] = writer, set()
        assert self._core is not None, "serves only once loaded"
        try:
            self._send(connection, Ready(self._core.info))
            while True:
                message = await read_to_engine(reader)
                if isinstance(message, Generate) and message.request.sampling.grammar is not None:
                    # May take seconds to compile. Only this connection waits, so that its messages keep their order.
                    with contextlib.suppress(EngineError):  # said again, to the caller, when it is accepted
                        await asyncio.to_thread(self._core.validate, message.request)
                self._handle(connection, message)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the worker left
        except ValueError as exc:
            logger.warning("connection %s sent no message: %s", connection, exc)
        finally:
            del self._writers[connection]
            for name in self._open.pop(connection):
                self._thread.put(lambda core, name=name: core.abort(name))  # type: ignore[misc]
            writer.close()

    def _handle(self, connection: str, message: ToEngine) -> None:
        assert self._core is not None, "serves only once loaded"
        match message:
            case Generate(request):
                inner = msgspec.structs.replace(request, request_id=f"{connection}:{request.request_id}")
                try:
                    accepted = self._core.accept(inner)
                except EngineError as exc:
                    self._send(connection, Refused.of(request.request_id, exc))
                    return
                self._open[connection].add(inner.request_id)
                self._thread.put(lambda core: core.add(accepted))
            case Abort(request_id):
                self._thread.put(lambda core: core.abort(f"{connection}:{request_id}"))
            case StopSequence(request_id, index):
                self._thread.put(lambda core: core.stop_sequence(f"{connection}:{request_id}", index))
            case Ask(number):
                self._send(connection, Report(number, self._core.stats(), self._thread.health()))

    def _deliver(self, outputs: list[CoreOutput]) -> None:
        batches: dict[str, list[CoreOutput]] = {}
        for output in outputs:
            connection, _, request_id = output.request_id.partition(":")
            if connection not in self._writers:
                continue
            if output.request_done:
                self._open[connection].discard(output.request_id)
            output.request_id = request_id
            batches.setdefault(connection, []).append(output)
        for connection, batch in batches.items():
            self._send(connection, Outputs(batch))

    def _send(self, connection: str, message: FromEngine) -> None:
        writer = self._writers[connection]
        if writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            logger.error("connection %s does not read: cut off", connection)
            writer.transport.abort()
            return
        writer.write(frame(message))

    def _die(self, message: str) -> None:
        logger.error("%s", message)
        self._ended.set()


def _tie_to_parent(parent: int) -> None:
    """The kernel kills this process when its parent dies, even by SIGKILL. (Linux; stdin's end serves elsewhere.)"""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent is gone")


def _exit_at_end_of_stdin() -> None:
    while os.read(0, 4096):  # not sys.stdin: a thread inside it at exit aborts the interpreter
        pass
    os._exit(0)


def main(arguments: list[str]) -> None:
    socket_path, parent = Path(arguments[0]), int(arguments[1])
    _tie_to_parent(parent)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="engine: %(levelname)s %(name)s: %(message)s")
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    threading.Thread(target=_exit_at_end_of_stdin, name="parent-watch", daemon=True).start()
    # Both are the parent's to handle: it drains first, while service managers signal the whole group at once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    async def serve() -> None:
        await EngineServer(config).run(socket_path)

    try:
        asyncio.run(serve())
    except EngineError as exc:
        # The parent reads the last line to tell why the start failed.
        sys.exit(f"{type(exc).__name__}: {exc}")


if __name__ == "__main__":
    main(sys.argv[1:])
