"""Sampling from Llama-3-8B's vocabulary: greedy, plain temperature, filtered; the reference sorts."""

from __future__ import annotations

import torch

from benchmarks.kernels.common import eager_seconds_per_call, randn, report, seconds_per_call
from kernels.sampling import sample, sample_ref

VOCAB = 128256


def main() -> None:
    for rows in (1, 64, 256):
        logits = randn(rows, VOCAB, scale=3.0)
        for case, temperature, top_k, top_p in (
            ("greedy", 0.0, 0, 1.0),
            ("t 1", 1.0, 0, 1.0),
            ("k 50, p 0.9", 0.8, 50, 0.9),
        ):
            arguments = (
                logits,
                torch.full((rows,), temperature, device="cuda"),
                torch.full((rows,), top_k, dtype=torch.int32, device="cuda"),
                torch.full((rows,), top_p, device="cuda"),
                torch.zeros(rows, device="cuda"),
                torch.arange(rows, device="cuda"),
                torch.arange(rows, device="cuda"),
            )
            seconds = seconds_per_call(lambda _, a=arguments: sample(*a))
            ref = eager_seconds_per_call(lambda _, a=arguments: sample_ref(*a), 1) if rows < 256 else None
            report("sampling", f"{rows} rows, {case}", seconds, num_bytes=rows * VOCAB * 2, reference_s=ref)
