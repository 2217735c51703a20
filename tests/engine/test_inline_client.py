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
def tokenizer(smollm2: Path) -> Tokenizer:
    return Tokenizer.from_folder(smollm2)


def _request(tokenizer: Tokenizer, name: str, text: str, **sampling: object) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        prompt_token_ids=tokenizer.encode(text),
        sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": 24, **sampling}),  # type: ignore[arg-type]
        cache_salt=b"salt-of-a-tenant",
    )


async def _collect(client: InlineClient, request: EngineRequest) -> list[Delta]:
    return [delta async for delta in client.generate(request)]


async def test_health_follows_the_life_of_the_engine(smollm2: Path, tokenizer: Tokenizer) -> None:
    client = InlineClient(EngineConfig(model=str(smollm2), num_threads=1, num_gpu_blocks_override=64))
    with pytest.raises(EngineUnavailable, match="starting"):
        await _collect(client, _request(tokenizer, "r", "Hi"))
    await client.start()
    assert (await client.health()).status == "ready"
    running = asyncio.ensure_future(_collect(client, _request(tokenizer, "r", "Hi", max_tokens=8)))
    await asyncio.sleep(0)
    await client.drain(10)
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
    smollm2: Path, tmp_path: Path
) -> None:
    # Given a tokenizer folder that is whole while the engine loads and empty when the client reads it
    config = EngineConfig(model=str(smollm2), num_threads=1, num_gpu_blocks_override=64, tokenizer=str(tmp_path))

    def build(_: EngineConfig) -> EngineCore:
        return build_real_core(EngineConfig(model=str(smollm2), num_threads=1, num_gpu_blocks_override=64))

    client = InlineClient(config, build=build)
    with pytest.raises(ModelLoadError, match="tokenizer"):
        await client.start()
    assert (await client.health()).status == "dead"
    assert "weir-engine" not in {thread.name for thread in threading.enumerate()}


async def test_a_hung_step_is_seen(smollm2: Path, tokenizer: Tokenizer) -> None:
    # Given a clock and an engine whose step is under way when the clock jumps
    now = [0.0]
    client = InlineClient(
        EngineConfig(model=str(smollm2), num_threads=1, num_gpu_blocks_override=64, watchdog_timeout_s=5),
        clock=lambda: now[0],
    )
    await client.start()
    stream = client.generate(_request(tokenizer, "r", "Tell me a story", max_tokens=500, ignore_eos=True))
    await anext(stream)
    statuses = set()
    async with asyncio.timeout(5):
        while "hung" not in statuses:
            now[0] += 6
            statuses.add((await client.health()).status)
            await asyncio.sleep(0.001)
    await stream.aclose()
    await client.close()
