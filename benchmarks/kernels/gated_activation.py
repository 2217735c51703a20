"""silu(gate) * up at Llama-3-8B's width."""

from __future__ import annotations

from benchmarks.kernels.common import randn, report, seconds_per_call
from kernels.gated_activation import silu_mul, silu_mul_ref


def main() -> None:
    for rows in (1, 256, 8192):
        sets = [randn(rows, 28672) for _ in range(3)]
        ours = seconds_per_call(lambda i, s=sets: silu_mul(s[i % 3]))
        ref = seconds_per_call(lambda i, s=sets: silu_mul_ref(s[i % 3]))
        report("gated_activation", f"{rows} x 14336", ours, num_bytes=rows * 14336 * 6, reference_s=ref)
