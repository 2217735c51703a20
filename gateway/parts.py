"""Everything a running gateway is made of, started in order and closed in reverse by the application's lifespan."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

import aiohttp
import msgspec
import sqlalchemy as sa
from redis.asyncio import Redis

from billing.secrets import ServerSecret
from billing.service import Billing, BillingSettings
from cache.embedder import BatchingEmbedder, Embedder, EmbedderSpec
from cache.errors import EmbedderNotStarted, EmbedderUnavailable
from cache.invalidation import Invalidator
from cache.shadow import ShadowLog
from engine.client import EngineClient
from engine.config import EngineConfig
from gateway import redis_client
from gateway.background import Background, ended
from gateway.batches.runner import LineRunner
from gateway.batches.store import BatchStore
from gateway.batches.worker import BatchWorker
from gateway.booking import Booking
from gateway.cache_parts import make_cache
from gateway.chat_calls import ChatCalls
from gateway.completion_calls import CompletionCalls
from gateway.constraints import Constrainer
from gateway.embedding_calls import EmbeddingCalls
from gateway.engines import Served, counting_text_model, for_counting, make_engine, start_further
from gateway.files.store import FileStore
from gateway.flights import make_flights
from gateway.governor import Governor
from gateway.health import Probe
from gateway.metrics import Metrics
from gateway.pipeline import Pipeline
from gateway.prompts import TextModel
from gateway.reaping import Reaper
from gateway.responses.service import ResponseService
from gateway.responses.store import ResponseStore
from gateway.route_config import RouteConfig
from gateway.routing import Router, RouteTable
from gateway.settings import NO_ENGINE, Settings
from gateway.shadowing import Shadow
from gateway.texts import Texts
from gateway.thrift import SoftBudgets
from gateway.upstreams.base import Upstream
from gateway.upstreams.embedder import EmbedderUpstream
from gateway.upstreams.local import LocalUpstream
from gateway.upstreams.registry import Surroundings
from gateway.webhooks import WebhookClient

log = logging.getLogger(__name__)


class Overrides(msgspec.Struct, kw_only=True):
    """What tests put in the place of the real thing; None builds it from the settings."""

    engine: EngineClient | None = None
    embedder: Embedder | None = None
    text_model: TextModel | None = None
    further: tuple[Served, ...] = ()
    upstreams: tuple[Upstream, ...] = ()


class Parts(msgspec.Struct, kw_only=True):
    """What handlers are given."""

    settings: Settings
    billing: Billing
    router: Router
    texts: Texts
    pipeline: Pipeline
    chat_calls: ChatCalls
    completion_calls: CompletionCalls
    embedding_calls: EmbeddingCalls | None
    responses: ResponseService
    files: FileStore
    batches: BatchStore
    batch_worker: BatchWorker
    route_config: RouteConfig
    invalidator: Invalidator | None
    probe: Probe
    background: Background


@asynccontextmanager
async def running(settings: Settings, overrides: Overrides, metrics: Metrics) -> AsyncIterator[Parts]:
    """Starts every part; leaving the context drains and closes them. Raises: whatever a part cannot start with."""
    async with AsyncExitStack() as stack:
        secret = await asyncio.to_thread(ServerSecret.load, settings.effective_secret_file)
        redis = _redis(settings.redis_url, stack)
        cache_redis = _redis(settings.cache_redis_url, stack) if settings.cache_redis_url else redis
        webhooks = WebhookClient(allow_private=settings.webhook_private_hosts)
        stack.push_async_callback(webhooks.close)
        billing = Billing(_billing_settings(settings), redis, secret, deliver=webhooks)
        await billing.start()
        stack.push_async_callback(billing.stop)
        background = Background()
        engine = overrides.engine or make_engine(settings)
        embedder, text_model = await _started(settings, overrides, engine, stack)
        further = overrides.further or await start_further(settings, stack)
        cache, store = await make_cache(settings, cache_redis, embedder, stack)
        governor = Governor(
            admission=billing.admission,
            prices=billing.prices,
            booking=Booking(billing.ledger, billing.prices),
            limits_redis=redis,
            store=store,
            metrics=metrics,
            deadline_s=settings.redis_deadline_ms / 1000,
        )
        texts = Texts(
            _named(settings, text_model, further),
            fallback=for_counting(text_model, exact=bool(settings.engine.tokenizer)),
        )
        stack.callback(texts.close)
        router = Router(RouteTable({}))
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),  # what it sets for one tenant is not sent with another's call
        )
        stack.push_async_callback(session.close)
        around = Surroundings(session, secret, lambda text: len(text_model.tokenizer.encode(text, add_bos=False)))
        engines = [] if engine is None else [(settings.engine, engine)]
        engines += [(served.config, served.engine) for served in further]
        own = _upstreams(overrides, engines, embedder, settings, secret)
        route_config = RouteConfig(billing, router, own, around)
        await route_config.load()
        soft_budgets = SoftBudgets()
        billing.on_limit(soft_budgets.note)
        flights = make_flights(store, deadline_s=settings.redis_deadline_ms / 1000) if store is not None else None
        if flights is not None:
            stack.push_async_callback(flights.close)
        pipeline = Pipeline(
            governor=governor,
            cache=cache,
            router=router,
            metrics=metrics,
            background=background,
            flights=flights,
            shares_flights=settings.replicas > 1,
            shadow=Shadow(ShadowLog(store), embedder, background, metrics) if store and embedder else None,
            soft_budgets=soft_budgets,
        )
        constrainer = Constrainer(tool_format=settings.tool_format)
        probe = Probe(
            engine,
            required={"database": lambda: _ping_database(billing)},
            optional={"limits_redis": lambda: cast(Awaitable[object], redis.ping())},
            further=[served.engine for served in further],
        )
        metrics.watch_engines(lambda: probe.last_stats)
        limits = billing.admission
        metrics.watch_limits(lambda: limits.num_degraded, lambda: limits.num_outages)
        watching = asyncio.create_task(probe.watch_engine(), name="engine-stats")
        stack.push_async_callback(ended, watching)
        stack.push_async_callback(ended, asyncio.create_task(route_config.watch(), name="route-config"))
        invalidator = Invalidator(store) if store is not None else None
        if invalidator is not None:
            stack.push_async_callback(
                ended,
                asyncio.create_task(_reaper(settings, invalidator, embedder).work(), name="cache-reaper"),
            )
        chat_calls = ChatCalls(texts, router, constrainer, allow_request_template=settings.allow_request_chat_template)
        completion_calls = CompletionCalls(texts, router, constrainer, max_sequences=settings.engine.max_n)
        embedding_calls = EmbeddingCalls(embedder, governor, background, metrics) if embedder else None
        responses = _responses(settings, billing, chat_calls, pipeline, stack)
        files = FileStore(
            billing.db, retention_s=settings.files_retention_s, max_tenant_bytes=settings.files_max_tenant_bytes
        )
        batches = BatchStore(billing.db)
        runner = LineRunner(
            chat_calls, completion_calls, embedding_calls, responses, pipeline, timeout_s=settings.request_timeout_s
        )
        batch_worker = BatchWorker(batches, files, runner, concurrency=settings.batch_concurrency)
        batch_worker.start()
        stack.push_async_callback(batch_worker.stop)
        stack.push_async_callback(_drain, settings, probe, background)
        yield Parts(
            settings=settings,
            billing=billing,
            router=router,
            texts=texts,
            pipeline=pipeline,
            chat_calls=chat_calls,
            completion_calls=completion_calls,
            embedding_calls=embedding_calls,
            responses=responses,
            files=files,
            batches=batches,
            batch_worker=batch_worker,
            route_config=route_config,
            invalidator=invalidator,
            probe=probe,
            background=background,
        )


def _responses(
    settings: Settings, billing: Billing, chat_calls: ChatCalls, pipeline: Pipeline, stack: AsyncExitStack
) -> ResponseService:
    service = ResponseService(
        ResponseStore(billing.db, retention_s=settings.responses_retention_s),
        chat_calls,
        pipeline,
        timeout_s=settings.request_timeout_s,
        store_by_default=settings.store_responses,
    )
    watching = asyncio.create_task(service.watch(), name="responses")
    stack.push_async_callback(ended, watching)
    return service


def _redis(url: str, stack: AsyncExitStack) -> Redis:
    redis = redis_client.connect(url)
    stack.push_async_callback(redis.aclose)
    return redis


def _billing_settings(settings: Settings) -> BillingSettings:
    return BillingSettings(
        database_url=settings.effective_database_url,
        journal=settings.data_path / "journal",
        replicas=settings.replicas,
        redis_deadline_s=settings.redis_deadline_ms / 1000,
    )


async def _started(
    settings: Settings, overrides: Overrides, engine: EngineClient | None, stack: AsyncExitStack
) -> tuple[Embedder | None, TextModel]:
    """Engine and embedder load side by side: each takes seconds."""

    async def start_engine() -> TextModel:
        if engine is None:
            return overrides.text_model or await counting_text_model(settings)
        await engine.start()
        stack.push_async_callback(engine.close)
        if overrides.text_model is not None:
            return overrides.text_model
        template_file = settings.engine.chat_template
        return await asyncio.to_thread(TextModel.from_info, engine.model, template_file=template_file)

    async def start_embedder() -> Embedder | None:
        return overrides.embedder or await _embedder(settings, stack)

    text_model, embedder = await asyncio.gather(start_engine(), start_embedder())
    return embedder, text_model


async def _embedder(settings: Settings, stack: AsyncExitStack) -> Embedder | None:
    """None, with a warning, where no embedding model is installed: everything else works without.

    One that does not start in time is tried again behind the scenes; until then embeddings are 503 and the cache exact.
    """
    from cache.embedder_process import ProcessBackend

    try:
        spec = EmbedderSpec(path=settings.embedder) if settings.embedder else EmbedderSpec.packaged()
        embedder = BatchingEmbedder(spec, ProcessBackend(spec))
        await embedder.start()
    except EmbedderNotStarted as exc:
        log.warning("no semantic cache and no embeddings yet: %s", exc)
        starting = asyncio.create_task(_starting(embedder), name="embedder-start")
        stack.push_async_callback(embedder.close)
        stack.push_async_callback(ended, starting)
        return embedder
    except EmbedderUnavailable as exc:
        log.warning("no embeddings and no semantic cache: %s", exc)
        return None
    stack.push_async_callback(embedder.close)
    return embedder


async def _starting(embedder: BatchingEmbedder) -> None:
    try:
        await embedder.start_eventually()
    except EmbedderUnavailable as exc:
        log.error("no embeddings and no semantic cache until the next start: %s", exc)  # noqa: TRY400 - the message says it all


def _reaper(settings: Settings, invalidator: Invalidator, embedder: Embedder | None) -> Reaper:
    fingerprint = embedder.fingerprint if embedder is not None and settings.semantic_cache_enabled else None
    return Reaper(invalidator, embedder_fingerprint=fingerprint, interval_s=settings.cache_reap_interval_s)


def _named(settings: Settings, text_model: TextModel, further: Sequence[Served]) -> dict[str, TextModel]:
    """The text sides under every name that requests may use for an engine's model."""
    named = {
        name: served.text for served in further for name in (served.engine.model.name, *served.config.served_names)
    }
    if text_model.info.name != NO_ENGINE:
        named |= dict.fromkeys((text_model.info.name, *settings.engine.served_names), text_model)
    return named


def _upstreams(
    overrides: Overrides,
    engines: Sequence[tuple[EngineConfig, EngineClient]],
    embedder: Embedder | None,
    settings: Settings,
    secret: ServerSecret,
) -> list[Upstream]:
    upstreams: list[Upstream] = []
    for config, client in engines:
        # The engine's own name comes first; further served names are the same model.
        names = dict.fromkeys((client.model.name, *config.served_model_name))
        upstreams.extend(LocalUpstream(client, secret.cache_salt, model=name) for name in names)
    if embedder is not None:
        upstreams.append(EmbedderUpstream(embedder, settings.embedding_model_name))
    return [*upstreams, *overrides.upstreams]


async def _ping_database(billing: Billing) -> None:
    async with billing.db.read() as session:
        await session.execute(sa.text("SELECT 1"))


async def _drain(settings: Settings, probe: Probe, background: Background) -> None:
    """No new requests; what runs may end, within drain_timeout_s of SIGTERM; then what settles may."""
    begun = probe.drain_begun = probe.drain_begun or time.monotonic()
    left_s = max(0.0, settings.drain_timeout_s - (time.monotonic() - begun))
    await asyncio.gather(*(engine.drain(left_s) for engine in probe.engines))
    left = await background.drain(max(1.0, settings.drain_timeout_s - (time.monotonic() - begun)))
    if left:
        log.error("%d background tasks were still running when the drain time was over", left)
