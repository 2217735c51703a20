"""The child client's life: crashes, restarts, hangs, orphans, several workers, no torch in a worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from engine.child_client import ChildClient
from engine.config import EngineConfig
from engine.errors import EngineUnavailable, ModelLoadError
from engine.types import Delta, EngineRequest, SamplingParams

IDS = [504, 3575, 282, 4649, 314]  # "The capital of France is"


def _config(model: Path, **settings: object) -> EngineConfig:
    return EngineConfig.from_mapping(
        {"model": str(model), "num_threads": 1, "max_num_seqs": 4, "num_gpu_blocks_override": 128, **settings}
    )


@pytest.fixture
async def client(first_layers: Path, tmp_path: Path) -> AsyncIterator[ChildClient]:
    made = ChildClient(_config(first_layers), tmp_path / "engine.sock")
    await made.start()
    yield made
    await made.close()


def _request(name: str, **sampling: object) -> EngineRequest:
    params = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **sampling}
    return EngineRequest(
        request_id=name,
        prompt_token_ids=IDS,
        sampling=SamplingParams(**params),  # type: ignore[arg-type]
        cache_salt=b"salt-of-a-tenant",
    )


async def _collect(client: ChildClient, request: EngineRequest) -> list[Delta]:
    return [delta async for delta in client.generate(request)]


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come about")


async def test_a_killed_engine_fails_its_requests_and_comes_back(client: ChildClient) -> None:
    # Given a stream under way
    stream = client.generate(_request("r", max_tokens=500))
    await anext(stream)
    first = client.pid
    assert first is not None
    # When the process is killed
    os.kill(first, signal.SIGKILL)
    # Then the stream fails with a clear error, new requests are refused meanwhile, and health says so
    with pytest.raises(EngineUnavailable, match="status -9"):
        async for _ in stream:
            pass
    assert (await client.health()).status == "starting"
    with pytest.raises(EngineUnavailable, match="starting"):
        await _collect(client, _request("meanwhile"))
    # And another one takes its place
    await _until(lambda: client.pid not in (None, first), 60)
    async with asyncio.timeout(60):
        while (await client.health()).status != "ready":  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.05)
    assert len((await _collect(client, _request("after")))[-1].token_ids) == 1
    assert client.num_starts == 2


async def test_a_stopped_engine_is_seen_within_seconds_and_recovers(client: ChildClient) -> None:
    assert client.pid is not None
    os.kill(client.pid, signal.SIGSTOP)
    statuses = []
    try:
        async with asyncio.timeout(60):
            while "hung" not in statuses:
                statuses.append((await client.health()).status)
                await asyncio.sleep(0.05)
    finally:
        os.kill(client.pid, signal.SIGCONT)
    async with asyncio.timeout(60):
        while (await client.health()).status != "ready":  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.05)
    assert (await _collect(client, _request("after")))[-1].last


async def test_signals_to_the_whole_group_do_not_cut_a_drain(client: ChildClient) -> None:
    # Given a stream under way
    stream = client.generate(_request("r", max_tokens=30))
    await anext(stream)
    # When the service manager signals every process, and the gateway drains
    assert client.pid is not None
    os.kill(client.pid, signal.SIGTERM)
    os.kill(client.pid, signal.SIGINT)
    # Then the stream ends as it should
    deltas = [delta async for delta in stream]
    assert deltas[-1].completion_tokens == 30
    await client.drain(60)
    with pytest.raises(EngineUnavailable, match="draining and takes no new requests"):
        await _collect(client, _request("late"))


async def test_two_workers_share_one_engine_with_equal_request_ids(
    client: ChildClient, first_layers: Path, tmp_path: Path
) -> None:
    other = ChildClient(_config(first_layers), tmp_path / "engine.sock", spawn=False)
    await other.start()
    first, second = await asyncio.gather(
        _collect(client, _request("same", max_tokens=6)), _collect(other, _request("same", max_tokens=4))
    )
    assert first[-1].completion_tokens == 6
    assert second[-1].completion_tokens == 4
    # A worker that goes away takes its own streams with it, no other's
    stream = other.generate(_request("left", max_tokens=500))
    await anext(stream)
    await other.close()
    with pytest.raises(EngineUnavailable):
        async for _ in stream:
            pass
    assert len(await _collect(client, _request("mine"))) > 0
    stats = await client.stats()
    async with asyncio.timeout(60):
        while stats.num_running:
            stats = await client.stats()
    assert stats.kv_blocks_referenced == 0


async def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    client = ChildClient(_config(tmp_path / "nowhere"), tmp_path / "engine.sock")
    with pytest.raises(ModelLoadError, match="nowhere"):
        await client.start()
    await client.close()


async def test_the_socket_is_its_owners_alone(client: ChildClient, tmp_path: Path) -> None:
    assert (tmp_path / "engine.sock").stat().st_mode & 0o777 == 0o600


async def test_rubbish_on_the_socket_ends_that_connection_only(client: ChildClient, tmp_path: Path) -> None:
    for rubbish in (b"\xff\xff\xff\x7f", b"\x03\x00\x00\x00abc", b"\x02\x00"):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "engine.sock")
        writer.write(rubbish)
        writer.write_eof()
        async with asyncio.timeout(60):
            await reader.read(-1)
        writer.close()
    assert (await _collect(client, _request("after")))[-1].last


def test_no_orphan_is_left_when_the_parent_is_killed(first_layers: Path, tmp_path: Path) -> None:
    # Given a parent with a ready child
    script = f"""
import asyncio
from pathlib import Path
from engine.child_client import ChildClient
from engine.config import EngineConfig
async def main():
    config = EngineConfig(model={str(first_layers)!r}, num_threads=1, num_gpu_blocks_override=64)
    client = ChildClient(config, Path({str(tmp_path / "engine.sock")!r}))
    await client.start()
    print(client.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    root = Path(__file__).resolve().parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    # When the parent is killed
    parent.kill()
    parent.wait()
    parent.stdout.close()
    # Then the child is gone within moments
    with contextlib.suppress(ProcessLookupError):
        for _ in range(3000):
            os.kill(child, 0)
            if "Z" in Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]:
                return  # dead, and nobody here to reap it
            _wait_a_moment()
        raise AssertionError(f"process {child} still runs")


def _wait_a_moment() -> None:
    subprocess.run(["sleep", "0.02"], check=True)


def test_a_worker_imports_no_torch() -> None:
    script = "import sys, engine.child_client; sys.exit('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": str(root)})


def test_the_scheduler_imports_no_torch() -> None:
    script = "import sys, engine.scheduler, engine.validation, engine.streams; sys.exit('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": str(root)})
