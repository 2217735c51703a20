"""The runner on the CPU: prompt logprobs, fp8 pages, swap, seeds, the bit-exact deterministic mode."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from engine.core import EngineCore
from engine.core_output import TokenScore
from engine.errors import InvalidRequest
from engine.model_runner import PROMPT_LOGPROB_ROWS
from engine.swap_cost import SwapCost
from engine.types import EngineRequest, FinishReason, Priority
from tests.engine.core_harness import VOCAB, WINDOWED, add, leaked_pages, make_core, prompt, request, run, step


def _scores(core: EngineCore, *requests: EngineRequest) -> dict[str, tuple[list[TokenScore], list[TokenScore]]]:
    """Scores of the tokens and of the prompt, by request."""
    add(core, *requests)
    found: dict[str, tuple[list[TokenScore], list[TokenScore]]] = {r.request_id: ([], []) for r in requests}
    while core.has_work:
        for output in step(core):
            found[output.request_id][0].extend(output.scores or ())
            found[output.request_id][1].extend(output.prompt_scores or ())
    return found


def test_prompt_logprobs_are_those_of_the_whole_prompt_whatever_the_chunks(tmp_path: Path) -> None:
    ids = prompt(150, 3)
    whole = _scores(make_core(tmp_path), request("r", ids, prompt_logprobs=4))["r"][1]
    core = make_core(tmp_path, max_num_batched_tokens=32)
    run(core, [request("warm", ids)])  # a filled prefix cache must not swallow positions
    chunked = _scores(core, request("r", ids, prompt_logprobs=4), request("other", prompt(40)))["r"][1]
    assert [score.token_id for score in whole] == ids[1:]
    assert [score.token_id for score in chunked] == ids[1:]
    assert [score.logprob for score in chunked] == pytest.approx([score.logprob for score in whole], abs=1e-4)
    assert all(len(score.top_ids) == 4 for score in chunked)
    assert all(score.top_logprobs[0] >= score.logprob for score in chunked)
    assert all((score.rank == 1) == (score.top_ids[0] == score.token_id) for score in chunked)


def test_a_preempted_prompt_is_scored_once(tmp_path: Path) -> None:
    # Given prompts in chunks on too few pages, batch class, and urgent ones that push them out half way
    core = make_core(tmp_path, num_gpu_blocks_override=16, max_num_batched_tokens=32, max_num_seqs=32)
    slow = request("slow", prompt(150, 1), prompt_logprobs=0, priority=Priority.BATCH)
    expected = _scores(make_core(tmp_path), slow)["slow"][1]
    add(core, slow)
    scores = [score for _ in range(3) for output in step(core) for score in output.prompt_scores or ()]
    add(core, *(request(f"u{i}", prompt(100, 2 + i), priority=Priority.INTERACTIVE) for i in range(2)))
    while core.has_work:
        scores += [score for output in step(core) for score in output.prompt_scores or ()]
    # Then every position is there once
    assert core.stats().num_preemptions > 0
    assert [score.token_id for score in scores] == [score.token_id for score in expected]


def test_prompt_logits_are_held_a_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given four long prompts whose every position is asked for
    core = make_core(tmp_path, max_num_batched_tokens=512)
    rows: list[int] = []
    compute = core.runner.model.compute_logits
    monkeypatch.setattr(core.runner.model, "compute_logits", lambda h: rows.append(h.shape[0]) or compute(h))
    found = _scores(core, *(request(f"r{i}", prompt(500, i), prompt_logprobs=20) for i in range(4)))
    # Then no call ever holds more rows than allowed
    assert max(rows) <= PROMPT_LOGPROB_ROWS
    assert all(len(scores) == 499 for _, scores in found.values())


def test_fp8_pages_stay_close_to_the_models_dtype(tmp_path: Path) -> None:
    ids = prompt(60, 5)
    exact = _scores(make_core(tmp_path), request("r", ids, prompt_logprobs=0))["r"][1]
    core = make_core(tmp_path, kv_cache_dtype="fp8")
    rounded = _scores(core, request("r", ids, prompt_logprobs=0))["r"][1]
    assert {pool.dtype for pool in core.runner.cache.pools} == {torch.float8_e4m3fn}
    errors = [abs(a.logprob - b.logprob) for a, b in zip(exact, rounded, strict=True)]
    # e4m3 keeps three bits of mantissa; the model was made with a wide spread, its mean log-probability is near -6
    assert 0 < sum(errors) / len(errors) < 0.2


@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_swapped_pages_come_back_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(SwapCost, "swap_is_cheaper", lambda *_: True)
    batch = [request(f"r{i}", prompt(30 + i, i), max_tokens=40) for i in range(6)]
    common: dict[str, Any] = {"shape": WINDOWED, "kv_cache_dtype": dtype, "enable_prefix_caching": False}
    expected = run(make_core(tmp_path, **common), batch)
    core = make_core(tmp_path, num_gpu_blocks_override=12, swap_space=0.01, **common)
    add(core, *batch)
    moved = 0
    schedule = core.scheduler.schedule

    def counting() -> Any:
        nonlocal moved
        plan = schedule()
        moved += len(plan.swap_in)
        return plan

    monkeypatch.setattr(core.scheduler, "schedule", counting)
    assert run(core) == expected
    assert moved > 0


def test_penalties_and_seed_survive_preemption(tmp_path: Path) -> None:
    # Given a pool far too small for 32 sampled, penalised requests
    sampling: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95, "frequency_penalty": 0.5, "repetition_penalty": 1.2}
    batch = [request(f"r{i}", prompt(10, i), max_tokens=60, seed=i, **sampling) for i in range(32)]
    expected = run(make_core(tmp_path), batch)
    core = make_core(tmp_path, num_gpu_blocks_override=24)
    assert run(core, batch) == expected
    assert core.stats().num_preemptions > 10
    assert leaked_pages(core) == 0


def test_a_seeded_request_says_the_same_among_forty_others(tmp_path: Path) -> None:
    sampling: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "max_tokens": 30}
    alone = run(make_core(tmp_path), [request("r", prompt(20), seed=7, **sampling)])["r"]
    others = [request(f"o{i}", prompt(5 + i, i), seed=i, **sampling) for i in range(40)]
    among = run(
        make_core(tmp_path, max_num_seqs=41), [*others[:20], request("r", prompt(20), seed=7, **sampling), *others[20:]]
    )
    assert among["r"] == alone
    assert among["o1"] != alone


def _exact_scores(core: EngineCore, target: EngineRequest, others: list[EngineRequest]) -> list[tuple[int, float]]:
    scores = _scores(core, *others[: len(others) // 2], target, *others[len(others) // 2 :])[target.request_id][0]
    return [(score.token_id, score.logprob) for score in scores]


EXPERTS: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "hidden_size": 96,
    "intermediate_size": 160,
}
ROUNDED = {"torch_dtype": "bfloat16", "hidden_size": 96}


@pytest.mark.parametrize(
    "shape",
    [None, WINDOWED, EXPERTS, ROUNDED, {**EXPERTS, **ROUNDED}],
    ids=["full", "windowed", "experts", "bfloat16", "experts, bfloat16"],
)
def test_the_deterministic_mode_is_exact_to_the_bit(tmp_path: Path, shape: dict[str, Any] | None) -> None:
    # Given a seeded request's tokens and log-probabilities alone
    target = request("r", prompt(70, 9), max_tokens=20, temperature=0.7, seed=3, logprobs=0)
    others = [request(f"o{i}", prompt(3 + 5 * i, i), max_tokens=20, logprobs=0) for i in range(10)]
    common: dict[str, Any] = {"shape": shape, "deterministic": True}
    expected = _exact_scores(make_core(tmp_path, **common), target, [])
    # Then neither neighbours nor chunking nor cache nor preemption move a single bit
    assert _exact_scores(make_core(tmp_path, **common), target, others) == expected
    assert _exact_scores(make_core(tmp_path, max_num_batched_tokens=24, **common), target, others) == expected
    core = make_core(tmp_path, **common)
    run(core, [request("warm", prompt(70, 9))])
    assert _exact_scores(core, target, others) == expected
    core = make_core(tmp_path, num_gpu_blocks_override=13, **common)
    assert _exact_scores(core, target, others) == expected
    assert core.stats().num_preemptions > 0
    # Which the ordinary mode does not promise: its products round with the batch
    assert len(expected) == 20


def test_a_request_larger_than_the_pool_is_clamped_or_refused_never_spun_on(tmp_path: Path) -> None:
    core = make_core(tmp_path, num_gpu_blocks_override=4)
    add(core, request("clamped", prompt(50), max_tokens=100_000))
    endings = []
    for _ in range(40):
        endings += [o.finish_reason for o in step(core) if o.finish_reason]
    assert endings == [FinishReason.LENGTH]
    with pytest.raises(InvalidRequest, match="65 tokens, at most"):
        core.accept(request("never", prompt(65)))


@pytest.mark.parametrize("seed", range(3))
def test_overlapped_steps_give_the_tokens_of_plain_ones_under_aborts(tmp_path: Path, seed: int) -> None:
    # Given the tokens of random requests run one step at a time
    random = Random(seed)
    batch = [
        request(
            f"r{i}",
            prompt(random.randrange(1, 90), i),
            max_tokens=random.randrange(1, 30),
            seed=i,
            temperature=random.choice((0.0, 1.0)),
            ignore_eos=False,
            n=random.choice((1, 1, 3)),
            presence_penalty=random.choice((0.0, 0.8)),
        )
        for i in range(30)
    ]
    expected = run(make_core(tmp_path, max_num_seqs=6), batch)
    # When they run overlapped on few pages, some aborted at random
    core = make_core(tmp_path, max_num_seqs=6, num_gpu_blocks_override=16, async_scheduling=True, shape=None)
    add(core, *batch)
    aborted: set[str] = set()
    tokens: dict[str, list[int]] = {}
    while core.has_work:
        outputs = step(core)
        if random.random() < 0.05:
            name = f"r{random.randrange(30)}"
            aborted.add(name)
            outputs += core.abort(name)
        for output in outputs:
            key = output.request_id if output.index == 0 else f"{output.request_id}/{output.index}"
            tokens.setdefault(key, []).extend(output.token_ids)
    # Then the untouched ones are equal, and the aborted ones got a beginning of theirs
    for key, ids in expected.items():
        got = tokens.get(key, [])
        assert got == (ids[: len(got)] if key.split("/")[0] in aborted else ids), key
    assert aborted
    assert leaked_pages(core) == 0


def test_ids_beyond_the_vocabulary_are_refused_before_the_queue(tmp_path: Path) -> None:
    core = make_core(tmp_path)
    with pytest.raises(InvalidRequest, match=f"token id {VOCAB} is outside"):
        core.accept(request("r", [1, VOCAB]))
    assert not core.has_work
