"""What is wrong on this host, looked at without changing it: one finding a line, each with what to do about it."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import msgspec
import sqlalchemy as sa
from redis.exceptions import RedisError

from billing import db
from billing.errors import BillingError
from billing.service import refuse_evicting_redis
from engine.errors import ModelLoadError
from engine.model_config import ModelConfig, load_model_config
from engine.model_source import resolve_model
from gateway import redis_client
from gateway.embedded_redis import redis_url, socket_path
from gateway.settings import Settings
from gateway.startup import StartupError

GIB = 1 << 30
MIN_DISK_BYTES = 2 * GIB
MIN_OPEN_FILES = 4096
MAX_CLOCK_SKEW_S = 0.5
SLOW_REDIS_MS = 5.0


class Level(StrEnum):
    """fail: Weir does not start or loses money; warn: it works, worse than it could."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """One thing looked at. `remedy` is empty when there is nothing to do."""

    about: str
    level: Level
    detail: str
    remedy: str = ""


Check = Callable[[Settings], AsyncIterator[Finding]]


async def examine(settings: Settings) -> list[Finding]:
    """Every finding, in the order of starting up. A check that fails itself is a finding, not an exception."""
    findings: list[Finding] = []
    for check in (check_host, check_data_dir, check_secret, check_device, check_model, check_redis, check_database):
        try:
            findings.extend([finding async for finding in check(settings)])
        except (OSError, RedisError, sa.exc.SQLAlchemyError, BillingError, StartupError, ModelLoadError) as exc:
            findings.append(Finding(check.__name__.removeprefix("check_"), Level.FAIL, f"{type(exc).__name__}: {exc}"))
    return findings


async def check_host(_settings: Settings) -> AsyncIterator[Finding]:
    """Python and the number of files a process may open: each connection takes one."""
    version = ".".join(map(str, sys.version_info[:3]))
    fine = sys.version_info >= (3, 11)
    yield Finding("python", Level.OK if fine else Level.FAIL, version, "" if fine else "use Python 3.11 or newer")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft < MIN_OPEN_FILES
    yield Finding(
        "open files",
        Level.WARN if few else Level.OK,
        f"{soft} (hard limit {hard})",
        f"raise `ulimit -n` to {MIN_OPEN_FILES} or more: a stream takes one" if few else "",
    )


async def check_data_dir(settings: Settings) -> AsyncIterator[Finding]:
    """Room, rights, and rows that wait in the journal."""
    folder = settings.data_path
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        yield Finding("data_dir", Level.FAIL, f"{folder} cannot be written", "give --data-dir a folder of yours")
        return
    free = shutil.disk_usage(nearest).free
    full = free < MIN_DISK_BYTES
    yield Finding(
        "data_dir",
        Level.WARN if full else Level.OK,
        f"{folder}, {free / GIB:.1f} GiB free",
        f"keep {MIN_DISK_BYTES / GIB:.0f} GiB free: the journal and the database must be able to grow" if full else "",
    )
    waiting = sum(path.stat().st_size for path in (folder / "journal").glob("*") if path.is_file())
    yield Finding(
        "journal",
        Level.WARN if waiting else Level.OK,
        f"{waiting} bytes wait to be replayed" if waiting else "nothing waits",
        "they are booked when Weir next starts with its database; do not delete them" if waiting else "",
    )


async def check_secret(settings: Settings) -> AsyncIterator[Finding]:
    """The server secret: there, and its owner's alone. Its content is never shown."""
    path = settings.effective_secret_file
    if not path.exists():
        yield Finding("server secret", Level.OK, f"{path} will be made at the first start")
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    open_to_others = bool(mode & 0o077)
    yield Finding(
        "server secret",
        Level.FAIL if open_to_others else Level.OK,
        f"{path}, mode {mode:04o}",
        f"chmod 600 {path}" if open_to_others else "",
    )


async def check_device(settings: Settings) -> AsyncIterator[Finding]:
    """What the engine will run on."""
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            busy = free < settings.engine.gpu_memory_utilization * total * 0.9
            yield Finding(
                f"gpu {index}",
                Level.WARN if busy else Level.OK,
                f"{torch.cuda.get_device_name(index)}, {free / GIB:.1f} of {total / GIB:.1f} GiB free",
                "another process holds its memory; lower --gpu-memory-utilization or end it" if busy else "",
            )
        return
    wanted = settings.engine.device == "cuda"
    yield Finding(
        "device",
        Level.FAIL if wanted else Level.OK,
        f"CPU, {os.cpu_count()} cores, torch {torch.__version__}",
        "torch sees no CUDA device: check the driver, or leave --device out" if wanted else "",
    )


async def check_model(settings: Settings) -> AsyncIterator[Finding]:
    """The checkpoint can be found, and its weights and one full sequence fit."""
    if settings.engine.model == "none":
        yield Finding("model", Level.OK, "none: requests go to upstreams only")
        return
    folder = resolve_model(settings.engine.model, cache_dir=settings.data_path / "models", dtype=settings.engine.dtype)
    config = load_model_config(folder)
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    per_token = kv_bytes_per_token(config)
    longest = config.max_position if settings.engine.max_model_len in {"auto", -1} else settings.engine.max_model_len
    assert isinstance(longest, int)
    need = weights + per_token * longest
    have = _memory_bytes()
    short = need > have * settings.engine.gpu_memory_utilization
    yield Finding(
        "model",
        Level.WARN if short else Level.OK,
        f"{config.architecture}: weights {weights / GIB:.2f} GiB, KV {per_token} bytes a token, one sequence of "
        f"{longest} tokens {per_token * longest / GIB:.2f} GiB; {have / GIB:.1f} GiB of memory",
        f"lower --max-model-len to {max(0, int(have * 0.9) - weights) // per_token}" if short else "",
    )


def kv_bytes_per_token(config: ModelConfig) -> int:
    """Bytes one token's keys and values take over all layers, in two-byte elements."""
    return 2 * 2 * config.num_layers * config.num_kv_heads * config.head_dim


def _memory_bytes() -> int:
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


async def check_redis(settings: Settings) -> AsyncIterator[Finding]:
    """Reachable, new enough, never evicting, near, and with a clock like ours."""
    url = settings.redis_url
    if not url:
        if not socket_path(settings.data_path).exists():
            yield Finding("redis", Level.OK, "an embedded Valkey will be started")
            return
        url = redis_url(settings.data_path)
    async with redis_client.connect(url, socket_timeout=2.0, socket_connect_timeout=2.0) as redis:
        info = await redis.info("server")
        version = str(info.get("redis_version", "?"))
        old = tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < (6, 2)
        begun = time.perf_counter()
        seconds, micros = await redis.time()
        took_ms = (time.perf_counter() - begun) * 1000
        skew = abs(time.time() - took_ms / 2000 - (seconds + micros / 1e6))
        yield Finding("redis", Level.FAIL if old else Level.OK, f"version {version}", "use 6.2 or newer" if old else "")
        try:
            await refuse_evicting_redis(redis)
            yield Finding("redis eviction", Level.OK, "counters are never evicted")
        except BillingError as exc:
            yield Finding("redis eviction", Level.FAIL, str(exc), "set maxmemory-policy noeviction")
        slow = took_ms > SLOW_REDIS_MS
        yield Finding(
            "redis latency",
            Level.WARN if slow else Level.OK,
            f"{took_ms:.1f} ms a trip; a request makes three",
            "bring Redis nearer" if slow else "",
        )
        yield _clock("redis clock", skew)


async def check_database(settings: Settings) -> AsyncIterator[Finding]:
    """Reachable, at this version's schema, durable at commit, and with a clock like ours."""
    url = settings.effective_database_url
    is_sqlite = url.startswith("sqlite")
    if is_sqlite and not _sqlite_exists(url):
        yield Finding("database", Level.OK, "SQLite will be made at the first start")
        return
    current, head = await db.revisions(url)
    behind = current != head
    yield Finding(
        "schema",
        Level.WARN if behind else Level.OK,
        f"{current or 'empty'}, this version wants {head}",
        "weir migrate" if behind else "",
    )
    engine = db.create_engine(url)
    try:
        async with engine.connect() as connection:
            if is_sqlite:
                mode = await connection.scalar(sa.text("PRAGMA journal_mode"))
                full = await connection.scalar(sa.text("PRAGMA synchronous")) == 2
                yield _durability(f"SQLite, journal {mode}, synchronous {'FULL' if full else 'not FULL'}", full)
                return
            commit = await connection.scalar(sa.text("SHOW synchronous_commit"))
            fsync = await connection.scalar(sa.text("SHOW fsync"))
            now = await connection.scalar(sa.text("SELECT clock_timestamp()"))
            yield _durability(
                f"PostgreSQL, synchronous_commit {commit}, fsync {fsync}", commit != "off" and fsync == "on"
            )
            yield _clock("database clock", abs((datetime.now(UTC) - now).total_seconds()))
    finally:
        await engine.dispose()


def _sqlite_exists(url: str) -> bool:
    return Path(db.parse_database_url(url).database or "").exists()


def _durability(detail: str, durable: bool) -> Finding:
    remedy = "" if durable else "a crash would lose booked rows: turn synchronous commits on"
    return Finding("durability", Level.OK if durable else Level.FAIL, detail, remedy)


def _clock(about: str, skew_s: float) -> Finding:
    off = skew_s > MAX_CLOCK_SKEW_S
    return Finding(
        about,
        Level.WARN if off else Level.OK,
        f"{skew_s * 1000:.0f} ms from ours",
        "run NTP on both: budgets' days and keys' expiry go by clocks" if off else "",
    )
