"""`weir bench`'s bodies: the workloads as they were copied, honest counting, the knee."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from engine.bench.measure import percentile, run_continuous, run_paged, run_static, static_rows
from engine.bench.reports import (
    bench_batching,
    bench_ladder,
    bench_prefix_caching,
    bench_sweep,
    bench_workload,
    find_knee,
)
from engine.bench.workload import Job, load_workload, workload_names
from engine.config import ConfigError, EngineConfig
from tests.engine.core_harness import SHAPE, make_core, prompt


def test_the_workloads_are_the_shared_ones_unchanged() -> None:
    source = Path(__file__).resolve().parents[2] / "benchmarks" / "workloads.py"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert digest == "88c487cc6900d1a2b929d88db08b82b79a2002dd297237980d0492c403072789"
    assert "seed_mix" in workload_names()


def test_ids_fit_the_vocabulary_and_shared_prefixes_stay_shared() -> None:
    jobs = load_workload("shared_prefix", vocab_size=300, max_model_len=2048, limit=8)
    assert all(0 <= token_id < 300 for job in jobs for token_id in job.prompt)
    assert jobs[0].prompt[:1024] == jobs[4].prompt[:1024]
    assert jobs[0].prompt[:1024] != jobs[1].prompt[:1024]
    with pytest.raises(ConfigError, match="unknown workload 'nothing', known are single"):
        load_workload("nothing", vocab_size=300, max_model_len=2048)


@pytest.mark.parametrize("run", [run_static, run_paged, run_continuous])
def test_each_way_of_batching_counts_what_the_jobs_asked_for(tmp_path: Path, run: object) -> None:
    # Given jobs of very different lengths and memory for two of the longest
    core = make_core(tmp_path, max_num_seqs=8, num_gpu_blocks_override=14)
    jobs = [Job(prompt(10 + i, i), n) for i, n in enumerate((4, 60, 4, 4, 60, 4, 4, 4))]
    assert static_rows(core, jobs) == 2
    result = run(core, jobs)  # type: ignore[operator]
    assert result.output_tokens == sum(job.num_outputs for job in jobs)
    assert result.prompt_tokens == sum(len(job.prompt) for job in jobs)
    assert len(result.e2e_s) == len(result.ttft_s) == 8
    assert 0 < result.busy_s <= result.seconds
    assert core.stats().kv_blocks_referenced == 0


def test_continuous_batching_needs_fewer_steps_and_wastes_less_memory(tmp_path: Path) -> None:
    jobs = [Job(prompt(20 + i, i), n) for i, n in enumerate((10, 50, 10, 10, 50, 10, 10, 10) * 3)]
    steps, waste = {}, {}
    for run in (run_static, run_continuous):
        core = make_core(tmp_path, max_num_seqs=8, num_gpu_blocks_override=24)
        waste[run.__name__] = run(core, jobs).kv_waste
        steps[run.__name__] = core.stats().num_steps
    assert steps["run_continuous"] * 2 < steps["run_static"]
    assert waste["run_continuous"] < waste["run_static"] / 2


def test_pages_waste_less_than_four_percent_on_the_mixed_workload(tmp_path: Path) -> None:
    core = make_core(tmp_path, max_num_seqs=16, num_gpu_blocks_override=1000)
    jobs = load_workload("seed_mix", vocab_size=300, max_model_len=2048, limit=16)
    assert run_continuous(core, [Job(job.prompt, min(job.num_outputs, 60)) for job in jobs]).kv_waste < 0.04


def _config(folder: Path) -> EngineConfig:
    (folder / "config.json").write_text(json.dumps(SHAPE))
    return EngineConfig(model=str(folder), load_format="dummy", device="cpu", max_num_seqs=4, num_threads=1)


def test_the_prefix_cache_halves_what_is_prefilled(tmp_path: Path) -> None:
    off, on = bench_prefix_caching(_config(tmp_path), limit=12)
    assert on["prefilled_tokens"] * 2 < off["prefilled_tokens"]


def test_reports_give_a_row_a_line(tmp_path: Path) -> None:
    config = _config(tmp_path)
    rungs = {row["rung"]: row for row in bench_ladder(config, limit=3)}
    assert list(rungs) == ["static", "paged", "continuous", "speculative"]
    assert rungs["speculative"]["steps"] <= rungs["continuous"]["steps"]
    assert [row["batching"] for row in bench_batching(config, limit=3)] == ["static", "continuous"]
    sweep = bench_sweep(config, [2, 1], limit=2)
    assert [row["max_num_seqs"] for row in sweep] == [1, 2]
    assert [row["knee"] for row in sweep].count("knee") == 1
    (row,) = bench_workload(config, "seed_mix", limit=2, runs=2)
    assert row["requests"] == 2


def test_the_knee_is_the_last_step_that_paid() -> None:
    assert find_knee([100, 190, 350, 360, 365]) == 2
    assert find_knee([100, 200]) == 1
    assert find_knee([100, 101]) == 0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([], 0.5) == 0.0
