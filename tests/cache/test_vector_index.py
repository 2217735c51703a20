"""The contract of a vector index: exact, its own partition only, read-your-writes between gateways, trouble is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
from redis.asyncio import Redis

from cache.flat_index import FlatIndex
from cache.invalidation import Invalidator, Selection
from cache.outcome import Reason
from cache.policy import CachePolicy
from cache.redisearch_index import RediSearchIndex
from cache.semantic import VectorIndex
from cache.store import RedisStore
from gateway.redis_client import connect
from tests.cache.support import RedisServer, chat, entry, expired, keys_of

DIMS = 32

Make = Callable[[], VectorIndex]


@pytest.fixture(params=["flat", "redisearch"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
async def redis(
    kind: str, servers: Callable[[str], RedisServer], request: pytest.FixtureRequest
) -> AsyncIterator[Redis]:
    server = servers("valkey-9.1" if kind == "flat" else "redisearch")
    client = Redis(unix_socket_path=server.socket, protocol=request.param)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
async def make(kind: str, redis: Redis, store: RedisStore) -> Make:
    """A gateway's index; each call is another gateway."""
    if kind == "redisearch":
        await RediSearchIndex(redis, prefix=store.prefix, dims=DIMS).create()
        return lambda: RediSearchIndex(redis, prefix=store.prefix, dims=DIMS)
    return lambda: FlatIndex(redis, dims=DIMS)


def unit(*parts: float) -> np.ndarray:
    vector = np.zeros(DIMS, np.float32)
    vector[: len(parts)] = parts
    return vector / np.linalg.norm(vector)


async def put(store: RedisStore, text: str, vector: np.ndarray, *, policy: CachePolicy | None = None, **request) -> str:
    stored = entry(chat(text, **request), vector=vector.astype("<f4").tobytes(), policy=policy or CachePolicy())
    assert await store.store(stored, timeout_s=60)
    return stored.entry_id


async def search(index: VectorIndex, store: RedisStore, vector: np.ndarray, threshold: float = 0.9, **request):
    """A lookup as the gateway makes it: the exact stage first, whose version goes into the search."""
    asked = chat("asked", **request)
    partition, key = keys_of(asked)
    version = (await store.lookup(asked.tenant, key, partition).run(store.redis, timeout_s=60)).version
    return await index.search(
        store.keys(asked.tenant), partition, version, vector, threshold=threshold, limit=4, timeout_s=60
    )


async def test_the_nearest_come_first_with_their_cosine_and_none_under_the_threshold(make: Make, store) -> None:
    near, nearer = await put(store, "near", unit(1, 0.3)), await put(store, "nearer", unit(1, 0.1))
    await put(store, "far", unit(0, 1))
    found = await search(make(), store, unit(1))
    assert [candidate.entry_id for candidate in found] == [nearer, near]
    for candidate, vector in zip(found, (unit(1, 0.1), unit(1, 0.3)), strict=True):
        assert candidate.similarity == pytest.approx(float(vector @ unit(1)), abs=1e-5)


async def test_a_similarity_of_one_means_the_same_direction_and_zero_a_right_angle(make: Make, store) -> None:
    """Case 14: the threshold was read on the wrong scale, and every question returned the same answer."""
    await put(store, "hello world", unit(1))
    await put(store, "1+1", unit(0, 1))
    await put(store, "weather", unit(0, 0, 1))
    index = make()
    for position in range(3):
        query = unit(*[0.0] * position, 1)
        assert [round(candidate.similarity, 4) for candidate in await search(index, store, query)] == [1.0]
    assert await search(index, store, unit(1, 1, 1), threshold=0.6) == []


async def test_other_partitions_and_tenants_are_never_found(make: Make, store) -> None:
    await put(store, "same", unit(1))
    index = make()
    assert len(await search(index, store, unit(1))) == 1
    for other in ({"tenant": "globex"}, {"project": "app"}, {"model": "m2"}, {"system": "Be brief."}):
        assert await search(index, store, unit(1), **other) == []
        await put(store, "own", unit(1), **other)
        assert len(await search(index, store, unit(1), **other)) == 1


async def test_what_one_gateway_stored_another_finds_at_once(make: Make, store) -> None:
    one, two = make(), make()
    for number in range(5):
        written = await put(store, f"q{number}", unit(*[0.0] * number, 1))
        for index in (one, two):
            found = await search(index, store, unit(*[0.0] * number, 1))
            assert [candidate.entry_id for candidate in found] == [written]


async def test_what_was_invalidated_is_not_found_again(make: Make, store) -> None:
    index = make()
    await put(store, "stays", unit(1, 0.1), tags=("a",))
    await put(store, "goes", unit(1), tags=("b",))
    assert len(await search(index, store, unit(1))) == 2
    await Invalidator(store).invalidate("acme", Selection(tag="b"))
    assert len(await search(index, store, unit(1))) == 1
    await Invalidator(store).invalidate("acme", Selection())
    assert await search(index, store, unit(1)) == []
    await put(store, "anew", unit(1))
    assert len(await search(index, store, unit(1))) == 1


async def test_an_overwritten_entry_is_found_by_its_new_vector(make: Make, store) -> None:
    index = make()
    await put(store, "q", unit(1))
    assert len(await search(index, store, unit(1))) == 1
    await put(store, "q", unit(0, 1))
    assert await search(index, store, unit(1)) == []
    assert len(await search(index, store, unit(0, 1))) == 1


async def test_a_vector_of_another_width_is_never_found_and_breaks_nothing(make: Make, store) -> None:
    """Case 15: another width failed silently or loudly."""
    await store.store(entry(chat("other width"), vector=np.ones(7, "<f4").tobytes()), timeout_s=60)
    good = await put(store, "good", unit(1))
    assert [candidate.entry_id for candidate in await search(make(), store, unit(1))] == [good]


async def test_after_flushall_the_index_is_empty_and_works_on(make: Make, store) -> None:
    index = make()
    await put(store, "before", unit(1))
    assert len(await search(index, store, unit(1))) == 1
    await store.redis.flushall()
    assert await search(index, store, unit(1)) == []
    written = await put(store, "after", unit(1))
    found = await search(index, store, unit(1))
    if not found:  # RediSearch makes its index anew at the first search, and fills it in the background
        for _ in range(200):
            found = await search(index, store, unit(1))
            if found:
                break
    assert [candidate.entry_id for candidate in found] == [written]


async def test_many_entries_give_the_same_answer_as_a_full_scan(make: Make, store, kind: str) -> None:
    rng = np.random.default_rng(7)
    vectors = rng.standard_normal((300, DIMS)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = [await put(store, f"q{number}", vector) for number, vector in enumerate(vectors)]
    index = make()
    noise = 0.05 * rng.standard_normal((20, DIMS)).astype(np.float32)
    for query in (vectors[:20] + noise) / np.linalg.norm(vectors[:20] + noise, axis=1, keepdims=True):
        exact = vectors @ query
        expected = [ids[row] for row in np.argsort(-exact)[:4] if exact[row] >= 0.6]
        assert [candidate.entry_id for candidate in await search(index, store, query, threshold=0.6)] == expected


async def test_a_frozen_server_is_reported_within_the_deadline(own_server: RedisServer) -> None:
    client = connect(f"unix://{own_server.socket}", socket_timeout=600)  # its own patience proves nothing
    store, index = RedisStore(client), FlatIndex(client, dims=DIMS)
    await put(store, "q", unit(1))
    partition, key = keys_of(chat("asked"))
    version = (await store.lookup("acme", key, partition).run(client, timeout_s=60)).version
    own_server.freeze()
    async with asyncio.timeout(60):
        found = await index.search(
            store.keys("acme"), partition, version, unit(1), threshold=0.9, limit=4, timeout_s=0.05
        )
    assert found is Reason.LOADING
    own_server.thaw()
    async with asyncio.timeout(60):
        found = await index.search(
            store.keys("acme"), partition, version, unit(1), threshold=0.9, limit=4, timeout_s=60
        )
    assert len(found) == 1
    await index.close()
    await client.aclose()


async def test_the_flat_index_keeps_to_its_size_by_forgetting_the_least_recently_asked(
    servers: Callable[[str], RedisServer],
) -> None:
    client = Redis(unix_socket_path=servers("valkey-9.1").socket)
    await client.flushall()
    store = RedisStore(client)
    index = FlatIndex(client, dims=DIMS, max_bytes=40_000)
    for tenant in ("a", "b", "c", "d", "e", "f"):
        await put(store, "q", unit(1), tenant=tenant)
        assert len(await search(index, store, unit(1), tenant=tenant)) == 1
    assert index.size_bytes <= 40_000
    assert len(await search(index, store, unit(1), tenant="a")) == 1  # loaded again
    await client.aclose()


async def test_an_expired_entry_does_not_come_back_with_the_next_load(servers: Callable[[str], RedisServer]) -> None:
    client = Redis(unix_socket_path=servers("valkey-9.1").socket)
    await client.flushall()
    store = RedisStore(client)
    written = await put(store, "q", unit(1))
    name = store.keys("acme").entry(written)
    await client.pexpire(name, 1)
    assert await expired(client, name)
    assert await search(FlatIndex(client, dims=DIMS), store, unit(1)) == []
    await client.aclose()
