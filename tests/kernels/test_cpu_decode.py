from __future__ import annotations

import pytest
import torch

from kernels.cpu_decode import cpu_decode, cpu_decode_ref, plan_decode


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [0, 1, 5, 16, 40])
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 16), (4, 1, 32)])
def test_a_planned_decode_equals_the_references(
    dtype: torch.dtype, window: int, layer: int, heads: int, kv_heads: int, head_dim: int
) -> None:
    # Given sequences of uneven length over shuffled pages of a pool of three layers
    generator = torch.Generator().manual_seed(heads + window)
    lens = torch.tensor([1, 16, 17, 63, 100], dtype=torch.int32)
    block_size, max_blocks = 16, 8
    pool = torch.randn(50, 3, 2, kv_heads, block_size, head_dim, generator=generator).to(dtype)
    table = torch.randperm(49, generator=generator)[: 5 * max_blocks].view(5, max_blocks).int() + 1
    last = lens.long() - 1
    slots = table.gather(1, (last // block_size)[:, None])[:, 0].long() * block_size + last % block_size
    q = torch.randn(5, heads, head_dim, generator=generator).to(dtype)
    k, v = torch.randn(2, 5, kv_heads, head_dim, generator=generator).to(dtype)
    expected_pool = pool.clone()
    expected = cpu_decode_ref(q, k, v, expected_pool[:, layer], table, lens, slots, 0.3, window)
    # When planned once and run
    plan = plan_decode(pool, table, lens, slots, max_seq_len=100, window=window)
    out = cpu_decode(q, k, v, pool, layer, plan, 0.3)
    # Then the same was written, and attention is the references'
    assert torch.equal(pool, expected_pool)
    tolerance = {"atol": 2e-2, "rtol": 2e-2} if dtype == torch.bfloat16 else {"atol": 2e-6, "rtol": 1e-5}
    torch.testing.assert_close(out, expected, **tolerance)
