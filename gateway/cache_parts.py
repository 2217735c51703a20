"""The answer cache as the settings have it: policy, store, vector index, and a cross-encoder for uncertain winners."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from cache.cross_encoder import CrossEncoder
from cache.embedder import Embedder
from cache.errors import EmbedderUnavailable
from cache.flat_index import FlatIndex
from cache.policy import CachePolicy
from cache.redisearch_index import RediSearchIndex
from cache.semantic import Reranker, SemanticCache, VectorIndex
from cache.store import STORE_TROUBLE, RedisStore
from gateway.answers import ResponseCache
from gateway.background import ended
from gateway.settings import Settings
from gateway.startup import StartupError

log = logging.getLogger(__name__)


def server_policy(settings: Settings) -> CachePolicy:
    """What a tenant without a policy of its own has."""
    return CachePolicy(
        semantic=settings.semantic_cache_enabled,
        threshold=settings.cache_threshold,
        rerank_below=settings.cross_encoder_below if settings.cross_encoder else 0.0,
        ttl_s=settings.cache_ttl_s,
        hit_price=settings.cache_hit_price,
        shadow_share=settings.cache_shadow_share,
    )


async def make_cache(
    settings: Settings, redis: Redis, embedder: Embedder | None, stack: AsyncExitStack
) -> tuple[ResponseCache, RedisStore | None]:
    """Raises: StartupError where what the settings name cannot be had: a cross-encoder, RediSearch."""
    policy, deadline_s = server_policy(settings), settings.redis_deadline_ms / 1000
    if not settings.cache_enabled:
        return ResponseCache(None, None, policy, deadline_s=deadline_s), None
    store = RedisStore(redis)
    if embedder is None or not settings.semantic_cache_enabled:
        return ResponseCache(store, None, policy, deadline_s=deadline_s), store
    cache = ResponseCache(store, None, policy, embedder_fingerprint=embedder.fingerprint, deadline_s=deadline_s)
    reranker = await _reranker(settings, stack)
    if embedder.dims:
        cache.add_semantic(await _semantic(settings, store, embedder, reranker))
    else:
        coming = asyncio.create_task(_add_late(cache, settings, store, embedder, reranker), name="semantic-cache")
        stack.push_async_callback(ended, coming)
    return cache, store


async def _semantic(
    settings: Settings, store: RedisStore, embedder: Embedder, reranker: Reranker | None
) -> SemanticCache:
    index = await _index(settings, store, embedder.dims)
    return SemanticCache(store, index, embedder, reranker=reranker, rerank_threshold=settings.cross_encoder_threshold)


async def _add_late(
    cache: ResponseCache, settings: Settings, store: RedisStore, embedder: Embedder, reranker: Reranker | None
) -> None:
    """The embedder did not start in time: exact answers until it does."""
    await embedder.started()
    try:
        cache.add_semantic(await _semantic(settings, store, embedder, reranker))
    except StartupError as exc:
        log.error("no semantic cache until the next start: %s", exc)  # noqa: TRY400 - the message says it all
    else:
        log.warning("the semantic cache is on: its embedder has started")


async def _index(settings: Settings, store: RedisStore, dims: int) -> VectorIndex:
    if settings.cache_index == "flat":
        return FlatIndex(store.redis, dims=dims)
    index = RediSearchIndex(store.redis, prefix=store.prefix, dims=dims)
    try:
        await index.create()
    except ResponseError as exc:
        raise StartupError(f"cache_index = 'redisearch': the cache's Redis refuses it: {str(exc)[:80]}") from exc
    except STORE_TROUBLE as exc:  # away: a search makes the index once it is back
        log.warning("the RediSearch index was not made yet: %s", type(exc).__name__)
    return index


async def _reranker(settings: Settings, stack: AsyncExitStack) -> Reranker | None:
    """Named and not to be had is no start: without it the uncertain band would be one of misses."""
    if not settings.cross_encoder:
        return None
    judge = CrossEncoder(settings.cross_encoder, timeout_s=settings.cross_encoder_timeout_s)
    try:
        await judge.start()
    except EmbedderUnavailable as exc:
        raise StartupError(f"cross_encoder = {settings.cross_encoder!r}: {exc}") from exc
    stack.push_async_callback(judge.close)
    return judge
