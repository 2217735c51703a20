"""`CpuAttention`: attention on a CPU; decodes of few sequences in one call, and word of every layer begun."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from engine.attention import Attention, AttentionMetadata, KVView
from kernels.cpu_decode import DecodePlan

# Up to here one fused call is faster than two batched products and what lies between them: 9 heads, 3 KV heads of 64,
# 96 tokens, bf16, one Sapphire Rapids core: 1 sequence 92 -> 35 us, 4 sequences 118 -> 78 us; 16 are slower by half.
FEW_SEQUENCES = 4


class CpuAttention(Attention):
    """on_progress is called by every layer, which is once a layer in every model; None: nobody asks."""

    def __init__(self, kv: KVView, meta: AttentionMetadata, on_progress: Callable[[], None] | None = None) -> None:
        super().__init__(kv, meta)
        self._on_progress = on_progress

    def __call__(
        self,
        layer_index: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self._on_progress is not None:
            self._on_progress()
        group, slot = self._kv.locations[layer_index]
        spec, pool = self._kv.specs[layer_index], self._kv.pools[group]
        planned = self._plans is not None and not spec.soft_cap and sinks is None
        # float32 stays with the reference's order of operations.
        if not planned or q.shape[0] > FEW_SEQUENCES or not pool.dtype == q.dtype == torch.bfloat16:
            return super().__call__(layer_index, q, k, v, sinks=sinks)
        return decode_few(q, k, v, pool, layer=slot, plan=self._plan(group, spec), scale=spec.scale)


def decode_few(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pool: torch.Tensor,
    *,
    layer: int,
    plan: DecodePlan,
    scale: float,
) -> torch.Tensor:
    """As `kernels.cpu_decode.cpu_decode`, the query heads of a KV head being the rows of one fused attention."""
    num_seqs, num_heads, head_dim = q.shape
    kv_heads, block_size = pool.shape[3], pool.shape[4]
    first_row = layer * 2 * kv_heads
    new = torch.cat((k, v), dim=1).view(-1, head_dim)
    pool.view(-1, head_dim).index_copy_(0, plan.writes + first_row * block_size, new)
    picked = pool.view(-1, block_size * head_dim).index_select(0, plan.reads + first_row)
    keys, values = picked.view(2, num_seqs, kv_heads, plan.bias.shape[-1], head_dim).unbind()
    grouped = q.reshape(num_seqs, kv_heads, num_heads // kv_heads, head_dim)
    out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=plan.bias, scale=scale)
    return out.reshape(num_seqs, num_heads, head_dim)
