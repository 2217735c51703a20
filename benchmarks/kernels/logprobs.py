"""Log-probabilities of chosen and top tokens over Llama-3-8B's vocabulary."""

from __future__ import annotations

import torch

from benchmarks.kernels.common import randn, report, seconds_per_call
from kernels.logprobs import logprobs, logprobs_ref

VOCAB = 128256


def main() -> None:
    for rows in (1, 64):
        logits, ids = randn(rows, VOCAB), torch.arange(rows, device="cuda")
        for top in (0, 20):
            ours = seconds_per_call(lambda _, a=(logits, ids, top): logprobs(*a))
            ref = seconds_per_call(lambda _, a=(logits, ids, top): logprobs_ref(*a))
            report("logprobs", f"{rows} rows, top {top}", ours, num_bytes=rows * VOCAB * 2, reference_s=ref)
