"""Two tenants, same everything: no hit, and no difference in time by which one could learn what the other asked."""

from __future__ import annotations

import statistics
import time

import pytest

from cache.outcome import Reason
from cache.semantic import SemanticHit, SemanticMiss
from cache.store import RedisStore
from tests.cache.support import WordEmbedder, chat, entry, keys_of
from tests.cache.test_semantic import PARAPHRASE, QUESTION, World


async def test_a_tenants_answers_reach_no_other_and_its_own_do_reach_it(store: RedisStore) -> None:
    world = World(store, WordEmbedder())
    await world.remember(chat(QUESTION, tenant="a"))
    for tenant, found in (("a", True), ("b", False)):
        partition, key = keys_of(chat(QUESTION, tenant=tenant))
        exact = await store.lookup(tenant, key, partition).run(store.redis, timeout_s=60)
        assert (exact.answer is not None) is found
        assert isinstance(await world.ask(chat(PARAPHRASE, tenant=tenant)), SemanticHit) is found


async def test_another_tenants_version_or_key_in_hand_opens_nothing(store: RedisStore) -> None:
    world = World(store, WordEmbedder())
    await world.remember(chat(QUESTION, tenant="a"))
    partition, key = keys_of(chat(QUESTION, tenant="a"))
    version = (await store.lookup("a", key, partition).run(store.redis, timeout_s=60)).version
    stolen = await store.lookup("b", key, partition).run(store.redis, timeout_s=60)
    assert (stolen.answer, stolen.reason) == (None, Reason.ABSENT)
    near = await world.semantic.lookup("b", partition, version, PARAPHRASE, threshold=0.5, timeout_s=60)
    assert isinstance(near, SemanticMiss)


@pytest.mark.heavy
async def test_a_miss_takes_as_long_for_what_another_tenant_asked_as_for_what_nobody_did(store: RedisStore) -> None:
    await store.store(entry(chat(QUESTION, tenant="a")), timeout_s=60)
    samples: dict[str, list[float]] = {"asked": [], "unasked": []}
    for turn in range(6000):
        pair = [("asked", QUESTION), ("unasked", "How do I cancel a subscription?")]
        for name, text in pair if turn % 2 else reversed(pair):
            partition, key = keys_of(chat(text, tenant="b"))
            started = time.perf_counter()
            found = await store.lookup("b", key, partition).run(store.redis, timeout_s=60)
            samples[name].append(time.perf_counter() - started)
            assert found.answer is None
    asked, unasked = (statistics.median(samples[name]) for name in ("asked", "unasked"))
    spread = statistics.quantiles(samples["unasked"], n=4)
    assert abs(asked - unasked) < (spread[2] - spread[0]) / 2
