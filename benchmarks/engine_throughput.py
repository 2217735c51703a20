"""The workloads every engine is measured on, through this engine, offline: one line each, appended to a CSV.

    python benchmarks/engine_throughput.py                          # Llama-3-8B shape, random weights, all workloads
    python benchmarks/engine_throughput.py --only single decode64   # some of them
    python benchmarks/engine_throughput.py --profile 1 64 256       # where a decode step's milliseconds go

Prompts are token ids, sampling is greedy, every output runs to its full length; each run brings a new cache salt, so
that it meets an empty prefix cache. Three runs, the median.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import statistics
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import results_file, workloads  # noqa: E402

RESULTS = results_file.FOLDER / "engine_throughput.csv"
COLUMNS = (
    "date", "commit", "gpu", "torch", "triton", "model", "dtype", "quantization", "workload", "seconds", "out_tok_s",
    "prompt_tok_s", "of_limit",
)  # fmt: skip
# Limits of one H200 by arithmetic (docs/performance.md): output tokens/s, prompt tokens/s for the last two.
LIMITS = {
    "single": 305, "decode8": 2400, "decode64": 14600, "decode256": 27000, "seed_mix": 6200, "shared_prefix": 12800,
    "prefill": 50000, "long_context": 33600,
}  # fmt: skip
BY_PROMPT = ("prefill", "long_context")


def process_age_s() -> float:
    """Seconds since this process was started by the kernel, imports and all."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return uptime - ticks / os.sysconf("SC_CLK_TCK")


def shape_of(args: argparse.Namespace) -> dict[str, Any]:
    """The config.json that --config names, or Llama-3-8B's."""
    return dict(json.loads(Path(args.config).read_text()) if args.config else workloads.LLAMA8B)


def make_core(args: argparse.Namespace, shape: dict[str, Any], report: Any) -> Any:
    import torch

    from engine.config import EngineConfig
    from engine.startup import build_core_from_folder, pick_device

    if args.model_folder:
        folder = Path(args.model_folder)
    else:
        folder = Path(tempfile.mkdtemp(prefix="weir-bench-"))
        (folder / "config.json").write_text(json.dumps(shape))
    settings: dict[str, Any] = {
        "model": str(folder),
        "load_format": "auto" if args.model_folder else "dummy",
        "max_num_seqs": args.max_num_seqs,
        "max_num_batched_tokens": args.max_num_batched_tokens,
        "max_num_queued_reqs": 4096,
        "enforce_eager": args.enforce_eager,
        "stream_interval": args.stream_interval,
        "swap_space": 0,
        **json.loads(args.settings),
    }
    config = EngineConfig.from_mapping(settings)
    torch.manual_seed(0)
    return build_core_from_folder(config, folder, device=pick_device(config), report=report, clock=time.perf_counter)


def run_workload(
    core: Any, requests: list[tuple[list[int], int]], steps: list[tuple[int, int, float]] | None = None
) -> float:
    """Seconds from the first request in to the last token out; `steps` takes (sequences, tokens, seconds) of each."""
    from engine.types import EngineRequest, SamplingParams

    salt = os.urandom(32)
    name = salt.hex()[:8]
    items = [
        EngineRequest(
            request_id=f"{name}-{i}",
            prompt_token_ids=prompt,
            sampling=SamplingParams(temperature=0.0, max_tokens=outputs, ignore_eos=True),
            cache_salt=salt,
        )
        for i, (prompt, outputs) in enumerate(requests)
    ]
    started = time.perf_counter()
    for item in items:
        core.add(core.accept(item))
    made = 0
    while core.has_work:
        step_started = time.perf_counter()
        outputs = core.step()
        if steps is not None and core._in_flight:
            plan = core._in_flight[-1].plan
            steps.append((len(plan.scheduled), plan.num_tokens, time.perf_counter() - step_started))
        for output in outputs:
            made += len(output.token_ids)
            if output.error is not None:
                raise RuntimeError(output.error)
    seconds = time.perf_counter() - started
    wanted = sum(outputs for _, outputs in requests)
    if made != wanted:
        raise RuntimeError(f"{made} tokens came out, {wanted} were asked for")
    return seconds


def measure(core: Any, name: str, runs: int) -> dict[str, float]:
    requests = workloads.ALL[name]()
    seconds = statistics.median(run_workload(core, requests) for _ in range(runs))
    out_tok_s = sum(outputs for _, outputs in requests) / seconds
    prompt_tok_s = sum(len(prompt) for prompt, _ in requests) / seconds
    limit = LIMITS.get(name)
    reached = prompt_tok_s if name in BY_PROMPT else out_tok_s
    return {
        "seconds": round(seconds, 3),
        "out_tok_s": round(out_tok_s, 1),
        "prompt_tok_s": round(prompt_tok_s, 1),
        "of_limit": round(reached / limit, 3) if limit else 0.0,
    }


def profile(core: Any, batch: int, steps: int = 20) -> None:
    """Device time of steady decode steps by kernel, the gaps between them, and the host's share."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    from engine.types import EngineRequest, SamplingParams

    salt = os.urandom(32)
    for i, (prompt, _) in enumerate(workloads.decode(batch)):
        sampling = SamplingParams(temperature=0.0, max_tokens=steps + 150, ignore_eos=True)
        core.add(core.accept(EngineRequest(
            request_id=f"p{batch}-{i}", prompt_token_ids=prompt, sampling=sampling, cache_salt=salt,
        )))  # fmt: skip
    for _ in range(110):
        core.step()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        core.step()
    torch.cuda.synchronize()
    step_ms = (time.perf_counter() - started) / steps * 1e3
    with torch_profile(activities=[ProfilerActivity.CUDA]) as prof:
        for _ in range(steps):
            core.step()
        torch.cuda.synchronize()
    print(f"batch {batch}: {step_ms:.3f} ms a step")
    print_kernels(prof, steps)
    while core.has_work:
        core.step()


def print_kernels(prof: Any, steps: int) -> None:
    """A profile's device time a step by kernel, and the share of it in which the device was idle."""
    import torch

    events = [
        e for e in prof.events() if e.device_type == torch.autograd.DeviceType.CUDA and e.time_range.elapsed_us() > 0
    ]
    spans = sorted((e.time_range.start, e.time_range.end) for e in events)
    busy, covered = 0.0, 0.0
    for start, end in spans:
        busy += max(0.0, end - max(start, covered))
        covered = max(covered, end)
    window = spans[-1][1] - spans[0][0]
    idle = 100 * (1 - busy / window)
    print(f"  the device idle {idle:.1f} % of {window / steps / 1e3:.3f} ms a step")
    by_name: dict[str, list[float]] = {}
    for event in events:
        by_name.setdefault(event.name[:70], []).append(event.time_range.elapsed_us())
    for name, times in sorted(by_name.items(), key=lambda item: -sum(item[1]))[:14]:
        total_ms, each_us = sum(times) / steps / 1e3, statistics.median(times)
        print(f"  {total_ms:8.3f} ms  {len(times) / steps:6.1f} x {each_us:7.1f} us  {name}")


def trace(core: Any, name: str) -> None:
    """A workload's steps by kind, then its host time by function (which the tracing itself about doubles)."""
    steps: list[tuple[int, int, float]] = []
    seconds = run_workload(core, workloads.ALL[name](), steps)
    print(f"{name}: {seconds:.3f} s in {len(steps)} steps")
    for kind, chosen in (("decodes alone", True), ("with prompts", False)):
        mine = [s for s in steps if (s[0] == s[1]) == chosen]
        if mine:
            tokens, total = sum(s[1] for s in mine), sum(s[2] for s in mine)
            worst = max(s[2] for s in mine)
            print(f"  {kind}: {len(mine)} steps, {tokens} tokens, {total:.3f} s, the longest {1e3 * worst:.1f} ms")
    recorder = cProfile.Profile()
    recorder.runcall(run_workload, core, workloads.ALL[name]())
    pstats.Stats(recorder).sort_stats("tottime").print_stats(22)


def cliff(core: Any) -> None:
    """Total throughput as the contexts in flight double: it must not fall."""
    random = Random(7)
    for count in (32, 64):
        requests = [(workloads._ids(random, random.randrange(8192, 12289)), 128) for _ in range(count)]
        seconds = run_workload(core, requests)
        tokens = sum(len(prompt) + outputs for prompt, outputs in requests)
        preempted = core.stats().num_preemptions
        print(f"{count} requests of 8k to 12k: {tokens / seconds:.0f} tokens/s in all, {preempted} preemptions so far")


def versions(args: argparse.Namespace) -> dict[str, str]:
    import torch

    try:
        import triton

        triton_version = triton.__version__
    except ImportError:
        triton_version = "none"
    return {
        **results_file.stamp(),
        **({"commit": args.commit} if args.commit else {}),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "triton": triton_version,
        "model": args.model_name,
        "dtype": "bfloat16",
        "quantization": json.loads(args.settings).get("quantization") or "none",
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(workloads.ALL), choices=list(workloads.ALL), metavar="NAME")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--model-name", default="llama-3-8b")
    parser.add_argument("--config", help="a config.json of another shape; default: Llama-3-8B's")
    parser.add_argument("--model-folder", default="", help="weights from here, not made on the spot")
    parser.add_argument("--max-num-seqs", type=int, default=512)
    parser.add_argument("--max-num-batched-tokens", type=int, default=16384)
    parser.add_argument("--stream-interval", type=int, default=8)
    parser.add_argument("--settings", default="{}", help="more engine settings, as JSON")
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--trace", nargs="*", default=[], metavar="NAME", help="where a workload's host time goes")
    parser.add_argument("--profile", nargs="*", type=int, default=[], metavar="BATCH")
    parser.add_argument("--cliff", action="store_true", help="32, then 64 requests of 8k to 12k context")
    parser.add_argument("--commit", default="", help="recorded instead of git's HEAD")
    parser.add_argument("--no-csv", action="store_true")
    return parser.parse_args()


def main() -> None:
    args = parse()
    from engine.startup import StartupReport

    imported_s = process_age_s()
    report = StartupReport()
    core = make_core(args, shape_of(args), report)
    run_workload(core, [(list(range(1000, 1128)), 2)])
    first_token_s = process_age_s()
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in report.phases.items())
    print(f"start to first tokens {first_token_s:.1f} s: import {imported_s:.1f}, {phases}", flush=True)
    gc.collect()
    gc.freeze()
    common = versions(args)
    rows = [
        {
            **common,
            "workload": "start",
            "seconds": round(first_token_s, 1),
            "out_tok_s": "",
            "prompt_tok_s": "",
            "of_limit": "",
        }
    ]
    print(f"{'workload':15s} {'seconds':>8s} {'out tok/s':>10s} {'prompt tok/s':>13s} {'of limit':>9s}")
    for name in args.only:
        # Compiles what this workload is first to need.
        run_workload(core, [(prompt, min(outputs, 8)) for prompt, outputs in workloads.ALL[name]()[:4]])
        row = measure(core, name, args.runs)
        rows.append({**common, "workload": name, **row})
        line = f"{name:15s} {row['seconds']:8.3f} {row['out_tok_s']:10.1f} {row['prompt_tok_s']:13.1f}"
        print(f"{line} {row['of_limit']:9.3f}", flush=True)
    if args.cliff:
        cliff(core)
    for name in args.trace:
        trace(core, name)
    for batch in args.profile:
        profile(core, batch)
    if not args.no_csv:
        results_file.append(RESULTS, COLUMNS, rows)


if __name__ == "__main__":
    main()
