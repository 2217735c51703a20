"""The inline client's life: start, drain, close, a start that fails, a hung step, a dead loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.engine_thread import build_real_core
from engine.errors import EngineUnavailable, ModelLoadError
from engine.inline_client import InlineClient
from engine.tokenizer import Tokenizer
from engine.types import Delta, EngineRequest, SamplingParams


@pytest.fixture(scope="module")
def tokenizer(first_layers: Path) -> Tokenizer:
    return Tokenizer.from_folder(first_layers)


def _request(tokenizer: Tokenizer, name: str, text: str, **sampling: object) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        prompt_token_ids=tokenizer.encode(text),
        sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": 24, **sampling}),  # type: ignore[arg-type]
        cache_salt=b"salt-of-a-tenant",
    )


async def _collect(client: InlineClient, request: EngineRequest) -> list[Delta]:
    return [delta async for delta in client.generate(request)]


async def test_health_follows_the_life_of_the_engine(first_layers: Path, tokenizer: Tokenizer) -> None:
    client = InlineClient(EngineConfig(model=str(first_layers), num_threads=1, num_gpu_blocks_override=64))
    with pytest.raises(EngineUnavailable, match="starting"):
        await _collect(client, _request(tokenizer, "r", "Hi"))
    await client.start()
    assert (await client.health()).status == "ready"
    running = asyncio.ensure_future(_collect(client, _request(tokenizer, "r", "Hi", max_tokens=8)))
    await asyncio.sleep(0)
    await client.drain(60)
    assert (await running)[-1].last
    with pytest.raises(EngineUnavailable, match="draining"):
        await _collect(client, _request(tokenizer, "late", "Hi"))
    await client.close()
    await client.close()
    assert (await client.health()).status == "dead"


async def test_a_model_that_cannot_be_loaded_fails_the_start(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="nowhere"):
        await InlineClient(EngineConfig(model=str(tmp_path / "nowhere"))).start()


async def test_a_tokenizer_that_cannot_be_loaded_fails_the_start_and_leaves_no_thread(
    first_layers: Path, tmp_path: Path
) -> None:
    # Given a tokenizer folder that is whole while the engine loads and empty when the client reads it
    config = EngineConfig(model=str(first_layers), num_threads=1, num_gpu_blocks_override=64, tokenizer=str(tmp_path))

    def build(_: EngineConfig) -> EngineCore:
        return build_real_core(EngineConfig(model=str(first_layers), num_threads=1, num_gpu_blocks_override=64))

    client = InlineClient(config, build=build)
    with pytest.raises(ModelLoadError, match="tokenizer"):
        await client.start()
    assert (await client.health()).status == "dead"
    assert "weir-engine" not in {thread.name for thread in threading.enumerate()}


class _Clock:
    """Stands still for everybody, but `part_s` pass whenever the engine's thread looks: at each layer of a step."""

    def __init__(self, part_s: float = 0.0) -> None:
        self.now = 0.0
        self.part_s = part_s

    def __call__(self) -> float:
        if threading.current_thread().name == "weir-engine":
            self.now += self.part_s
        return self.now


async def _watched(model: Path, clock: _Clock) -> InlineClient:
    config = EngineConfig(model=str(model), num_threads=1, num_gpu_blocks_override=64, watchdog_timeout_s=5)
    client = InlineClient(config, clock=clock)
    await client.start()
    return client


async def _until_hung_after(client: InlineClient, clock: _Clock, jump_s: float) -> None:
    async with asyncio.timeout(60):
        while True:
            clock.now += jump_s
            if (await client.health()).status == "hung":
                return
            await asyncio.sleep(0.001)


async def test_a_hung_step_is_seen_within_the_watchdogs_seconds(first_layers: Path, tokenizer: Tokenizer) -> None:
    # Given a step under way
    clock = _Clock()
    client = await _watched(first_layers, clock)
    stream = client.generate(_request(tokenizer, "r", "Tell me a story", max_tokens=500, ignore_eos=True))
    await anext(stream)
    # When it comes no further for six seconds, then health says so
    clock.now += 4
    assert (await client.health()).status == "ready"
    await _until_hung_after(client, clock, 6)
    await stream.aclose()
    await client.close()


async def test_a_step_that_takes_minutes_is_not_hung_while_it_comes_further(
    smollm2: Path, tokenizer: Tokenizer
) -> None:
    # Given a host on which each of the 30 layers takes three seconds
    clock = _Clock(part_s=3)
    client = await _watched(smollm2, clock)
    stream = client.generate(_request(tokenizer, "r", "Tell me a story", max_tokens=5, ignore_eos=True))
    statuses = set()

    async def watch() -> None:
        while True:
            statuses.add((await client.health()).status)
            await asyncio.sleep(0.001)

    watcher = asyncio.create_task(watch())
    deltas = [delta async for delta in stream]
    watcher.cancel()
    # Then steps of more than a minute are nobody's fault
    assert deltas[-1].completion_tokens == 5
    assert clock.now > 5 * 30 * 3
    assert statuses == {"ready"}
    await client.close()


async def test_a_host_that_was_slow_is_given_more_time_but_not_for_ever(
    first_layers: Path, tokenizer: Tokenizer
) -> None:
    # Given a host that took eight seconds a layer, more than the watchdog's five, and now stands still
    clock = _Clock(part_s=8)
    client = await _watched(first_layers, clock)
    stream = client.generate(_request(tokenizer, "r", "Tell me a story", max_tokens=2000, ignore_eos=True))
    await anext(stream)
    # Then twenty seconds are no alarm, more than six times the watchdog's setting are
    clock.part_s = 0
    clock.now += 20
    assert (await client.health()).status == "ready"
    await _until_hung_after(client, clock, 35)
    await stream.aclose()
    await client.close()
