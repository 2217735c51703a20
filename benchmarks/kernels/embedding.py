"""Rows of Llama-3-8B's embedding."""

from __future__ import annotations

import torch

from benchmarks.kernels.common import randn, report, seconds_per_call
from kernels.embedding import embedding, embedding_ref


def main() -> None:
    weight = randn(128256, 4096)
    for rows in (1, 256, 8192):
        sets = [torch.randint(0, 128256, (rows,), device="cuda") for _ in range(4)]
        ours = seconds_per_call(lambda i, s=sets: embedding(s[i % 4], weight))
        ref = seconds_per_call(lambda i, s=sets: embedding_ref(s[i % 4], weight))
        report("embedding", f"{rows} x 4096", ours, num_bytes=rows * 4096 * 4, reference_s=ref)
