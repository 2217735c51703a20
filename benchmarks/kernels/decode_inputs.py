"""A decode step's inputs gathered by row, tables of 32k tokens."""

from __future__ import annotations

import torch

from benchmarks.kernels.common import report, seconds_per_call
from kernels.decode_inputs import DecodeInputs, gather_decode_inputs, gather_decode_inputs_ref

COLUMNS, PAGE = 2048, 16


def main() -> None:
    tokens = torch.zeros(512, COLUMNS * PAGE, dtype=torch.int32, device="cuda")
    tables = (torch.zeros(512, COLUMNS, dtype=torch.int32, device="cuda"),)
    for rows in (1, 64, 256):
        picked = torch.randperm(512, device="cuda")[:rows]
        starts = torch.full((rows,), 4000, device="cuda")
        out = DecodeInputs(
            torch.empty(rows, dtype=torch.int64, device="cuda"),
            torch.empty(rows, dtype=torch.int64, device="cuda"),
            torch.empty(rows, dtype=torch.int32, device="cuda"),
            (torch.empty(rows, dtype=torch.int64, device="cuda"),),
            (torch.empty(rows, COLUMNS, dtype=torch.int32, device="cuda"),),
        )
        arguments = (picked, starts, tokens, tables, PAGE, out)
        ours = seconds_per_call(lambda _, a=arguments: gather_decode_inputs(*a))
        ref = seconds_per_call(lambda _, a=arguments: gather_decode_inputs_ref(*a))
        report("decode_inputs", f"{rows} rows of 4000 tokens", ours, num_bytes=rows * 250 * 8, reference_s=ref)
