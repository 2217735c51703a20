"""The rows `weir bench` prints. Each function takes a configuration and gives rows of plain values."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.bench.measure import Measurement, Progress, percentile, run_continuous, run_paged, run_static
from engine.bench.workload import Job, load_workload, workloads_module
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.startup import StartupReport, build_core

Row = dict[str, Any]
Start = Callable[[str, int], Progress]
# What a sweep must gain in throughput for one more step of slots to be worth its latency.
KNEE_GAIN = 0.10
RUNS = 3
LADDER_SPECULATION = '{"method":"ngram","num_speculative_tokens":4}'


def no_progress(_title: str, _total: int) -> Progress:
    return lambda _n: None


def make_bench_core(config: EngineConfig) -> tuple[EngineCore, StartupReport]:
    """A core that queues whole workloads. `llama-3-8b` is the shape of the published figures with random weights."""
    config = msgspec.structs.replace(config, max_num_queued_reqs=1 << 20, max_num_queued_tokens=0)
    report = StartupReport()
    if config.model != "llama-3-8b":
        return build_core(config, report=report), report
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(workloads_module().LLAMA8B))
        shape = msgspec.structs.replace(
            config, model=folder, load_format="dummy", served_model_name=config.served_model_name or ("llama-3-8b",)
        )
        return build_core(shape, report=report), report


def bench_workload(
    config: EngineConfig, name: str, *, limit: int | None = None, runs: int = RUNS, start: Start = no_progress
) -> list[Row]:
    """The median of `runs` runs, the prefix cache emptied before each."""
    core, report = make_bench_core(config)
    jobs = _jobs(core, name, limit)
    _warm_up(core, jobs)
    results = [run_continuous(core, jobs, start(f"{name}, run {i + 1} of {runs}", len(jobs))) for i in range(runs)]
    median = sorted(results, key=lambda r: r.seconds)[len(results) // 2]
    spread = (max(r.seconds for r in results) - min(r.seconds for r in results)) / median.seconds
    row = {"workload": name, "requests": len(jobs), **_figures(median), "spread": round(spread, 3)}
    return [{**row, "start_s": round(sum(report.phases.values()), 2)}]


def bench_batching(
    config: EngineConfig, name: str = "seed_mix", *, limit: int | None = None, start: Start = no_progress
) -> list[Row]:
    """Static against continuous batching of the same engine."""
    core, _ = make_bench_core(_with_mean_memory(config, name, limit))
    jobs = _jobs(core, name, limit)
    _warm_up(core, jobs)
    rows = [
        {"batching": label, **_figures(run(core, jobs, start(label, len(jobs))))}
        for label, run in (("static", run_static), ("continuous", run_continuous))
    ]
    for row in rows:
        row["ratio"] = round(row["out_tok_s"] / rows[0]["out_tok_s"], 2)
    return rows


def bench_ladder(
    config: EngineConfig, name: str = "seed_mix", *, limit: int | None = None, start: Start = no_progress
) -> list[Row]:
    """Static batching, paged memory, continuous batching, speculation: what each step brings on one model in the same
    memory. Speculation is as configured, else by n-grams."""
    speculative = config.speculative_config or LADDER_SPECULATION
    core, _ = make_bench_core(
        _with_mean_memory(msgspec.structs.replace(config, speculative_config=speculative), name, limit)
    )
    proposer, core.scheduler.proposer = core.scheduler.proposer, None
    jobs = _jobs(core, name, limit)
    _warm_up(core, jobs)
    slot_bytes = core.runner.cache.layout.size_bytes / sum(
        pages * config.block_size for pages in core.runner.cache.layout.num_pages
    )
    rows: list[Row] = []
    rungs = [("static", run_static), ("paged", run_paged), ("continuous", run_continuous)]
    if proposer is not None:  # on a GPU there is none yet
        rungs.append(("speculative", run_continuous))
    for label, run in rungs:
        core.scheduler.proposer = proposer if label == "speculative" else None
        steps = core.stats().num_steps
        result = run(core, jobs, start(label, len(jobs)))
        rows.append(
            {
                "rung": label,
                "out_tok_s": round(result.output_tokens_per_s, 1),
                "gain": round(result.output_tokens_per_s / rows[0]["out_tok_s"], 2) if rows else 1.0,
                "steps": core.stats().num_steps - steps,
                "kv_peak_mib": round(result.peak_slots * slot_bytes / (1 << 20), 1),
                "kv_waste": round(result.kv_waste, 4),
                "p99_s": round(percentile(result.e2e_s, 0.99), 2),
                "device_use": round(result.busy_s / result.seconds, 3),
            }
        )
    return rows


def bench_prefix_caching(
    config: EngineConfig, name: str = "shared_prefix", *, limit: int | None = None, start: Start = no_progress
) -> list[Row]:
    """The same workload with the prefix cache off and on: prefilled tokens and TTFT."""
    rows: list[Row] = []
    for on in (False, True):
        core, _ = make_bench_core(msgspec.structs.replace(config, enable_prefix_caching=on))
        jobs = _jobs(core, name, limit)
        _warm_up(core, jobs)
        label = "on" if on else "off"
        result = run_continuous(core, jobs, start(f"prefix caching {label}", len(jobs)))
        rows.append({"prefix_caching": label, "prefilled_tokens": result.prefilled_tokens, **_figures(result)})
    return rows


def bench_sweep(
    config: EngineConfig,
    max_num_seqs: Sequence[int],
    name: str = "seed_mix",
    *,
    limit: int | None = None,
    start: Start = no_progress,
) -> list[Row]:
    """Throughput and p99 by number of slots; `knee` marks the last one that was worth it."""
    rows: list[Row] = []
    for slots in sorted(max_num_seqs):
        core, _ = make_bench_core(msgspec.structs.replace(config, max_num_seqs=slots))
        jobs = _jobs(core, name, limit)
        _warm_up(core, jobs)
        result = run_continuous(core, jobs, start(f"max_num_seqs {slots}", len(jobs)))
        rows.append({"max_num_seqs": slots, **_figures(result), "knee": ""})
    if rows:
        rows[find_knee([row["out_tok_s"] for row in rows])]["knee"] = "knee"
    return rows


def find_knee(throughputs: Sequence[float]) -> int:
    """The index after which the next step no longer gains KNEE_GAIN."""
    for i in range(len(throughputs) - 1):
        if throughputs[i + 1] < throughputs[i] * (1 + KNEE_GAIN):
            return i
    return len(throughputs) - 1


def _jobs(core: EngineCore, name: str, limit: int | None) -> list[Job]:
    return load_workload(name, vocab_size=core.info.logits_width, max_model_len=core.info.max_model_len, limit=limit)


def _with_mean_memory(config: EngineConfig, name: str, limit: int | None) -> EngineConfig:
    """Unless told otherwise, memory for every slot at the workload's mean length: what continuous batching fills, and
    what forces rows that reserve the longest length to be fewer."""
    if config.num_gpu_blocks_override or config.kv_cache_memory_bytes:
        return config
    jobs = load_workload(name, vocab_size=1 << 17, max_model_len=1 << 17, limit=limit)
    mean = statistics.fmean(len(job.prompt) + job.num_outputs for job in jobs)
    slots = config.max_num_seqs or 32
    longest = max(len(job.prompt) + job.num_outputs for job in jobs)
    tokens = max(longest, int(slots * mean))
    return msgspec.structs.replace(
        config, max_num_seqs=slots, num_gpu_blocks_override=max(2, -(-tokens // config.block_size))
    )


def _warm_up(core: EngineCore, jobs: Sequence[Job]) -> None:
    """First calls pay for allocations and compiled kernels; they are not what is measured."""
    run_continuous(core, [Job(job.prompt[:64], 2) for job in jobs[:4]])


def _figures(result: Measurement) -> Mapping[str, Any]:
    return {
        "seconds": round(result.seconds, 2),
        "out_tok_s": round(result.output_tokens_per_s, 1),
        "prompt_tok_s": round(result.prompt_tokens_per_s, 1),
        "ttft_p50_s": round(percentile(result.ttft_s, 0.5), 3),
        "ttft_mean_s": round(statistics.fmean(result.ttft_s), 3),
        "e2e_p50_s": round(percentile(result.e2e_s, 0.5), 2),
        "e2e_p99_s": round(percentile(result.e2e_s, 0.99), 2),
        "preemptions": result.preemptions,
    }
