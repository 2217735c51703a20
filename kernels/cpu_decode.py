"""Decode attention on a CPU: one query token a sequence; writes its key and value, then attends over the pages.

What all layers of a step share (which pages, which of their slots are hidden, where the new token goes) is worked out
once, and a layer is left with a copy in, a gather, two products and a softmax.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.kv_write import kv_write_ref
from kernels.paged_attention import paged_attention_ref


@dataclass(frozen=True)
class DecodePlan:
    """Of the first layer of a pool; each further layer's rows lie 2 * num_kv_heads rows on.

    reads int64 [2 * B * num_kv_heads * N], rows of the pool as [..., block_size * head_dim]: keys, then values, of the
    N pages each sequence looks at; writes int64 [B * 2 * num_kv_heads], rows of the pool as [..., head_dim]; bias
    [B, 1, 1, N * block_size] is 0 where a key is seen and -inf where it is hidden.
    """

    reads: torch.Tensor
    writes: torch.Tensor
    bias: torch.Tensor


def plan_decode(
    pool: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    max_seq_len: int,
    window: int,
) -> DecodePlan:
    """Args: pool [num_pages, layers, 2, num_kv_heads, block_size, head_dim], contiguous, in the queries' dtype;
    block_table int32 [B, max_blocks]; seq_lens int32 [B], context with the new token; slot_mapping int64 [B], none
    negative; window 0 = full."""
    _, layers, _, kv_heads, block_size, _ = pool.shape
    lens = seq_lens.long()[:, None]
    num_cols = -(-max_seq_len // block_size)
    if window and num_cols > -(-window // block_size) + 1:
        num_cols = -(-window // block_size) + 1  # a window's keys lie in that many pages at most
        cols = (lens - window).clamp_(min=0) // block_size + torch.arange(num_cols)
        pages = block_table.gather(1, cols.clamp(max=block_table.shape[1] - 1))
        positions = (cols[:, :, None] * block_size + torch.arange(block_size)).view(lens.shape[0], -1)
    else:
        pages = block_table[:, :num_cols]
        positions = torch.arange(num_cols * block_size)[None]
    hidden = positions >= lens
    if window:
        hidden = hidden | (positions < lens - window)
    bias = torch.zeros(hidden.shape, dtype=pool.dtype).masked_fill_(hidden, float("-inf"))
    sides_heads = torch.arange(2 * kv_heads).view(2, 1, kv_heads, 1)
    reads = pages.long()[None, :, None, :] * (layers * 2 * kv_heads) + sides_heads
    new_rows = (slot_mapping // block_size * (layers * 2 * kv_heads))[:, None] + torch.arange(2 * kv_heads)
    writes = new_rows * block_size + (slot_mapping % block_size)[:, None]
    return DecodePlan(reads.reshape(-1), writes.reshape(-1), bias[:, None, None])


def cpu_decode_ref(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    slot_mapping: torch.Tensor,
    scale: float,
    window: int,
) -> torch.Tensor:
    """The same through the references that plan nothing."""
    kv_write_ref(k, v, kv_cache, slot_mapping)
    num_seqs = q.shape[0]
    return paged_attention_ref(
        q,
        kv_cache,
        block_table,
        torch.arange(num_seqs + 1, dtype=torch.int32),
        seq_lens,
        num_decodes=num_seqs,
        max_query_len=1,
        max_seq_len=int(seq_lens.max()),
        scale=scale,
        window=window,
    )


def cpu_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    plan: DecodePlan,
    scale: float,
) -> torch.Tensor:
    """Args: q [B, num_heads, head_dim], k and v [B, num_kv_heads, head_dim]; pool and its plan, in q's dtype; layer
    the pool's layer to write and read. Returns: [B, num_heads, head_dim], new."""
    num_seqs, num_heads, head_dim = q.shape
    kv_heads, block_size = pool.shape[3], pool.shape[4]
    first_row = layer * 2 * kv_heads
    pool.view(-1, head_dim).index_copy_(
        0, plan.writes + first_row * block_size, torch.cat((k, v), dim=1).view(-1, head_dim)
    )
    picked = pool.view(-1, block_size * head_dim).index_select(0, plan.reads + first_row)
    length = plan.bias.shape[-1]
    keys, values = picked.view(2, num_seqs * kv_heads, length, head_dim).unbind()
    grouped = q.reshape(num_seqs * kv_heads, num_heads // kv_heads, head_dim)
    scores = torch.bmm(grouped, keys.transpose(1, 2)).view(num_seqs, kv_heads, num_heads // kv_heads, length)
    # The softmax adds up in float32 whatever its input; scores are rounded to q's dtype, as by the product itself.
    probs = torch.softmax(torch.add(plan.bias, scores, alpha=scale), dim=-1)
    return torch.bmm(probs.view(num_seqs * kv_heads, -1, length), values).view(num_seqs, num_heads, head_dim)
