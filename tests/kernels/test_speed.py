"""Attention's speed on a GPU against the ceilings measured in the same run (benchmarks/kernels has the rest)."""

from __future__ import annotations

import pytest
import torch

from benchmarks.kernels import paged_attention as bench
from benchmarks.kernels.common import ceilings, randn, seconds_per_call

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_decode_attention_reaches_85_percent_of_the_copy_bandwidth():
    pool = randn(64 * 256 + 1, 4, 2, bench.KV_HEADS, bench.PAGE, bench.DIM)
    table = bench._table(64, 4096, pool.shape[0])
    call = bench._attend(randn(64, bench.HEADS, bench.DIM), table, 1, 4096)
    seconds = seconds_per_call(lambda i: call(pool[:, i % 4]))
    assert 64 * 4096 * bench.TOKEN_BYTES / seconds / 1e12 >= 0.85 * ceilings().copy_tb_s


def test_prefill_attention_reaches_330_tflop_s():
    pool = randn(64 * 256 + 1, 2, 2, bench.KV_HEADS, bench.PAGE, bench.DIM)
    table = bench._table(64, 4096, pool.shape[0])
    call = bench._attend(randn(64 * 4096, bench.HEADS, bench.DIM), table, 4096, 4096)
    seconds = seconds_per_call(lambda i: call(pool[:, i % 2]), 2, 3)
    assert 2 * 64 * bench.HEADS * bench.DIM * 4096 * 4097 / seconds / 1e12 >= 330
