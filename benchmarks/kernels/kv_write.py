"""A step's keys and values into their pages: 8 KV heads of 128."""

from __future__ import annotations

import torch

from benchmarks.kernels.common import randn, report, seconds_per_call
from kernels.kv_write import kv_write


def main() -> None:
    pool = randn(2048, 4, 2, 8, 16, 128)
    for rows in (1, 256, 8192):
        k, v = randn(rows, 8, 128), randn(rows, 8, 128)
        slots = torch.randperm(2048 * 16, device="cuda")[:rows]
        ours = seconds_per_call(lambda i, a=(k, v), s=slots: kv_write(*a, pool[:, i % 4], s))
        report("kv_write", f"{rows} tokens", ours, num_bytes=rows * 8 * 128 * 8)
