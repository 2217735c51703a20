"""The queue in front of the model: batches under load, fair to small calls, and trouble is each caller's own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from cache.embedder import BatchingEmbedder, EmbedderSpec, Embedding
from cache.embedder_process import ProcessBackend
from cache.embedder_thread import ThreadBackend
from cache.errors import EmbedderNotStarted, EmbedderUnavailable

REPOSITORY = Path(__file__).parents[2]


class SlowBackend:
    """Answers a batch when the test lets it."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.release = asyncio.Semaphore(0)
        self.fail = False

    async def start(self) -> int:
        return 2

    async def run(self, texts: Sequence[str]) -> list[Embedding]:
        self.batches.append(list(texts))
        await self.release.acquire()
        if self.fail:
            raise EmbedderUnavailable("broken")
        return [Embedding(np.array([len(text), 0], np.float32), len(text)) for text in texts]

    async def close(self) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path) -> EmbedderSpec:
    (tmp_path / "config.json").write_text("{}")
    return EmbedderSpec(path=str(tmp_path))


@pytest.fixture
async def slow(folder: EmbedderSpec) -> AsyncIterator[tuple[BatchingEmbedder, SlowBackend]]:
    backend = SlowBackend()
    embedder = BatchingEmbedder(folder, backend, max_batch_texts=16, max_pending_texts=100)
    await embedder.start()
    yield embedder, backend
    await embedder.close()


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_arrives_while_the_model_is_busy_goes_together(slow) -> None:
    embedder, backend = slow
    first = asyncio.create_task(embedder.embed(["a"]))
    await turn()
    others = [asyncio.create_task(embedder.embed([text])) for text in ("bb", "ccc", "dddd")]
    await turn()
    assert backend.batches == [["a"]]
    for _ in range(2):
        backend.release.release()
    results = await asyncio.gather(first, *others)
    assert backend.batches == [["a"], ["bb", "ccc", "dddd"]]
    assert [result[0].num_tokens for result in results] == [1, 2, 3, 4]


async def test_a_bulk_call_does_not_hold_up_a_lookup(slow) -> None:
    embedder, backend = slow
    bulk = asyncio.create_task(embedder.embed([f"bulk {n}" for n in range(60)]))
    await turn()
    lookup = asyncio.create_task(embedder.embed(["lookup"]))
    await turn()
    for _ in range(2):
        backend.release.release()
    assert len(await asyncio.wait_for(lookup, 60)) == 1  # in the second batch of about five
    for _ in range(10):
        backend.release.release()
    assert [item.num_tokens for item in await asyncio.wait_for(bulk, 60)] == [len(f"bulk {n}") for n in range(60)]


async def test_a_full_queue_refuses_and_frees_itself(slow) -> None:
    embedder, backend = slow
    waiting = asyncio.create_task(embedder.embed(["x"] * 100))
    await turn()
    with pytest.raises(EmbedderUnavailable, match="100 texts is full"):
        await embedder.embed(["one more"])
    waiting.cancel()
    await turn()
    backend.release.release()
    again = asyncio.create_task(embedder.embed(["y"]))
    backend.release.release()
    assert len(await asyncio.wait_for(again, 60)) == 1


async def test_a_failed_batch_fails_its_callers_alone(slow) -> None:
    embedder, backend = slow
    backend.fail = True
    task = asyncio.create_task(embedder.embed(["a"]))
    await turn()
    backend.release.release()
    with pytest.raises(EmbedderUnavailable):
        await task
    backend.fail = False
    backend.release.release()
    assert len(await asyncio.wait_for(embedder.embed(["b"]), 60)) == 1


async def test_closing_fails_open_calls_and_later_ones(slow) -> None:
    embedder, _ = slow
    open_call = asyncio.create_task(embedder.embed(["a"]))
    await turn()
    await embedder.close()
    with pytest.raises(EmbedderUnavailable):
        await open_call
    with pytest.raises(EmbedderUnavailable):
        await embedder.embed(["b"])


async def test_no_texts_need_no_model(slow) -> None:
    assert await slow[0].embed([]) == []


def test_the_fingerprint_is_of_the_models_contents(tmp_path: Path) -> None:
    """Case 15: a new model of the same width must not meet the old one's vectors."""
    for name, weights in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(weights)
    prints = [EmbedderSpec(path=str(tmp_path / name)).fingerprint() for name in "abc"]
    assert prints[0] == prints[1] != prints[2]
    with pytest.raises(EmbedderUnavailable, match="no model"):
        EmbedderSpec(path=str(tmp_path / "nowhere")).fingerprint()


@pytest.fixture(scope="module")
def spec() -> EmbedderSpec:
    return EmbedderSpec.packaged()


# Loading torch takes a busy machine from 5 to 20 seconds, so the usual run does it once.
@pytest.mark.parametrize("backend", [ProcessBackend, pytest.param(ThreadBackend, marks=pytest.mark.heavy)])
async def test_the_real_model_gives_unit_vectors_in_which_a_paraphrase_is_nearest(spec, backend) -> None:
    embedder = BatchingEmbedder(spec, backend(spec))
    await embedder.start()
    texts = ["How do I reset my password?", "How can I reset my password?", "Bananas are yellow."]
    one, same, other, unknown, long = await embedder.embed([*texts, "怎么办？", "a " * 300])
    await embedder.close()
    assert embedder.dims == 384
    assert all(abs(float(item.vector @ item.vector) - 1) < 1e-5 for item in (one, same, other))
    assert float(one.vector @ same.vector) > 0.95 > 0.3 > float(one.vector @ other.vector)
    assert one.num_tokens == 9  # with [CLS] and [SEP]
    assert (one.truncated, one.has_unknown) == (False, False)
    assert unknown.has_unknown
    assert long.truncated


@pytest.mark.heavy
async def test_a_model_that_does_not_load_is_named(folder: EmbedderSpec) -> None:
    with pytest.raises(EmbedderUnavailable, match="does not load"):
        await BatchingEmbedder(folder, ProcessBackend(folder)).start()


# A child that speaks the wire without a model: embeds a text as its length, dies, garbles or hangs when told to.
CHILD = """#!{python}
import os, struct, sys, time
sys.path.insert(0, {repository!r})
from cache.embedder_wire import Failure, Hello, Result, decode_to_child, frame, frame_length
say = lambda message: (sys.stdout.buffer.write(frame(message)), sys.stdout.buffer.flush())
if os.path.exists({folder!r} + "/broken"):
    say(Failure(-1, "no such model")); sys.exit(1)
say(Hello(1))
while header := sys.stdin.buffer.read(4):
    batch = decode_to_child(sys.stdin.buffer.read(frame_length(header)))
    text = batch.texts[0]
    if text == "die": os.kill(os.getpid(), 9)
    if text == "garble": sys.stdout.buffer.write(b"\\x05\\0\\0\\0hello"); sys.stdout.buffer.flush(); continue
    if text == "fail": say(Failure(batch.number, "cannot")); continue
    vectors = b"".join(struct.pack("<f", len(text)) for text in batch.texts)
    say(Result(batch.number, vectors, [1] * len(batch.texts), [0] * len(batch.texts)))
"""


@pytest.fixture
async def child(folder: EmbedderSpec) -> AsyncIterator[tuple[BatchingEmbedder, ProcessBackend]]:
    script = Path(folder.path) / "child.py"
    script.write_text(CHILD.format(python=sys.executable, repository=str(REPOSITORY), folder=folder.path))
    script.chmod(0o700)
    backend = ProcessBackend(folder, python=str(script))
    embedder = BatchingEmbedder(folder, backend)
    await embedder.start()
    yield embedder, backend
    await embedder.close()


async def replaced(backend: ProcessBackend, pid: int | None) -> bool:
    async with asyncio.timeout(60):
        while backend.pid in (None, pid):  # noqa: ASYNC110  # a process's start has no event here
            await asyncio.sleep(0.02)
    return True


@pytest.mark.parametrize("trouble", ["die", "garble"])
async def test_a_dead_or_garbling_process_is_replaced_and_only_its_batch_fails(child, trouble: str) -> None:
    embedder, backend = child
    pid = backend.pid
    with pytest.raises(EmbedderUnavailable):
        await embedder.embed([trouble])
    assert await replaced(backend, pid)
    assert float((await embedder.embed(["four"]))[0].vector[0]) == 4


async def test_a_batch_the_model_refuses_leaves_the_process_alone(child) -> None:
    embedder, backend = child
    pid = backend.pid
    with pytest.raises(EmbedderUnavailable):
        await embedder.embed(["fail"])
    assert float((await embedder.embed(["four"]))[0].vector[0]) == 4
    assert backend.pid == pid


async def test_while_the_process_starts_anew_a_call_is_refused_at_once(child) -> None:
    embedder, backend = child
    (Path(backend._spec.path) / "broken").touch()  # it cannot come back
    with pytest.raises(EmbedderUnavailable):
        await embedder.embed(["die"])
    async with asyncio.timeout(60):
        with pytest.raises(EmbedderUnavailable):
            await embedder.embed(["hello"])


async def test_a_process_that_cannot_load_says_why(folder: EmbedderSpec, child) -> None:
    (Path(folder.path) / "broken").touch()
    backend = ProcessBackend(folder, python=str(Path(folder.path) / "child.py"))
    with pytest.raises(EmbedderUnavailable, match="no such model"):
        await backend.start()


async def test_the_process_ends_with_its_gateway(child) -> None:
    embedder, backend = child
    pid = backend.pid
    assert pid is not None
    await embedder.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_a_gateway_imports_of_the_cache_brings_no_torch() -> None:
    modules = [
        "embedder", "embedder_process", "semantic", "flat_index", "store", "policy", "partition", "shared_flight",
        "invalidation", "replay", "shadow", "redisearch_index",
    ]  # fmt: skip
    imports = "; ".join(f"import cache.{module}" for module in modules)
    check = f"{imports}; import sys; sys.exit(any(m in sys.modules for m in ('torch', 'transformers')))"
    done = subprocess.run([sys.executable, "-c", check], cwd=REPOSITORY, check=False, timeout=60)
    assert done.returncode == 0


class LateBackend(SlowBackend):
    """Does not start in time, `failures` times."""

    def __init__(self, failures: int, error: type[EmbedderUnavailable]) -> None:
        super().__init__()
        self.failures, self.error = failures, error

    async def start(self) -> int:
        if self.failures:
            self.failures -= 1
            raise self.error("not now")
        return await super().start()


async def test_an_embedder_that_starts_late_is_tried_until_it_does(folder: EmbedderSpec) -> None:
    embedder = BatchingEmbedder(folder, LateBackend(3, EmbedderNotStarted))
    with pytest.raises(EmbedderNotStarted):
        await embedder.start()
    with pytest.raises(EmbedderUnavailable):
        await embedder.embed(["too early"])

    await embedder.start_eventually(backoff_s=0)

    assert embedder.dims > 0
    await embedder.close()


async def test_what_trying_again_does_not_mend_is_not_tried_again(folder: EmbedderSpec) -> None:
    backend = LateBackend(2, EmbedderUnavailable)
    with pytest.raises(EmbedderUnavailable):
        await BatchingEmbedder(folder, backend).start_eventually(backoff_s=0)
    assert backend.failures == 1
