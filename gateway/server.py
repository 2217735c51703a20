"""`weir serve` step by step: lock, Redis, schema, demo, application, listen. Each step prints its line and seconds."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any

import click
import uvicorn

from gateway.demo import Demo, ensure_demo, greeting, write_env
from gateway.embedded_redis import DataDirLock, EmbeddedRedis
from gateway.http_protocol import BoundedHttpProtocol
from gateway.logs import configure_logging
from gateway.planes import Planes
from gateway.settings import Settings
from gateway.startup import StartupError


class Steps:
    """Prints start-up steps with their seconds."""

    def __init__(self, echo: Callable[[str], None] = click.echo) -> None:
        self._echo = echo
        self._begun = time.perf_counter()

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Callable[[str], None]]:
        """Times a step; the callable takes what to say of it."""
        begun = time.perf_counter()
        said: list[str] = []
        yield said.append
        self._echo(f"  {name:<10} {' '.join(said):<60} {time.perf_counter() - begun:6.1f} s")

    @property
    def total_s(self) -> float:
        return time.perf_counter() - self._begun


def serve(settings: Settings, *, demo: bool) -> None:
    """Runs until SIGTERM or Ctrl-C. Raises: StartupError."""
    import msgspec

    configure_logging(settings)
    lock = DataDirLock(settings.data_path)
    lock.acquire()
    steps = Steps()
    try:
        with contextlib.ExitStack() as stack:
            listeners = [_listen(settings, port) for port in (settings.port, *Planes(settings).ports)]
            for listener in listeners:
                stack.callback(listener.close)
            if not settings.redis_url:
                settings = msgspec.structs.replace(settings, redis_url=_start_redis(settings, steps, stack))
            _migrate(settings, steps)
            made = None
            if demo:
                with steps.step("demo") as say:
                    made = ensure_demo(settings)
                    say(f"tenant {made.tenant}, project {made.project}, key in {made.env_path}")
            _run(settings, listeners, steps, made)
    finally:
        lock.release()


def _listen(settings: Settings, port: int) -> socket.socket:
    # Bound before the model is loaded: a busy port is told at once, not after a minute of loading.
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, port))
    except OSError as exc:
        listener.close()
        raise StartupError(f"cannot listen on {settings.host}:{port}: {exc.strerror}; give another port") from exc
    return listener


def _start_redis(settings: Settings, steps: Steps, stack: contextlib.ExitStack) -> str:
    with steps.step("redis") as say:
        server = EmbeddedRedis(settings.data_path)
        server.start()
        stack.callback(server.stop)
        say(f"embedded Valkey at {server.socket}" + (" (adopted)" if server.adopted else ""))
    return server.url


def _migrate(settings: Settings, steps: Steps) -> None:
    from billing import db

    with steps.step("database") as say:
        before, head = asyncio.run(db.revisions(settings.effective_database_url))
        if before != head:
            asyncio.run(db.upgrade(settings.effective_database_url))
        kind = settings.effective_database_url.partition(":")[0].partition("+")[0]
        say(f"{kind}, schema {head}" + ("" if before == head else f" (was {before or 'empty'})"))


class _Server(uvicorn.Server):
    """Says when it listens: the engine is loaded in the application's lifespan, which `startup` waits for.

    At SIGTERM and Ctrl-C it goes on listening until what runs has ended, so that new requests are told to go elsewhere;
    uvicorn's own would close the port first.
    """

    def __init__(
        self, config: uvicorn.Config, on_ready: Callable[[], None], drain: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._drain = drain
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        # uvicorn's own would raise the signal again after draining: the exit status would be -15 and nothing after
        # `run` would happen. A second Ctrl-C ends at once.
        if self._loop is None or self._ending is not None or self.should_exit:
            self.force_exit = sig == signal.SIGINT and self._loop is not None
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._begin_to_end)

    def _begin_to_end(self) -> None:
        self._ending = self._ending or asyncio.create_task(self._end(), name="drain")

    async def _end(self) -> None:
        try:
            await self._drain()
        finally:
            self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._loop = asyncio.get_running_loop()
            gc.collect()
            gc.freeze()  # what was loaded stays: the collector need not walk it in the middle of a request
            self._on_ready()


def _run(settings: Settings, listeners: list[socket.socket], steps: Steps, made: Demo | None) -> None:
    from gateway.app import create_app

    scheme = "https" if settings.ssl_certfile else "http"
    host = "127.0.0.1" if settings.host in {"0.0.0.0", "::"} else settings.host  # noqa: S104 - shown, not bound
    base = f"{scheme}://{f'[{host}]' if ':' in host else host}:{listeners[0].getsockname()[1]}{settings.root_path}"
    begun = time.perf_counter()

    def ready() -> None:
        click.echo(f"  {'model':<10} {settings.engine.model:<60} {time.perf_counter() - begun:6.1f} s")
        click.echo(f"\nweir serves {base}/v1 after {steps.total_s:.1f} s")
        if made is not None:
            write_env(made, base)
            click.echo(greeting(made, base))

    app = create_app(settings)
    config = uvicorn.Config(app, log_config=None, access_log=False, server_header=False, **_uvicorn_options(settings))

    async def drain() -> None:
        app.state.parts.probe.drain_begun = time.monotonic()
        await app.state.in_flight.drain(settings.drain_timeout_s)

    server = _Server(config, ready, drain)
    server.run(sockets=listeners)
    if not server.started:
        raise StartupError("the application did not start; the log above says why")


def _uvicorn_options(settings: Settings) -> dict[str, Any]:
    return {
        "loop": "uvloop",
        "http": BoundedHttpProtocol,
        "ws": "none",
        "lifespan": "on",
        "root_path": settings.root_path,
        "proxy_headers": settings.proxy_headers,
        "forwarded_allow_ips": settings.forwarded_allow_ips,
        "ssl_certfile": settings.ssl_certfile or None,
        "ssl_keyfile": settings.ssl_keyfile or None,
        "timeout_graceful_shutdown": max(1, int(settings.drain_timeout_s)),
        "timeout_keep_alive": 75,
        "backlog": 4096,
    }
