"""The cross-encoder and RediSearch as settings: from file, variable and flag to what a request gets."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cache.cross_encoder import CrossEncoder
from cache.embedder import EmbedderSpec, Embedding
from cache.errors import EmbedderUnavailable
from gateway.settings import SettingsError, load_settings
from gateway.startup import StartupError
from tests.cache.support import RedisServer, redisearch_server
from tests.gateway.conftest import Gateway, StartGateway, until
from tests.gateway.fakes import WordEmbedder

QUESTION = "What is the capital of France?"
REWORDED = "Could you please tell me what the capital of France is?"


@pytest.fixture(scope="session")
def pair_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder with random weights: its verdicts mean nothing, its process is the real one."""
    from transformers import BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("pairs")
    packaged = Path(EmbedderSpec.packaged().path)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        if (packaged / name).exists():
            shutil.copy(packaged / name, folder / name)
    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=1)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def redisearch() -> Iterator[RedisServer]:
    command = redisearch_server()
    if command is None:
        pytest.skip("redisearch is not installed (requirements-dev-nodeps.lock)")
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        server = RedisServer(command[0], Path(folder), *command[1:])
        yield server
        server.kill()


async def outcome_of_rewording(gateway: Gateway) -> str:
    await gateway.chat(QUESTION)
    await gateway.parts.background.drain(60)
    return str((await gateway.chat(REWORDED)).headers["x-weir-cache"]).partition("; similarity")[0]


def test_each_source_sets_them_and_values_out_of_bounds_are_named(tmp_path: Path) -> None:
    toml = tmp_path / "weir.toml"
    toml.write_text('cross_encoder = "judge"\ncross_encoder_below = 0.99\ncache_index = "redisearch"\n')
    settings = load_settings(
        toml_path=toml,
        env={"WEIR_CROSS_ENCODER_THRESHOLD": "0.8"},
        flags={"cross_encoder_timeout_s": "2", "cache_index": "flat"},
    )
    assert (settings.cross_encoder, settings.cross_encoder_below) == ("judge", 0.99)
    assert (settings.cross_encoder_threshold, settings.cross_encoder_timeout_s) == (0.8, 2.0)
    assert settings.cache_index == "flat"
    with pytest.raises(SettingsError) as caught:
        load_settings(
            env={"WEIR_CROSS_ENCODER_BELOW": "1.5", "WEIR_CACHE_INDEX": "hnsw", "WEIR_CACHE_HIT_PRICE": "gratis"},
            flags={},
        )
    assert {fault.split(" ")[0].rstrip(":") for fault in caught.value.faults} == {
        "cross_encoder_below",
        "cache_index",
        "cache_hit_price",
    }


@pytest.mark.heavy
@pytest.mark.parametrize(("threshold", "outcome"), [(0.0, "semantic"), (1.0, "miss; reason=reranker")])
async def test_a_winner_in_the_uncertain_band_is_served_if_the_cross_encoder_says_so(
    start_gateway: StartGateway, pair_model: Path, threshold: float, outcome: str
) -> None:
    gateway = await start_gateway(
        cross_encoder=str(pair_model),
        cross_encoder_below=1.0,
        cross_encoder_threshold=threshold,
        cross_encoder_timeout_s=60,
    )
    assert await outcome_of_rewording(gateway) == outcome


@pytest.mark.parametrize(("below", "outcome"), [(1.0, "miss; reason=reranker"), (0.5, "semantic")])
async def test_only_winners_in_the_band_are_judged_and_an_error_there_is_a_miss(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch, below: float, outcome: str
) -> None:
    # given a cross-encoder whose process has died
    async def start(_self: CrossEncoder) -> None:
        pass

    async def score(_self: CrossEncoder, _asked: str, _stored: str) -> float:
        raise EmbedderUnavailable("the embedder's process failed")

    monkeypatch.setattr(CrossEncoder, "start", start)
    monkeypatch.setattr(CrossEncoder, "score", score)
    # then a winner in the band is a miss, and one above it is served without asking
    gateway = await start_gateway(cross_encoder="judge", cross_encoder_below=below)
    assert await outcome_of_rewording(gateway) == outcome


async def test_a_cross_encoder_that_does_not_load_is_no_start(start_gateway: StartGateway, tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await start_gateway(cross_encoder=str(tmp_path / "nothing-here"))
    assert caught.group_contains(StartupError, match=r"cross_encoder = .*nothing-here")


async def test_near_questions_are_found_by_redisearch(start_gateway: StartGateway, redisearch: RedisServer) -> None:
    gateway = await start_gateway(
        cache_redis_url=f"unix://{redisearch.socket}", cache_index="redisearch", redis_deadline_ms=10_000
    )
    assert await outcome_of_rewording(gateway) == "semantic"
    # and still after the server lost all its data, the index with it
    store = gateway.parts.pipeline.cache._store
    assert store is not None
    await store.redis.flushall()
    await gateway.chat(QUESTION)
    await gateway.parts.background.drain(60)
    body = {"model": "m", "messages": [{"role": "user", "content": REWORDED}]}
    outcome = ""
    async with asyncio.timeout(60):  # the server fills an index that is made anew in its own time
        while not outcome.startswith("semantic"):
            again = await gateway.post("/v1/chat/completions", body, cache_control="no-store")
            outcome = again.headers["x-weir-cache"]


async def test_redisearch_named_and_not_there_is_no_start(start_gateway: StartGateway) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await start_gateway(cache_index="redisearch")
    assert caught.group_contains(StartupError, match="cache_index = 'redisearch'")


class LateEmbedder(WordEmbedder):
    """Says nothing of its size and embeds nothing until `arrived` is set; its fingerprint is known from the start."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()

    @property
    def dims(self) -> int:  # type: ignore[override]
        return WordEmbedder.dims if self.arrived.is_set() else 0

    async def started(self) -> None:
        await self.arrived.wait()

    async def embed(self, texts: Sequence[str]) -> list[Embedding]:
        if not self.arrived.is_set():
            raise EmbedderUnavailable("not yet")
        return await super().embed(texts)


async def test_the_semantic_cache_comes_on_when_a_late_embedder_does(start_gateway: StartGateway) -> None:
    # given a gateway that has started without its embedder, and answers from the exact cache
    embedder = LateEmbedder()
    gateway = await start_gateway(embedder=embedder, cache_threshold=0.5)
    assert (await outcome_of_rewording(gateway)).startswith("miss")
    assert (await gateway.chat(QUESTION)).headers["x-weir-cache"].startswith("hit")
    # when the embedder is there
    embedder.arrived.set()
    await until(lambda: gateway.parts.pipeline.cache.is_semantic)
    # then what was answered before is found again by its words, and what comes now by others
    assert (await gateway.chat(QUESTION)).headers["x-weir-cache"].startswith("hit")
    await gateway.chat(QUESTION.replace("France", "Spain"))
    await gateway.parts.background.drain(60)
    reworded = await gateway.chat(REWORDED.replace("France", "Spain"))
    assert reworded.headers["x-weir-cache"].startswith("semantic")


async def test_a_gateway_whose_embedder_never_comes_stops_in_good_order(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(embedder=LateEmbedder())
    assert (await gateway.chat(QUESTION)).status_code == 200
    assert not gateway.parts.pipeline.cache.is_semantic
