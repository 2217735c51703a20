"""Faults that other engines have had, at the sizes they were reported with; what must hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import QueueFull
from engine.scheduler import MAX_PREEMPTIONS
from engine.types import Priority
from tests.engine.core_harness import add, leaked_pages, make_core, prompt, request, run, step

LONG: dict[str, Any] = {"max_position_embeddings": 8192}


@pytest.mark.parametrize(
    "settings",
    [{}, {"deterministic": True, "shape": {"torch_dtype": "bfloat16", "hidden_size": 64}}],
    ids=["float32", "deterministic bfloat16"],
)
def test_the_same_600_token_prompt_says_the_same_five_times_on_a_fresh_engine(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    core = make_core(tmp_path, **settings)
    ids = prompt(600, 4)
    answers = [run(core, [request(f"r{i}", ids, max_tokens=40)])[f"r{i}"] for i in range(5)]
    assert answers[1:] == answers[:1] * 4
    assert core.stats().prefix_cache_hits == 4 * 592


def test_every_prompt_length_around_a_page_can_be_sent_twice(tmp_path: Path) -> None:
    core = make_core(tmp_path)
    for length in range(1, 50):
        first, second = (run(core, [request("r", prompt(length, length), max_tokens=2)])["r"] for _ in range(2))
        assert first == second


@pytest.mark.heavy
def test_thirty_two_requests_of_300_tokens_on_64_pages_equal_the_large_pool(tmp_path: Path) -> None:
    batch = [request(f"r{i}", prompt(12, i), max_tokens=300) for i in range(32)]
    expected = run(make_core(tmp_path), batch, max_steps=20_000)
    core = make_core(tmp_path, num_gpu_blocks_override=64)
    add(core, *batch)
    groups = list(core.scheduler.groups.values())
    assert run(core, max_steps=20_000) == expected
    assert core.stats().num_preemptions > 0
    assert max(s.num_preemptions for group in groups for s in group.sequences) <= MAX_PREEMPTIONS
    assert leaked_pages(core) == 0


@pytest.mark.heavy
def test_four_6k_prompts_with_twenty_prompt_logprobs_leave_other_streams_unharmed(tmp_path: Path) -> None:
    # Given memory for little more than these
    core = make_core(tmp_path, shape=LONG, num_gpu_blocks_override=4 * 380 + 20, max_num_batched_tokens=512)
    expected = run(core, [request("stream", prompt(9), max_tokens=60)])["stream"]
    add(core, request("stream", prompt(9), max_tokens=60))
    add(core, *(request(f"p{i}", prompt(6000, i), prompt_logprobs=20, max_tokens=2) for i in range(4)))
    # When they run beside a stream
    tokens: list[int] = []
    scores = 0
    while core.has_work:
        outputs = step(core)
        mine = [t for o in outputs if o.request_id == "stream" for t in o.token_ids]
        tokens += mine
        scores += sum(len(o.prompt_scores or ()) for o in outputs)
    # Then the stream said what it always says, and every position was scored
    assert tokens == expected
    assert scores == 4 * 5999


def test_a_stream_gets_its_token_every_step_beside_a_long_prompt_and_a_short_one_is_quick(tmp_path: Path) -> None:
    # Given one stream decoding, then a prompt of 8k tokens, then one of 100
    core = make_core(tmp_path, shape=LONG, num_gpu_blocks_override=700, max_num_batched_tokens=256)
    add(core, request("stream", prompt(5), max_tokens=200))
    step(core)
    add(core, request("long", prompt(8000, 1), max_tokens=1))
    step(core)
    add(core, request("short", prompt(100, 2), max_tokens=1))
    done_after: dict[str, int] = {}
    for number in range(1, 80):
        outputs = step(core)
        # Then no step goes by without the stream's token
        assert [len(o.token_ids) for o in outputs if o.request_id == "stream"] == [1]
        done_after |= {o.request_id: number for o in outputs if o.finish_reason}
        if "long" in done_after:
            break
    # And the short prompt did not wait for the long one
    assert done_after["short"] <= 2
    assert done_after["long"] > 20


def test_every_slot_held_by_batch_requests_an_urgent_one_starts_in_the_next_step(tmp_path: Path) -> None:
    core = make_core(tmp_path, max_num_seqs=4)
    slow = [request(f"b{i}", prompt(20, i), max_tokens=40, priority=Priority.BATCH) for i in range(8)]
    expected = run(make_core(tmp_path, max_num_seqs=4), slow)
    add(core, *slow)
    for _ in range(5):
        step(core)
    add(core, request("urgent", prompt(20, 99), max_tokens=3, priority=Priority.INTERACTIVE))
    assert "urgent" in {o.request_id for o in step(core)}
    # The victim's tokens before and after it yielded are the ones it would have said
    assert run(core)["b7"] == expected["b7"]
    assert core.stats().num_preemptions == 1


def test_a_flood_of_2000_at_a_limit_of_200_is_refused_at_once_and_goodput_stays(tmp_path: Path) -> None:
    core = make_core(tmp_path, max_num_seqs=16, max_num_queued_reqs=200)
    refused: list[QueueFull] = []
    for i in range(2000):
        try:
            add(core, request(f"r{i}", prompt(8, i), max_tokens=4))
        except QueueFull as exc:
            refused.append(exc)
    assert len(refused) == 1800
    assert all(1 <= exc.retry_after_s <= 60 for exc in refused)
    assert len(run(core)) == 200
    assert core.stats().num_waiting == 0
