"""A preempted sequence's pages moved back from host memory against computing them again, by context length.

    python -m benchmarks.swap                                    # Llama-3-8B's shape on this GPU
    python -m benchmarks.swap --config tiny.json --contexts 64 256

Out and in go page by page as the engine moves them (one copy a page of all layers). Computing again is one prompt of
that length with nothing cached, in steps of --max-num-batched-tokens. Prints both by context, the shortest context at
which moving in and out is the cheaper, and what the engine's own rule says at each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import engine_throughput, workloads  # noqa: E402


def seconds_of(call: Callable[[], None], runs: int) -> float:
    import torch

    times = []
    for _ in range(runs):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def move_seconds(core: Any, num_pages: int, runs: int) -> tuple[float, float]:
    """(out, in) of that many pages, each another page on the device, of every group."""
    from engine.step_plan import PageMove, StepPlan

    cache = core.runner.cache
    groups = range(len(cache.pools))
    out = [PageMove(g, 1 + i, i) for g in groups for i in range(num_pages)]
    back = [PageMove(g, i, 1 + i) for g in groups for i in range(num_pages)]
    cache.apply(StepPlan(swap_out=out))
    return (
        seconds_of(lambda: cache.apply(StepPlan(swap_out=out)), runs),
        seconds_of(lambda: cache.apply(StepPlan(swap_in=back)), runs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="a config.json of another shape; default: Llama-3-8B's")
    parser.add_argument("--contexts", nargs="+", type=int, default=[256, 512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192)
    parser.add_argument("--vocab", type=int, default=0, help="prompt ids are below it; 0: the workloads' own range")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    args.max_num_seqs, args.stream_interval, args.enforce_eager = 16, 8, False
    args.settings, args.model_folder = json.dumps({"swap_space": 4}), ""
    from engine.startup import StartupReport

    core = engine_throughput.make_core(args, engine_throughput.shape_of(args), StartupReport())
    layout = core.runner.cache.layout
    page_bytes = sum(layout.page_bytes(g) for g in range(len(layout.groups)))
    random = Random(0)
    low, high = (0, args.vocab) if args.vocab else (workloads.VOCAB_LO, workloads.VOCAB_HI)
    crossover = None
    for context in args.contexts:
        num_pages = -(-context // layout.block_size)
        out_s, in_s = move_seconds(core, num_pages, args.runs)
        prompts = [[random.randrange(low, high) for _ in range(context)] for _ in range(args.runs + 1)]
        engine_throughput.run_workload(core, [(prompts.pop(), 1)])
        again_s = seconds_of(lambda p=prompts: engine_throughput.run_workload(core, [(p.pop(), 1)]), args.runs)
        rule = core.scheduler._swap_is_cheaper(context, num_pages * len(layout.groups))
        if crossover is None and out_s + in_s < again_s:
            crossover = context
        print(
            f"{context} tokens, {num_pages * page_bytes / (1 << 20):.0f} MiB: out {1e3 * out_s:.2f} ms, in "
            f"{1e3 * in_s:.2f} ms ({num_pages * page_bytes / in_s / 1e9:.1f} GB/s), again {1e3 * again_s:.2f} ms; "
            f"the engine would {'move' if rule else 'compute'}",
            flush=True,
        )
    print(f"moving is cheaper from {crossover} tokens on" if crossover else "computing is cheaper throughout")


if __name__ == "__main__":
    main()
