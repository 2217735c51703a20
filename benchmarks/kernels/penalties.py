"""Penalties over Llama-3-8B's vocabulary."""

from __future__ import annotations

import torch

from benchmarks.kernels.common import randn, report, seconds_per_call
from kernels.penalties import apply_penalties, apply_penalties_ref

VOCAB = 128256


def main() -> None:
    for rows in (1, 64):
        logits = randn(rows, VOCAB)
        counts = torch.randint(0, 2, (64, VOCAB), dtype=torch.int32, device="cuda")
        columns = [torch.full((rows,), value, device="cuda") for value in (1.2, 0.1, 0.1)]
        arguments = (logits, torch.arange(rows, device="cuda"), counts, counts > 0, *columns)
        ours = seconds_per_call(lambda _, a=arguments: apply_penalties(*a))
        ref = seconds_per_call(lambda _, a=arguments: apply_penalties_ref(*a))
        report("penalties", f"{rows} rows", ours, num_bytes=rows * VOCAB * (2 + 2 + 4 + 1), reference_s=ref)
