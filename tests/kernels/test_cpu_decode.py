from __future__ import annotations

import pytest
import torch

from kernels.cpu_decode import cpu_decode, cpu_decode_ref, plan_decode


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [0, 1, 5, 16, 40])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 16), (4, 1, 32)])
def test_a_planned_decode_equals_the_reference(
    dtype: torch.dtype, window: int, heads: int, kv_heads: int, head_dim: int
) -> None:
    # Given sequences of uneven length over shuffled pages of one layer of a pool of three
    generator = torch.Generator().manual_seed(heads + window)
    lens = torch.tensor([1, 16, 17, 63, 100], dtype=torch.int32)
    block_size, max_blocks = 16, 8
    pool = torch.randn(50, 3, 2, kv_heads, block_size, head_dim, generator=generator).to(dtype)
    cache = pool[:, 1]
    table = torch.randperm(49, generator=generator)[: 5 * max_blocks].view(5, max_blocks).int() + 1
    q = torch.randn(5, heads, head_dim, generator=generator).to(dtype)
    # When planned once and run
    plan = plan_decode(table, lens, max_seq_len=100, block_size=block_size, window=window, dtype=dtype)
    out = cpu_decode(q, cache, plan, 0.3)
    # Then it is the reference's result
    expected = cpu_decode_ref(q, cache, table, lens, 0.3, window)
    tolerance = {"atol": 2e-2, "rtol": 2e-2} if dtype == torch.bfloat16 else {"atol": 2e-6, "rtol": 1e-5}
    torch.testing.assert_close(out, expected, **tolerance)
