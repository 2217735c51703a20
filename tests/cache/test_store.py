"""The store's contract, held on every server that Weir promises to work with."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
from redis.asyncio import Redis

from cache.invalidation import Invalidator, Selection
from cache.outcome import Reason
from cache.policy import CachePolicy
from cache.store import PartitionVersion, RedisStore
from gateway.redis_client import connect
from tests.cache.conftest import SERVERS
from tests.cache.support import FakeClock, RedisServer, answer, chat, entry, expired, keys_of

VECTOR = np.eye(1, 8, dtype=np.float32).tobytes()


@pytest.fixture(params=SERVERS)
async def redis(request: pytest.FixtureRequest, servers: Callable[[str], RedisServer]) -> AsyncIterator[Redis]:
    client = Redis(unix_socket_path=servers(request.param).socket)
    await client.flushall()
    yield client
    await client.aclose()


async def exact(store: RedisStore, request, **options):
    partition, key = keys_of(request)
    return await store.lookup(request.tenant, key, partition, **options).run(store.redis, timeout_s=60)


async def test_what_was_stored_comes_back_whole_with_its_age(store: RedisStore, clock: FakeClock) -> None:
    reply = answer("Paris.", logprobs=[{"token": "Paris", "logprob": -0.1, "bytes": [80], "top_logprobs": []}])
    assert await store.store(entry(chat(), reply), timeout_s=60)
    clock.now += 7
    found = await exact(store, chat())
    assert found.answer == reply
    assert found.age_s == 7


async def test_an_unknown_request_is_absent_from_an_empty_partition(store: RedisStore) -> None:
    found = await exact(store, chat())
    assert (found.answer, found.reason, found.version) == (None, Reason.ABSENT, PartitionVersion())


async def test_lookup_and_store_share_a_pipeline_with_other_rooms_commands(store: RedisStore) -> None:
    partition, key = keys_of(chat())
    put = store.put(entry(chat()))
    pipe = store.redis.pipeline(transaction=False)
    pipe.ping()
    num_put = put.queue(pipe)
    lookup = store.lookup("acme", key, partition)
    num_lookup = lookup.queue(pipe)
    pipe.ping()
    replies = await pipe.execute(raise_on_error=False)
    assert len(replies) == 2 + num_put + num_lookup
    assert put.parse(replies[1 : 1 + num_put]) == []
    assert lookup.parse(replies[1 + num_put : -1]).answer == answer()


async def test_each_store_moves_the_partitions_version_and_the_lookup_brings_it_along(store: RedisStore) -> None:
    versions = []
    for number in range(3):
        await store.store(entry(chat(f"question {number}"), vector=VECTOR), timeout_s=60)
        versions.append((await exact(store, chat("anything"))).version)
    assert [version.seq for version in versions] == [1, 2, 3]
    assert len({version.epoch for version in versions}) == 1


async def test_a_partition_that_was_emptied_starts_another_epoch(store: RedisStore) -> None:
    await store.store(entry(chat(), vector=VECTOR), timeout_s=60)
    first = (await exact(store, chat())).version
    await Invalidator(store).invalidate("acme", Selection())
    assert (await exact(store, chat())).version == PartitionVersion()
    await store.store(entry(chat(), vector=VECTOR), timeout_s=60)
    assert (await exact(store, chat())).version.epoch not in ("", first.epoch)


async def test_an_entry_expires_though_it_is_asked_for_again_and_again(store: RedisStore, clock: FakeClock) -> None:
    """Case 16: every hit renewed the TTL, so the most asked stale answer never died."""
    await store.store(entry(chat(), policy=CachePolicy(ttl_s=1000)), timeout_s=60)
    _, key = keys_of(chat())
    name = store.keys("acme").entry(key)
    deadline_ms = await store.redis.execute_command("PEXPIRETIME", name) if await _has_expiretime(store) else None
    for _ in range(5):
        clock.now += 100
        assert (await exact(store, chat())).answer is not None
    if deadline_ms is not None:
        assert await store.redis.execute_command("PEXPIRETIME", name) == deadline_ms
    assert await store.redis.pttl(name) <= 1000 * 1000
    await store.redis.pexpire(name, 1)
    assert await expired(store.redis, name)
    assert (await exact(store, chat())).reason is Reason.ABSENT


async def _has_expiretime(store: RedisStore) -> bool:
    return tuple(map(int, (await store.redis.info("server"))["redis_version"].split(".")[:1])) >= (7,)


async def test_without_a_ttl_an_entry_has_no_expiry(store: RedisStore) -> None:
    await store.store(entry(chat(), policy=CachePolicy(ttl_s=None)), timeout_s=60)
    assert await store.redis.pttl(store.keys("acme").entry(keys_of(chat())[1])) == -1


async def test_max_age_refuses_an_older_answer_and_leaves_it_stored(store: RedisStore, clock: FakeClock) -> None:
    await store.store(entry(chat()), timeout_s=60)
    clock.now += 60
    assert (await exact(store, chat(), max_age_s=59)).reason is Reason.MAX_AGE
    assert (await exact(store, chat(), max_age_s=60)).answer is not None


async def test_storing_again_overwrites_and_is_counted_once(store: RedisStore, clock: FakeClock) -> None:
    """Case 24: a refresh (`no-cache`) must overwrite the bad answer."""
    await store.store(entry(chat(), answer("bad"), vector=VECTOR), timeout_s=60)
    clock.now += 5
    await store.store(entry(chat(), answer("good"), vector=VECTOR), timeout_s=60)
    found = await exact(store, chat())
    assert found.answer is not None
    assert (found.answer.choices[0].content, found.age_s) == ("good", 0)
    usage = await Invalidator(store).usage("acme")
    assert usage.entries == 1
    await Invalidator(store).invalidate("acme", Selection())
    assert (await Invalidator(store).usage("acme")).size_bytes == 0


async def test_beyond_max_entries_the_least_recently_used_leaves(store: RedisStore, clock: FakeClock) -> None:
    policy = CachePolicy(max_entries=3)
    for number in range(3):
        clock.now += 1
        await store.store(entry(chat(f"q{number}"), policy=policy, vector=VECTOR), timeout_s=60)
    clock.now += 1
    assert (await exact(store, chat("q0"))).answer is not None  # a hit is use
    clock.now += 1
    await store.store(entry(chat("q3"), policy=policy, vector=VECTOR), timeout_s=60)
    alive = [number for number in range(4) if (await exact(store, chat(f"q{number}"))).answer is not None]
    assert alive == [0, 2, 3]
    assert (await Invalidator(store).usage("acme")).entries == 3


async def test_beyond_max_bytes_entries_leave_until_it_fits(store: RedisStore, clock: FakeClock) -> None:
    policy = CachePolicy(max_bytes=20_000)
    for number in range(12):
        clock.now += 1
        await store.store(entry(chat(f"q{number}"), answer("x" * 4000), policy=policy), timeout_s=60)
    usage = await Invalidator(store).usage("acme")
    assert 1 <= usage.entries <= 4
    assert usage.size_bytes <= 20_000
    assert (await exact(store, chat("q11"))).answer is not None


async def test_one_tenants_entries_never_push_out_anothers(store: RedisStore) -> None:
    await store.store(entry(chat(tenant="small")), timeout_s=60)
    for number in range(10):
        await store.store(entry(chat(f"q{number}", tenant="big"), policy=CachePolicy(max_entries=2)), timeout_s=60)
    assert (await exact(store, chat(tenant="small"))).answer is not None
    assert (await Invalidator(store).usage("big")).entries == 2


@pytest.mark.parametrize(
    ("selection", "left"),
    [
        (Selection(project="web"), {"b", "d"}),
        (Selection(model="m2"), {"a", "b", "d"}),
        (Selection(tag="faq"), {"a", "c", "d"}),
        (Selection(project="app", tag="faq"), {"a", "c", "d"}),
        (Selection(end_user="u1"), {"a", "b", "c"}),
        (Selection(), set()),
        (Selection(project="none"), {"a", "b", "c", "d"}),
    ],
)
async def test_invalidation_takes_what_is_selected_and_nothing_else(store: RedisStore, selection, left) -> None:
    requests = {
        "a": chat("a"),
        "b": chat("b", project="app", tags=("faq", "v2")),
        "c": chat("c", model="m2"),
        "d": chat("d", project="app", end_user="u1"),
    }
    scoped = {"d"}
    for name, request in requests.items():
        await store.store(entry(request, vector=VECTOR, end_user_scope=name in scoped), timeout_s=60)
    await store.store(entry(chat("a", tenant="other")), timeout_s=60)
    invalidator = Invalidator(store)
    dry = await invalidator.invalidate("acme", selection, dry_run=True)
    assert (dry.entries, (await invalidator.usage("acme")).entries) == (4 - len(left), 4)
    removed = await invalidator.invalidate("acme", selection)
    assert (removed.entries, removed.size_bytes) == (dry.entries, dry.size_bytes)
    alive = set()
    for name, request in requests.items():
        partition, key = keys_of(request, end_user_scope=name in scoped)
        if (await store.lookup("acme", key, partition).run(store.redis, timeout_s=60)).answer is not None:
            alive.add(name)
    assert alive == left
    assert (await exact(store, chat("a", tenant="other"))).answer is not None


async def test_a_single_entry_can_be_invalidated(store: RedisStore) -> None:
    await store.store(entry(chat("a")), timeout_s=60)
    await store.store(entry(chat("b")), timeout_s=60)
    _, key = keys_of(chat("a"))
    assert (await Invalidator(store).invalidate("acme", Selection(entry_id=key))).entries == 1
    assert (await exact(store, chat("a"))).answer is None
    assert (await exact(store, chat("b"))).answer is not None


async def test_reaping_removes_what_expired_from_all_accounts(store: RedisStore, clock: FakeClock) -> None:
    await store.store(entry(chat("old"), vector=VECTOR, policy=CachePolicy(ttl_s=10)), timeout_s=60)
    await store.store(entry(chat("young"), vector=VECTOR), timeout_s=60)
    clock.now += 11
    assert (await Invalidator(store).reap()).entries == 1
    usage = await Invalidator(store).usage("acme")
    assert usage.entries == 1
    await Invalidator(store).invalidate("acme", Selection())
    left = [key async for key in store.redis.scan_iter(f"{store.prefix}:*") if b":use" not in key]
    assert left == [b"weir:cache:tenants"]


async def test_entries_of_another_embedder_are_out_of_reach_and_reaped(store: RedisStore, clock: FakeClock) -> None:
    """Case 15: a new embedding model of the same width made scores silently meaningless."""
    await store.store(entry(chat(), vector=VECTOR, fingerprint="a" * 64), timeout_s=60)
    old, new = keys_of(chat(), fingerprint="a" * 64), keys_of(chat(), fingerprint="b" * 64)
    assert old[0] != new[0]
    assert (await store.lookup("acme", new[1], new[0]).run(store.redis, timeout_s=60)).answer is None
    invalidator = Invalidator(store)
    assert (await invalidator.reap(embedder_fingerprint="b" * 64)).entries == 0  # it may be a neighbour's still
    clock.now += 3601
    assert (await invalidator.reap(embedder_fingerprint="a" * 64)).entries == 0
    assert (await invalidator.reap(embedder_fingerprint="b" * 64)).entries == 1


async def test_an_entry_written_anew_is_not_removed_by_who_saw_the_old_one(store: RedisStore, clock: FakeClock) -> None:
    await store.store(entry(chat()), timeout_s=60)
    keys = store.keys("acme")
    _, key = keys_of(chat())
    from cache.keys import IndexRow

    seen = IndexRow.decode(await store.redis.hget(keys.index, key))
    clock.now += 1
    await store.store(entry(chat(), answer("new")), timeout_s=60)
    assert await store.remove(keys, [(key, seen)]) == (0, 0)
    assert (await exact(store, chat())).answer is not None


async def test_no_name_that_a_caller_chose_stands_in_a_key(store: RedisStore) -> None:
    request = chat("Secret?", tenant="Acme,globex", project="a|b", end_user="*", namespace="{x}", tags=("t-1",))
    await store.store(entry(request, vector=VECTOR, end_user_scope=True), timeout_s=60)
    keys = [key.decode() async for key in store.redis.scan_iter("*")]
    assert keys
    for key in keys:
        assert all(name not in key for name in ("Acme", "globex", "a|b", "*", "{x}", "t-1", "Secret"))


async def test_an_undecodable_entry_is_a_miss(store: RedisStore) -> None:
    await store.store(entry(chat()), timeout_s=60)
    await store.redis.hset(store.keys("acme").entry(keys_of(chat())[1]), "a", b"\xff not msgpack")
    assert (await exact(store, chat())).reason is Reason.ABSENT


async def test_the_accounted_size_is_close_to_what_the_server_uses(store: RedisStore) -> None:
    before = int((await store.redis.info("memory"))["used_memory"])
    for number in range(200):
        await store.store(entry(chat(f"question {number}"), answer("x" * 600), vector=bytes(1536)), timeout_s=60)
    used = int((await store.redis.info("memory"))["used_memory"]) - before
    accounted = (await Invalidator(store).usage("acme")).size_bytes
    assert 0.6 < accounted / used < 1.7


async def test_a_frozen_server_is_a_miss_within_the_deadline(own_server: RedisServer) -> None:
    client = connect(f"unix://{own_server.socket}", socket_timeout=600)  # its own patience proves nothing
    store = RedisStore(client)
    await store.store(entry(chat()), timeout_s=60)
    own_server.freeze()
    started = time.monotonic()
    partition, key = keys_of(chat())
    found = await store.lookup("acme", key, partition).run(client, timeout_s=0.1)
    stored = await store.store(entry(chat("other")), timeout_s=0.1)
    elapsed_s = time.monotonic() - started
    own_server.thaw()
    assert (found.reason, found.version, stored) == (Reason.DEADLINE, None, False)
    assert elapsed_s < 60
    assert (await store.lookup("acme", key, partition).run(client, timeout_s=60)).answer == answer()
    await client.aclose()


async def test_a_dead_server_is_a_miss(own_server: RedisServer) -> None:
    client = connect(f"unix://{own_server.socket}", socket_timeout=600)  # its own patience proves nothing
    own_server.kill()
    partition, key = keys_of(chat())
    found = await RedisStore(client).lookup("acme", key, partition).run(client, timeout_s=60)
    assert found.reason in (Reason.STORE, Reason.DEADLINE)
    await client.aclose()
