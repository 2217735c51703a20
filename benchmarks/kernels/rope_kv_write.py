"""Rotation of q and k and the KV write in one launch: 32 heads, 8 KV heads of 128."""

from __future__ import annotations

import torch

from benchmarks.kernels.common import randn, report, seconds_per_call
from kernels.rope_kv_write import rope_kv_write


def main() -> None:
    pool = randn(2048, 4, 2, 8, 16, 128)
    norm = randn(128)
    for rows in (1, 64, 256, 8192):
        qkv, cos, sin = randn(rows, 48, 128), randn(rows, 128), randn(rows, 128)
        slots = torch.randperm(2048 * 16, device="cuda")[:rows]
        num_bytes = rows * (40 * 128 * 4 + 8 * 128 * 2 + 16 * 128 * 2)  # q, k in place; v read; k, v written
        arguments = (qkv, cos, sin, slots)
        plain = seconds_per_call(lambda i, a=arguments: rope_kv_write(*a[:3], pool[:, i % 4], a[3]))
        report("rope_kv_write", f"{rows} tokens", plain, num_bytes=num_bytes)
        normed = seconds_per_call(
            lambda i, a=arguments: rope_kv_write(*a[:3], pool[:, i % 4], a[3], q_norm=norm, k_norm=norm)
        )
        report("rope_kv_write", f"{rows} tokens with QK-norm", normed, num_bytes=num_bytes)
