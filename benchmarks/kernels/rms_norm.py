"""RMSNorm and its fused residual add at 4096 wide: decode and prefill sizes."""

from __future__ import annotations

from benchmarks.kernels.common import randn, report, seconds_per_call
from kernels.rms_norm import add_rms_norm, add_rms_norm_ref, rms_norm, rms_norm_ref


def main() -> None:
    weight = randn(4096)
    for rows in (1, 64, 256, 8192):
        sets = [(randn(rows, 4096), randn(rows, 4096)) for _ in range(4)]
        row_bytes = rows * 4096 * 2
        plain = seconds_per_call(lambda i, s=sets: rms_norm(s[i % 4][0], weight))
        plain_ref = seconds_per_call(lambda i, s=sets: rms_norm_ref(s[i % 4][0], weight))
        report("rms_norm", f"{rows} x 4096", plain, num_bytes=2 * row_bytes, reference_s=plain_ref)
        added = seconds_per_call(lambda i, s=sets: add_rms_norm(*s[i % 4], weight))
        added_ref = seconds_per_call(lambda i, s=sets: add_rms_norm_ref(*s[i % 4], weight))
        report("rms_norm", f"{rows} x 4096 with add", added, num_bytes=4 * row_bytes, reference_s=added_ref)
