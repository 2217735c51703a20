"""The semantic lookup as a whole: embed, search, guards, cross-encoder; every trouble is a miss with its reason."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest

from cache.embedder import Embedding
from cache.errors import EmbedderUnavailable
from cache.flat_index import FlatIndex
from cache.outcome import Reason
from cache.policy import CachePolicy
from cache.semantic import SemanticCache, SemanticHit, SemanticMiss, embedded_text
from cache.store import RedisStore
from gateway.redis_client import connect
from tests.cache.support import FakeClock, RedisServer, WordEmbedder, answer, chat, entry, expired, keys_of

QUESTION = "What is the capital of France?"
PARAPHRASE = "Please tell me which is the capital of France."


class World:
    """A gateway's cache: what the pipeline does with a miss and with an answer."""

    def __init__(self, store: RedisStore, embedder: WordEmbedder, **options) -> None:
        self.store, self.embedder = store, embedder
        self.index = FlatIndex(store.redis, dims=embedder.dims)
        self.semantic = SemanticCache(store, self.index, embedder, **options)

    async def remember(self, request, reply=None, **options) -> str:
        fingerprint = self.embedder.fingerprint
        embedding = await self.semantic.embed(request.text, timeout_s=60)
        vector = None if isinstance(embedding, Reason) else embedding.vector.astype("<f4").tobytes()
        stored = entry(request, reply, vector=vector, fingerprint=fingerprint, **options)
        assert await self.store.store(stored, timeout_s=60)
        return stored.entry_id

    async def ask(self, request, *, threshold: float = 0.7, **options) -> SemanticHit | SemanticMiss:
        partition, key = keys_of(request, fingerprint=self.embedder.fingerprint)
        stage = self.store.lookup(request.tenant, key, partition)
        version = (await stage.run(self.store.redis, timeout_s=60)).version
        options = {"timeout_s": 1, **options}
        return await self.semantic.lookup(
            request.tenant, partition, version, request.text, threshold=threshold, **options
        )


@pytest.fixture
async def world(store: RedisStore) -> AsyncIterator[World]:
    made = World(store, WordEmbedder())
    yield made
    await made.index.close()


async def test_a_paraphrase_gets_the_stored_answer_with_its_similarity_and_age(world: World, clock: FakeClock) -> None:
    await world.remember(chat(QUESTION), answer("Paris."))
    clock.now += 9
    hit = await world.ask(chat(PARAPHRASE))
    assert isinstance(hit, SemanticHit)
    assert (hit.answer, hit.text, hit.age_s) == (answer("Paris."), QUESTION, 9)
    assert 0.7 <= hit.similarity < 1


async def test_another_tenant_gets_nothing_and_within_the_tenant_there_is_a_hit(world: World) -> None:
    await world.remember(chat(QUESTION))
    assert isinstance(await world.ask(chat(PARAPHRASE)), SemanticHit)
    assert isinstance(await world.ask(chat(PARAPHRASE, tenant="globex")), SemanticMiss)


async def test_under_the_threshold_is_a_miss_whose_vector_can_be_stored(world: World) -> None:
    await world.remember(chat(QUESTION))
    miss = await world.ask(chat(PARAPHRASE), threshold=0.99)
    assert isinstance(miss, SemanticMiss)
    assert miss.reason is Reason.SIMILARITY
    assert miss.vector is not None
    assert np.array_equal(np.frombuffer(miss.vector, "<f4"), world.embedder.embedding(embedded_text(PARAPHRASE)).vector)


async def test_a_near_miss_is_refused_by_a_guard_and_the_next_candidate_is_tried(world: World) -> None:
    await world.remember(chat("Is part 41 in the catalogue for pumps"), answer("41"))
    refused = await world.ask(chat("Is the part 42 in the catalogue for pumps?"))
    assert isinstance(refused, SemanticMiss)
    assert (refused.reason, refused.guard) == (Reason.GUARD, "number")
    assert refused.similarity is not None
    await world.remember(chat("Please tell me: is part 42 in the catalogue for pumps?"), answer("42"))
    hit = await world.ask(chat("Is the part 42 in the catalogue for pumps?"), threshold=0.5)
    assert isinstance(hit, SemanticHit)
    assert hit.answer == answer("42")


def test_politeness_is_not_embedded_and_nothing_of_the_question_is_lost() -> None:
    polite = "Hello! Could you please tell me how the tide works? Thanks a lot!"
    assert embedded_text(polite) == embedded_text("how the tide works")
    assert embedded_text("How does the tide work?") == "How does the tide work"
    assert embedded_text("法国的首都？") == "法国的首都？"
    assert embedded_text("Thanks!") != ""


@pytest.mark.parametrize("text", ["法国的首都是哪里？", "Was ist die Hauptstadt von Frankreich?", "Где столица?"])
async def test_other_languages_are_not_even_embedded(world: World, text: str) -> None:
    miss = await world.ask(chat(text))
    assert isinstance(miss, SemanticMiss)
    assert (miss.reason, miss.vector, world.embedder.calls) == (Reason.LANGUAGE, None, 0)


async def test_two_texts_of_unknown_tokens_never_meet(store: RedisStore) -> None:
    """MiniLM gives two different questions whose tokens are all [UNK] a cosine of 1.000."""

    class Unknowing(WordEmbedder):
        def embedding(self, text: str) -> Embedding:
            return Embedding(np.eye(1, self.dims, dtype=np.float32)[0], 4, has_unknown=True)

    world = World(store, Unknowing())
    await world.remember(chat("Is ꙮ a letter?"))
    miss = await world.ask(chat("Is ꙭ a letter?"))
    assert isinstance(miss, SemanticMiss)
    assert miss.reason is Reason.LANGUAGE


async def test_a_text_longer_than_the_model_reads_is_no_semantic_hit(store: RedisStore) -> None:
    class Short(WordEmbedder):
        def embedding(self, text: str) -> Embedding:
            return Embedding(np.eye(1, self.dims, dtype=np.float32)[0], 300, truncated=True)

    world = World(store, Short())
    miss = await world.ask(chat("the same beginning " * 90 + "and another end"))
    assert isinstance(miss, SemanticMiss)
    assert miss.reason is Reason.LENGTH


async def test_a_book_is_not_even_parsed(world: World) -> None:
    started = time.process_time()
    miss = await world.ask(chat("is the " * 100_000))
    assert isinstance(miss, SemanticMiss)
    assert (miss.reason, world.embedder.calls) == (Reason.LENGTH, 0)
    assert time.process_time() - started < 0.5


async def test_an_embedder_that_fails_or_hangs_is_a_miss_in_time(store: RedisStore) -> None:
    class Broken(WordEmbedder):
        async def embed(self, texts: Sequence[str]) -> list[Embedding]:
            raise EmbedderUnavailable("gone")

    class Hanging(WordEmbedder):
        async def embed(self, texts: Sequence[str]) -> list[Embedding]:
            await asyncio.Event().wait()
            raise AssertionError

    for embedder in (Broken(), Hanging()):
        miss = await World(store, embedder).ask(chat(QUESTION), embed_timeout_s=0.02)
        assert isinstance(miss, SemanticMiss)
        assert miss.reason is Reason.EMBEDDER


async def test_max_age_holds_for_semantic_hits_too(world: World, clock: FakeClock) -> None:
    await world.remember(chat(QUESTION))
    clock.now += 100
    miss = await world.ask(chat(PARAPHRASE), max_age_s=99)
    assert isinstance(miss, SemanticMiss)
    assert miss.reason is Reason.MAX_AGE
    assert isinstance(await world.ask(chat(PARAPHRASE), max_age_s=100), SemanticHit)


async def test_an_expired_winner_is_passed_over_and_forgotten(world: World) -> None:
    """Case 16: an expired entry still won."""
    gone = await world.remember(chat(QUESTION), answer("old"))
    await world.remember(chat("what is the capital of france"), answer("new"))
    assert isinstance(await world.ask(chat(QUESTION)), SemanticHit)  # both are loaded
    name = world.store.keys("acme").entry(gone)
    await world.store.redis.pexpire(name, 1)
    assert await expired(world.store.redis, name)
    for _ in range(2):
        hit = await world.ask(chat(QUESTION))
        assert isinstance(hit, SemanticHit)
        assert hit.answer == answer("new")


async def test_a_semantic_hit_does_not_renew_the_expiry_but_counts_as_use(world: World, clock: FakeClock) -> None:
    policy = CachePolicy(ttl_s=1000)
    key = await world.remember(chat(QUESTION), policy=policy)
    keys = world.store.keys("acme")
    used = await world.store.redis.zscore(keys.lru, key)
    clock.now += 50
    assert isinstance(await world.ask(chat(PARAPHRASE)), SemanticHit)
    assert await world.store.redis.zscore(keys.lru, key) == used + 50_000
    assert await world.store.redis.zscore(keys.expiry, key) == used + 1_000_000
    assert await world.store.redis.pttl(keys.entry(key)) <= 1_000_000


class Judge:
    """A cross-encoder that says what the test wants."""

    def __init__(self, verdict: float | Exception) -> None:
        self.verdict, self.asked = verdict, 0

    async def score(self, asked: str, stored: str) -> float:
        self.asked += 1
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


@pytest.mark.parametrize(
    ("verdict", "hit"), [(0.9, True), (0.1, False), (RuntimeError("broken"), False), (float("nan"), False)]
)
async def test_in_the_uncertain_band_the_cross_encoder_decides_and_its_error_is_a_miss(store, verdict, hit) -> None:
    judge = Judge(verdict)
    world = World(store, WordEmbedder(), reranker=judge)
    await world.remember(chat(QUESTION))
    found = await world.ask(chat(PARAPHRASE), rerank_below=0.99)
    assert isinstance(found, SemanticHit) is hit
    assert judge.asked == 1
    if not hit:
        assert found.reason is Reason.RERANKER


async def test_above_the_band_the_cross_encoder_is_not_asked_and_without_one_the_band_is_a_miss(store) -> None:
    judge = Judge(0.0)
    world = World(store, WordEmbedder(), reranker=judge)
    await world.remember(chat(QUESTION))
    assert isinstance(await world.ask(chat(PARAPHRASE), rerank_below=0.7), SemanticHit)
    assert judge.asked == 0
    assert isinstance(await World(store, WordEmbedder()).ask(chat(PARAPHRASE), rerank_below=0.99), SemanticMiss)


async def test_a_frozen_redis_is_a_miss_within_the_deadline(own_server: RedisServer) -> None:
    client = connect(f"unix://{own_server.socket}", socket_timeout=600)  # its own patience proves nothing
    world = World(RedisStore(client), WordEmbedder())
    await world.remember(chat(QUESTION))
    assert isinstance(await world.ask(chat(PARAPHRASE)), SemanticHit)
    partition, key = keys_of(chat(PARAPHRASE))
    version = (await world.store.lookup("acme", key, partition).run(client, timeout_s=60)).version
    own_server.freeze()
    started = time.monotonic()
    miss = await world.semantic.lookup("acme", partition, version, PARAPHRASE, threshold=0.7, timeout_s=0.1)
    elapsed_s = time.monotonic() - started
    own_server.thaw()
    assert isinstance(miss, SemanticMiss)
    assert miss.reason in (Reason.DEADLINE, Reason.STORE)
    assert miss.vector is not None
    assert elapsed_s < 60
    await client.aclose()


async def test_when_redis_did_not_answer_the_exact_lookup_nothing_is_embedded(world: World) -> None:
    partition, _ = keys_of(chat())
    miss = await world.semantic.lookup("acme", partition, None, QUESTION, threshold=0.7, timeout_s=60)
    assert (miss.reason, world.embedder.calls) == (Reason.STORE, 0)
