"""Timing, ceilings and the results file that all kernel benchmarks share."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from benchmarks import results_file

RESULTS = results_file.FOLDER / "kernels.csv"
COLUMNS = ("date", "commit", "gpu", "kernel", "case", "us", "tb_s", "tflop_s", "of_ceiling", "reference_us")
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Ceilings:
    """What this card gives in this run: copy_tb_s counts bytes read and written; matmul_tflop_s at 8192^3 bf16."""

    copy_tb_s: float
    matmul_tflop_s: float


def randn(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=BF16) * scale


def seconds_per_call(call: Callable[[int], object], calls: int = 8, repeats: int = 5) -> float:
    """Median over `repeats` of a graph of call(0), ..., call(calls - 1); rotate inputs by the index, past the L2."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # the inputs may still be on their way
    times = []
    with torch.cuda.stream(stream):
        call(0)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(calls):
                call(i)
        graph.replay()
        for _ in range(repeats):
            started, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            started.record(stream)
            graph.replay()
            ended.record(stream)
            stream.synchronize()
            times.append(started.elapsed_time(ended) / 1e3 / calls)
    return statistics.median(times)


def eager_seconds_per_call(call: Callable[[int], object], calls: int = 4) -> float:
    """For references that a graph cannot hold (they read the device back)."""
    call(0)
    torch.cuda.synchronize()
    started, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    started.record()
    for i in range(calls):
        call(i)
    ended.record()
    torch.cuda.synchronize()
    return started.elapsed_time(ended) / 1e3 / calls


def _copy_s(elements: int) -> float:
    source = torch.randn(elements, device="cuda", dtype=BF16)
    target = torch.empty_like(source)
    # A kernel's copy: a copy node in a graph goes through the copy engine, at two thirds of the speed.
    return seconds_per_call(lambda _: torch.neg(source, out=target), 4)


def _matmul_s(side: int) -> float:
    a, b = randn(side, side), randn(side, side)
    out = torch.empty_like(a)
    return seconds_per_call(lambda _: torch.mm(a, b, out=out), 4)


@cache
def ceilings() -> Ceilings:
    found = Ceilings(4 * (1 << 30) / _copy_s(1 << 30) / 1e12, 2 * 8192**3 / _matmul_s(8192) / 1e12)
    print(f"ceilings: copy {found.copy_tb_s:.2f} TB/s, matmul {found.matmul_tflop_s:.0f} TFLOP/s")
    return found


def report(
    kernel: str,
    case: str,
    seconds: float,
    *,
    num_bytes: float = 0.0,
    flops: float = 0.0,
    reference_s: float | None = None,
) -> None:
    """Prints a line and appends it to the results. Give the bytes or the operations the work cannot do without."""
    roof = ceilings()
    tb_s, tflop_s = num_bytes / seconds / 1e12, flops / seconds / 1e12
    share = tflop_s / roof.matmul_tflop_s if flops else tb_s / roof.copy_tb_s
    reference = "" if reference_s is None else f"{reference_s * 1e6:.1f}"
    rate = f"{tflop_s:7.1f} TFLOP/s" if flops else f"{tb_s:7.3f} TB/s"
    line = f"{kernel:18s} {case:34s} {seconds * 1e6:9.1f} us {rate} {100 * share:5.1f} %"
    print(line if reference_s is None else f"{line}  reference {reference} us", flush=True)
    row = {
        "gpu": torch.cuda.get_device_name(), "kernel": kernel, "case": case, "us": f"{seconds * 1e6:.2f}",
        "tb_s": f"{tb_s:.3f}" if num_bytes else "", "tflop_s": f"{tflop_s:.1f}" if flops else "",
        "of_ceiling": f"{share:.3f}", "reference_us": reference,
    }  # fmt: skip
    results_file.append(RESULTS, COLUMNS, [row])
