"""Both clients on SmolLM2, by the same tests: text, stop strings, aborts, refusals, neighbours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from llguidance import LLMatcher

from engine.child_client import ChildClient
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.errors import InvalidRequest, QueueFull
from engine.inline_client import InlineClient
from engine.tokenizer import Tokenizer
from engine.types import Delta, EngineRequest, FinishReason, SamplingParams

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Tokenizer:
    return Tokenizer.from_folder(smollm2)


def _config(model: Path, **settings: object) -> EngineConfig:
    common = {"num_threads": 1, "max_num_seqs": 8, "num_gpu_blocks_override": 256, "max_num_queued_reqs": 9}
    return EngineConfig.from_mapping({"model": str(model), **common, **settings})


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["inline", "child"])
async def client(
    request: pytest.FixtureRequest, smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EngineClient]:
    """Both clients must pass the same tests."""
    made: EngineClient = InlineClient(_config(smollm2))
    if request.param == "child":
        made = ChildClient(_config(smollm2), tmp_path_factory.mktemp("s") / "engine.sock")
    await made.start()
    yield made
    await made.close()


def _request(tokenizer: Tokenizer, name: str, question: str, **sampling: object) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        prompt_token_ids=tokenizer.encode(CHAT.format(question), allow_special=True),
        sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": 24, **sampling}),  # type: ignore[arg-type]
        cache_salt=b"salt-of-a-tenant",
    )


async def _collect(client: EngineClient, request: EngineRequest) -> list[Delta]:
    return [delta async for delta in client.generate(request)]


async def test_streamed_text_answers_and_counts_its_tokens(client: EngineClient, tokenizer: Tokenizer) -> None:
    deltas = await _collect(client, _request(tokenizer, "r", "What is the capital of France?"))
    text = "".join(delta.text for delta in deltas)
    assert "Paris" in text
    assert len(deltas) > 3
    assert [delta.last for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert deltas[-1].finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert deltas[-1].completion_tokens == sum(len(delta.token_ids) for delta in deltas)
    assert deltas[-1].engine_us > 0
    assert "<|im_end|>" not in text


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_string_over_token_borders_cuts_the_text(
    client: EngineClient, tokenizer: Tokenizer, include: bool
) -> None:
    # Given the free answer
    question = _request(tokenizer, "free", "What is the capital of France?")
    free = "".join(delta.text for delta in await _collect(client, question))
    # When a piece from inside of two of its words is the stop string
    at = free.index("Paris") - 3
    stop = free[at : at + 6]
    stopped = _request(
        tokenizer, "stopped", "What is the capital of France?", stop=(stop,), include_stop_str_in_output=include
    )
    deltas = await _collect(client, stopped)
    # Then the text ends there, and the engine goes idle
    assert "".join(delta.text for delta in deltas) == free[: at + (6 if include else 0)]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason, deltas[-1].last) == (FinishReason.STOP, stop, True)
    await _until_idle(client)


async def test_a_grammar_holds_and_a_broken_one_is_refused(client: EngineClient, tokenizer: Tokenizer) -> None:
    digits = LLMatcher.grammar_from_regex(r"[0-9]{3}-[0-9]{4}")
    deltas = await _collect(client, _request(tokenizer, "g", "Your number?", grammar=digits))
    assert re.fullmatch(r"[0-9]{3}-[0-9]{4}", "".join(delta.text for delta in deltas))
    with pytest.raises(InvalidRequest, match="grammar cannot be used") as refused:
        await _collect(client, _request(tokenizer, "b", "Your number?", grammar="{]"))
    assert refused.value.param == "grammar"


async def test_an_id_in_use_is_refused_and_free_again_afterwards(client: EngineClient, tokenizer: Tokenizer) -> None:
    stream = client.generate(_request(tokenizer, "twice", "Tell me a story", max_tokens=200))
    await anext(stream)
    with pytest.raises(InvalidRequest, match="already in use"):
        await _collect(client, _request(tokenizer, "twice", "Hi"))
    await stream.aclose()
    assert (await _collect(client, _request(tokenizer, "twice", "Hi", max_tokens=3)))[-1].last


async def _until_idle(client: EngineClient) -> None:
    for _ in range(12_000):
        stats = await client.stats()
        if not (stats.num_running or stats.num_waiting or stats.kv_blocks_referenced):
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"not idle: {stats}")


async def test_leaving_a_stream_frees_its_slot_and_pages(client: EngineClient, tokenizer: Tokenizer) -> None:
    # Given streams left before the first delta, after it, and an explicit abort
    early = client.generate(_request(tokenizer, "early", "Tell me a story", max_tokens=200))
    task = asyncio.ensure_future(anext(early))
    await asyncio.sleep(0)
    task.cancel()
    late = client.generate(_request(tokenizer, "late", "Tell me a story", max_tokens=200))
    await anext(late)
    await late.aclose()
    aborted = asyncio.ensure_future(_collect(client, _request(tokenizer, "gone", "Tell me a story", max_tokens=200)))
    await asyncio.sleep(0.05)
    await client.abort("gone")
    # Then all is given back and the aborted stream ends as aborted
    assert (await aborted)[-1].finish_reason is FinishReason.ABORT
    await client.abort("gone")
    await _until_idle(client)


async def test_fifty_streams_that_are_left_give_everything_back(client: EngineClient, tokenizer: Tokenizer) -> None:
    # Given streams of thousands of tokens: running, in the middle of a long prompt, waiting, refused
    before = (await client.stats()).finished.get("abort", 0)
    requests = [
        _request(tokenizer, f"s{i}", "word " * (1 + 30 * (i % 8)), max_tokens=1000, ignore_eos=True) for i in range(50)
    ]
    tasks = [asyncio.ensure_future(_collect(client, request)) for request in requests]
    await asyncio.sleep(0.5)
    # When all leave at once
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    # Then slots and pages are back, and the engine counts whom it cut
    await _until_idle(client)
    left = sum(isinstance(result, asyncio.CancelledError) for result in results)
    assert left + sum(isinstance(result, QueueFull) for result in results) == 50
    assert (await client.stats()).finished["abort"] - before == left > 8


async def test_neighbours_do_not_change_a_greedy_answer(client: EngineClient, tokenizer: Tokenizer) -> None:
    questions = ["What is the capital of France?", "Name three colours.", "Count to five.", "Say hello in Spanish."]
    streams = [_collect(client, _request(tokenizer, f"q{i}", q)) for i, q in enumerate(questions)]
    together = ["".join(d.text for d in deltas) for deltas in await asyncio.gather(*streams)]
    assert len(set(together)) == 4
    assert "Paris" in together[0]


async def test_bad_and_surplus_requests_are_refused_before_the_first_delta(
    client: EngineClient, tokenizer: Tokenizer
) -> None:
    too_long = EngineRequest(
        request_id="x", prompt_token_ids=[5] * 5000, sampling=SamplingParams(), cache_salt=b"salt-of-a-tenant"
    )
    with pytest.raises(InvalidRequest, match="5000 tokens, at most 4095") as refused:
        await _collect(client, too_long)
    assert refused.value.code == "context_length_exceeded"
    crowd = [
        asyncio.ensure_future(_collect(client, _request(tokenizer, f"c{i}", "Tell me a story", max_tokens=2)))
        for i in range(40)
    ]
    results = await asyncio.gather(*crowd, return_exceptions=True)
    refusals = [r for r in results if isinstance(r, QueueFull)]
    assert 0 < len(refusals) < 40
    assert all(1 <= r.retry_after_s <= 60 for r in refusals)
    assert all(isinstance(r, list | QueueFull) for r in results)
    await _until_idle(client)
