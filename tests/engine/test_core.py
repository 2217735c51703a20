"""The whole core on a tiny fp32 model: the same tokens whatever the batch, chunks, cache and preemptions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.core import EngineCore
from engine.types import FinishReason
from tests.engine.core_harness import (
    SALT,
    SPECULATIVE,
    VOCAB,
    WINDOWED,
    add,
    leaked_pages,
    make_core,
    prompt,
    request,
    run,
    step,
)

PROMPTS = [prompt(length, seed=length) for length in (1, 5, 16, 17, 31, 48, 64, 70)]


def _reference(
    folder: Path, shape: dict[str, object] | None, max_tokens: int, *, circling: bool = False
) -> dict[str, list[int]]:
    """Each prompt alone, in one chunk, without the prefix cache."""
    core = make_core(folder, shape=shape, circling=circling, enable_prefix_caching=False, max_num_batched_tokens=512)
    found: dict[str, list[int]] = {}
    for ids in PROMPTS:
        found |= run(core, [request(f"p{len(ids)}", ids, max_tokens=max_tokens)])
    return found


@pytest.mark.parametrize("shape", [None, WINDOWED], ids=["full", "windowed"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 16, "max_num_seqs": 8},
        {"enable_prefix_caching": False, "long_prefill_token_threshold": 7},
        {"max_num_seqs": 3},
        {"num_gpu_blocks_override": 14},
        {"num_gpu_blocks_override": 14, "swap_space": 0.01},
        {"num_gpu_blocks_override": 14, "async_scheduling": True},
        {"async_scheduling": True, "max_num_batched_tokens": 16, "max_num_seqs": 8},
        {"enable_chunked_prefill": False},
        {"deterministic": True},
        {"scheduling_policy": "fcfs"},
        {"speculative_config": SPECULATIVE},
        {"speculative_config": SPECULATIVE, "num_gpu_blocks_override": 14},
        {"speculative_config": SPECULATIVE, "num_gpu_blocks_override": 14, "swap_space": 0.01},
        {"speculative_config": SPECULATIVE, "max_num_batched_tokens": 16, "max_num_seqs": 8, "deterministic": True},
    ],
    ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items()) or "default",
)
def test_greedy_tokens_do_not_depend_on_how_the_engine_ran_them(
    tmp_path: Path, shape: dict[str, object] | None, settings: dict[str, object]
) -> None:
    # Given the tokens of each prompt alone, of a model that repeats itself where drafts are to hold
    circling = "speculative_config" in settings
    max_tokens = 60 if circling else 24
    expected = _reference(tmp_path, shape, max_tokens, circling=circling)
    # When all run together, twice (the second time over a filled cache)
    core = make_core(tmp_path, shape=shape, circling=circling, **settings)
    batch = [request(f"p{len(ids)}", ids, max_tokens=max_tokens) for ids in PROMPTS]
    first, second = run(core, batch), run(core, batch)
    # Then nothing differs, and nothing is left behind
    assert first == expected
    assert second == expected
    assert leaked_pages(core) == 0
    if settings.get("num_gpu_blocks_override") == 14:
        assert core.stats().num_preemptions > 0
    if circling:
        assert core.stats().num_draft_tokens > core.stats().num_accepted_tokens > 20


def test_a_prompt_of_whole_pages_sent_twice_is_served_from_the_cache(tmp_path: Path) -> None:
    # Given a prompt of exactly four pages
    core = make_core(tmp_path)
    ids = prompt(64)
    first = run(core, [request("one", ids)])["one"]
    # When it comes again
    add(core, request("two", ids))
    outputs = step(core)
    # Then all but the last page is taken from the cache, and the answer is the same
    assert outputs[0].cached_tokens == 48
    assert [*outputs[0].token_ids, *run(core)["two"]] == first


def test_another_salt_never_finds_the_pages(tmp_path: Path) -> None:
    core = make_core(tmp_path)
    ids = prompt(64)
    run(core, [request("one", ids)])
    add(core, request("two", ids, salt=SALT + b"x", tenant="b"))
    assert step(core)[0].cached_tokens == 0


def test_abort_gives_back_slot_and_pages_within_a_step(tmp_path: Path) -> None:
    # Given one request decoding, one in the middle of its prompt, one waiting
    core = make_core(tmp_path, max_num_seqs=2, max_num_batched_tokens=16)
    add(core, request("decoding", prompt(5), max_tokens=100), request("prefilling", prompt(200, 2)))
    step(core)
    step(core)
    add(core, request("waiting", prompt(9, 3)))
    # When all are aborted, twice
    outputs = [o for name in ("decoding", "prefilling", "waiting") for o in (*core.abort(name), *core.abort(name))]
    # Then each ends once, nothing is held, and the engine still works
    assert [o.finish_reason for o in outputs] == [FinishReason.ABORT] * 3
    assert all(o.request_done for o in outputs)
    assert not core.has_work
    assert leaked_pages(core) == 0
    core.scheduler.check()
    assert run(core, [request("next", prompt(5))])["next"]


def test_a_request_with_nan_logits_fails_alone(tmp_path: Path) -> None:
    # Given a token whose embedding is NaN
    core = make_core(tmp_path)
    expected = run(core, [request("good", prompt(20, 1))])["good"]
    model = core.runner.model
    model.get_submodule("model.embed_tokens").weight.data[7] = float("nan")
    # When a request with that token runs among good ones
    bad, good = request("bad", [1, 7, 3] * 8), request("good", [t if t != 7 else 8 for t in prompt(20, 1)])
    add(core, bad, good)
    tokens: dict[str, list[int]] = {}
    errors = {}
    while core.has_work:
        for output in step(core):
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
            if output.error:
                errors[output.request_id] = output.error
    # Then it alone fails, and its pages are clean for whoever gets them
    assert list(errors) == ["bad"]
    assert "finite" in errors["bad"]
    assert len(tokens["good"]) == 8
    assert len(expected) == 8
    for _ in range(3):
        assert run(core, [request("later", [t if t != 7 else 8 for t in prompt(300, 5)])])["later"]
    assert not any(torch.isnan(pool).any() for pool in core.runner.cache.pools)


def test_engine_time_is_shared_out_exactly(tmp_path: Path) -> None:
    # Given a clock that advances 1,001 microseconds a reading
    ticks = iter(range(1, 1_000_000))
    core = make_core(tmp_path, clock=lambda: next(ticks) * 0.001001)
    add(core, request("a", prompt(50)), request("b", prompt(3), max_tokens=30), request("c", prompt(1)))
    shares = {}
    while core.has_work:
        for output in step(core):
            if output.request_done:
                shares[output.request_id] = output.engine_us
    # Then the shares sum to the busy time, and the larger request paid more
    assert sum(shares.values()) == core.stats().busy_us
    assert shares["b"] > shares["c"] > 0


def _ends(core: EngineCore) -> dict[str, tuple[FinishReason | None, str | int | None]]:
    found = {}
    while core.has_work:
        for output in step(core):
            if output.finish_reason is not None:
                found[output.request_id] = (output.finish_reason, output.stop_reason)
    return found


def test_a_sequence_ends_at_eos_stop_ids_or_length(tmp_path: Path) -> None:
    core = make_core(tmp_path)
    tokens = run(core, [request("free", prompt(9), max_tokens=6)])["free"]
    bias = {VOCAB - 1: 100.0}
    add(
        core,
        request("length", prompt(9), max_tokens=6),
        request("stop_id", prompt(9), max_tokens=6, stop_token_ids=(tokens[2],)),
        request("eos", prompt(9), max_tokens=6, logit_bias=bias, ignore_eos=False),
        request("ignored", prompt(9), max_tokens=6, logit_bias=bias),
        request("late_eos", prompt(9), max_tokens=6, logit_bias=bias, ignore_eos=False, min_tokens=4),
    )
    assert _ends(core) == {
        "length": (FinishReason.LENGTH, None),
        "stop_id": (FinishReason.STOP, tokens[2]),
        "eos": (FinishReason.STOP, None),
        "ignored": (FinishReason.LENGTH, None),
        "late_eos": (FinishReason.STOP, None),
    }


def test_a_step_that_raises_fails_its_requests_and_the_next_ones_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a model that raises once while two requests run and one waits
    core = make_core(tmp_path, max_num_seqs=2)
    expected = run(core, [request("later", prompt(20))])["later"]
    add(core, request("a", prompt(5, 1)), request("b", prompt(7, 2)), request("later", prompt(20)))
    step(core)
    forward, failures = core.runner.model.forward, [1]

    def broken(*arguments: object) -> torch.Tensor:
        if failures:
            failures.pop()
            raise RuntimeError("device fault")
        return forward(*arguments)

    monkeypatch.setattr(core.runner.model, "forward", broken)
    # When it goes on
    outputs = [o for _ in range(30) for o in (step(core) if core.has_work else [])]
    # Then those two end with an error that tells no internals, and the third is answered
    assert {o.request_id for o in outputs if o.error} == {"a", "b"}
    assert {o.error for o in outputs if o.error} == {"the engine failed while running this request: RuntimeError"}
    assert [t for o in outputs if o.request_id == "later" for t in o.token_ids] == expected
    assert leaked_pages(core) == 0


def test_a_device_that_fails_step_after_step_ends_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(tmp_path, max_num_seqs=1)

    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("device lost")

    monkeypatch.setattr(core.runner.model, "forward", broken)
    add(core, *(request(f"r{i}", prompt(5)) for i in range(5)))
    step(core)
    step(core)
    with pytest.raises(RuntimeError, match="3 steps in a row failed"):
        core.step()


def test_streams_are_coalesced_after_the_first_token(tmp_path: Path) -> None:
    core = make_core(tmp_path, stream_interval=4)
    add(core, request("r", prompt(5), max_tokens=12))
    sizes = []
    while core.has_work:
        sizes += [len(output.token_ids) for output in step(core)]
    assert sizes == [1, 4, 4, 3]
