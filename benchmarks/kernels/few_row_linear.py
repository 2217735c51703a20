"""The weight-streaming products of a decode step of Llama-3-8B beside cuBLAS (as the reference)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.kernels.common import randn, report, seconds_per_call
from kernels.few_row_linear import MAX_GATED_ROWS, MAX_ROWS, Epilogue, few_row_linear

SHAPES = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}


def main() -> None:
    for name, (width, depth) in SHAPES.items():
        copies = max(2, (1 << 29) // (width * depth))  # a gigabyte of them: past the L2
        weights = [randn(width, depth, scale=0.02) for _ in range(copies)]
        for rows in (1, 8, 16, 32, 64, 128):
            if rows > (MAX_GATED_ROWS if name == "gate_up" else MAX_ROWS):
                continue
            x = randn(rows, depth)
            extra = _epilogue(name, rows, width, depth)
            ours = seconds_per_call(lambda i, w=weights, a=(x, extra): few_row_linear(a[0], w[i % len(w)], a[1]))
            cublas = seconds_per_call(lambda i, w=weights, a=x: F.linear(a, w[i % len(w)]))
            report("few_row_linear", f"{name}, {rows} rows", ours, num_bytes=width * depth * 2, reference_s=cublas)
        del weights
        torch.cuda.empty_cache()


def _epilogue(name: str, rows: int, width: int, depth: int) -> Epilogue:
    if name == "qkv":
        return Epilogue(norm_weight=randn(depth))
    if name == "gate_up":
        return Epilogue(norm_weight=randn(depth), gate="silu")
    if name == "head":
        return Epilogue()
    return Epilogue(residual=randn(rows, width))
