from __future__ import annotations

import pytest
import torch

from engine.cpu_attention import FEW_SEQUENCES, decode_few
from kernels.cpu_decode import cpu_decode_ref, plan_decode


@pytest.mark.parametrize("num_seqs", range(1, FEW_SEQUENCES + 1))
@pytest.mark.parametrize("window", [0, 1, 5, 40])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 16), (4, 1, 256)])
def test_few_decodes_equal_the_reference(num_seqs: int, window: int, heads: int, kv_heads: int, head_dim: int) -> None:
    # Given sequences of uneven length over shuffled pages, the pool's other slots full of others' numbers
    generator = torch.Generator().manual_seed(heads + window)
    lens = torch.tensor([1, 16, 63, 100], dtype=torch.int32)[-num_seqs:]
    pool = torch.randn(40, 3, 2, kv_heads, 16, head_dim, generator=generator).bfloat16()
    table = torch.randperm(39, generator=generator)[: num_seqs * 8].view(num_seqs, 8).int() + 1
    last = lens.long() - 1
    slots = table.gather(1, (last // 16)[:, None])[:, 0].long() * 16 + last % 16
    q = torch.randn(num_seqs, heads, head_dim, generator=generator).bfloat16()
    k, v = torch.randn(2, num_seqs, kv_heads, head_dim, generator=generator).bfloat16()
    exact_pool = pool.float()
    exact = cpu_decode_ref(q.float(), k.float(), v.float(), exact_pool[:, 2], table, lens, slots, 0.1, window)
    # Then the same is written, and attention is the reference's within bf16's rounding
    plan = plan_decode(pool, table, lens, slots, max_seq_len=100, window=window)
    out = decode_few(q, k, v, pool, layer=2, plan=plan, scale=0.1)
    assert torch.equal(pool.float(), exact_pool)
    torch.testing.assert_close(out.float(), exact, atol=1e-2, rtol=1e-2)
