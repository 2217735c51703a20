"""What a step of decodes and one chunk of a long prompt costs, on the device and on the host, by the step's tokens.

    python -m benchmarks.mixed_steps                       # Llama-3-8B's shape on this GPU
    python -m benchmarks.mixed_steps --steps 512:256 --decodes 60 --profile

A step is budget:chunk: tokens a step, and of them the most from one prompt. Prints the wall time of a step near the
prompt's end, the host's time in submitting it, and with --profile its kernels.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import engine_throughput, workloads  # noqa: E402


def start_load(core: Any, decodes: int, long_tokens: int) -> None:
    """`decodes` sequences of some 300 tokens that go on for long, then two prompts of `long_tokens`."""
    from engine.types import EngineRequest, SamplingParams

    random, salt = Random(1), os.urandom(32)

    def add(name: str, length: int, outputs: int) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=outputs, ignore_eos=True)
        request = EngineRequest(
            request_id=f"{salt.hex()[:8]}-{name}",
            prompt_token_ids=workloads._ids(random, length),
            sampling=sampling,
            cache_salt=salt,
        )
        core.add(core.accept(request))

    for i in range(decodes):
        add(f"d{i}", 280, 2000)
    for _ in range(40):
        core.step()
    for i in range(2):
        add(f"l{i}", long_tokens, 1)


def measure(core: Any, budget: int, chunk: int, args: argparse.Namespace) -> None:
    import torch

    limits = core.scheduler.limits
    core.scheduler.limits = replace(limits, max_num_batched_tokens=budget, long_prefill_token_threshold=chunk)
    start_load(core, args.decodes, args.long_tokens)
    submit = core.runner.submit
    spent: list[float] = []
    ends: list[int] = []

    def timed(plan: Any) -> Any:
        started = time.perf_counter()
        pending = submit(plan)
        spent.append(time.perf_counter() - started)
        ends.append(max((i.start + i.length for i in plan.scheduled if i.length > 1), default=0))
        return pending

    core.runner.submit = timed
    walls: list[float] = []
    while not ends or max(ends[-3:]) < args.long_tokens - 3000:
        core.step()
    for _ in range(8):
        started = time.perf_counter()
        core.step()
        walls.append(time.perf_counter() - started)
    print(
        f"{budget}:{chunk} at {ends[-1]} tokens of context, {args.decodes} decodes: "
        f"{1e3 * statistics.median(walls):.2f} ms a step, the host {1e3 * statistics.median(spent[-8:]):.2f}",
        flush=True,
    )
    if args.profile:
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
            for _ in range(4):
                core.step()
            torch.cuda.synchronize()
        engine_throughput.print_kernels(prof, 4)
    core.runner.submit = submit
    for request_id in list(core.scheduler.groups):
        core.abort(request_id)
    while core.has_work:
        core.step()
    core.scheduler.limits = limits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", nargs="+", default=["512:256", "384:192", "256:128"], metavar="BUDGET:CHUNK")
    parser.add_argument("--decodes", type=int, default=60)
    parser.add_argument("--long-tokens", type=int, default=16384)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--config", help="a config.json of another shape; default: Llama-3-8B's")
    parser.add_argument("--settings", default="{}", help="more engine settings, as JSON")
    args = parser.parse_args()
    args.max_num_seqs, args.stream_interval, args.enforce_eager, args.model_folder = 256, 1, False, ""
    pairs = [tuple(int(part) for part in step.split(":")) for step in args.steps]
    args.max_num_batched_tokens = max(budget for budget, _ in pairs)
    from engine.startup import StartupReport

    core = engine_throughput.make_core(args, engine_throughput.shape_of(args), StartupReport())
    for budget, chunk in pairs:
        measure(core, budget, chunk, args)


if __name__ == "__main__":
    main()
