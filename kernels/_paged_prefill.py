"""Prefill half of `paged_attention`: chunks of several sequences over their cached prefixes, causal, in one launch.

The rows of a program are some query tokens times the query heads of one KV head, so that each key and value read from
the pages serves the whole group. FlashAttention-2's loop (arXiv:2307.08691), base-2 softmax.
"""

from __future__ import annotations

import torch

from kernels._paged_decode import _LOG2E, _soft_capped
from kernels._triton import dependent_launch, dots_in_float32, jit_for_varying, num_multiprocessors, tl, triton

# Rows, key tile, warps, stages for 16-bit heads of up to 128: where there is work for every multiprocessor, and where a
# chunk is so short that programs of 256 rows would leave most of them idle while a few walk a long context.
_TUNED = (256, 64, 8, 4)
_TUNED_SHORT = (64, 64, 4, 3)


@triton.jit
def _sequence_of(cu_seqlens_ptr, tile, base, num_seqs, BLOCK_Q: tl.constexpr):
    """The sequence whose query tiles hold `tile`: sequence i owns those from (cu[i] - base) // BLOCK_Q + i on."""
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        start = (tl.load(cu_seqlens_ptr + middle) - base) // BLOCK_Q + middle
        if start <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _attend_tiles(
    acc,
    best,
    total,
    q,
    head_base,
    table_row,
    positions,
    begin,
    end,
    seq_len,
    page_stride,
    side_stride,
    slot_stride,
    scale_log2,
    soft_cap,
    window,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    WINDOWED: tl.constexpr,
    LOG2E: tl.constexpr,
):
    """Folds the keys of [begin, end) into the running softmax. Unmasked: every row sees every key of it."""
    dims = tl.arange(0, HEAD_PAD)
    for start in range(begin, end, TILE):
        tokens = start + tl.arange(0, TILE)
        if MASKED:
            valid = tokens < seq_len
            pages = tl.load(table_row + tokens // PAGE, mask=valid, other=0).to(tl.int64)
        else:
            pages = tl.load(table_row + tokens // PAGE).to(tl.int64)
        slots = pages * page_stride + (tokens % PAGE) * slot_stride
        k_ptrs = head_base + slots[:, None] + dims[None, :]
        if MASKED:
            kv_mask = valid[:, None] & (dims < HEAD_DIM)[None, :]
            k = tl.load(k_ptrs, mask=kv_mask, other=0.0)
        elif HEAD_DIM == HEAD_PAD:
            k = tl.load(k_ptrs)
        else:
            k = tl.load(k_ptrs, mask=(dims < HEAD_DIM)[None, :], other=0.0)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee")
        factor = scale_log2
        if SOFT_CAP:
            scores = _soft_capped(scores * scale_log2, soft_cap, LOG2E)
            factor = 1.0
        if MASKED:
            visible = (tokens[None, :] <= positions[:, None]) & valid[None, :]
            if WINDOWED:
                visible = visible & (tokens[None, :] > positions[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))
        # The factor goes into the exponent's multiply-and-add instead of a pass of its own; it is positive.
        new_best = tl.maximum(best, tl.max(scores, axis=1) * factor)
        if MASKED:  # a window may hide a whole tile from some rows
            shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        else:
            shift = new_best
        decay = tl.exp2(best - shift)
        probs = tl.exp2(scores * factor - shift[:, None])
        if MASKED:  # masked at the load: a slot past the end may hold NaN
            v = tl.load(k_ptrs + side_stride, mask=kv_mask, other=0.0)
        elif HEAD_DIM == HEAD_PAD:
            v = tl.load(k_ptrs + side_stride)
        else:
            v = tl.load(k_ptrs + side_stride, mask=(dims < HEAD_DIM)[None, :], other=0.0)
        total = total * decay + tl.sum(probs, axis=1)
        acc = acc * decay[:, None]
        acc = tl.dot(probs.to(q.dtype), v.to(q.dtype), acc, input_precision="ieee")
        best = new_best
    return acc, best, total


@jit_for_varying("table_ptr", "cu_seqlens_ptr", "seq_lens_ptr", "base", "num_seqs", "table_stride")
def _prefill_kernel(
    q_ptr,
    kv_ptr,
    table_ptr,
    cu_seqlens_ptr,
    seq_lens_ptr,
    sinks_ptr,
    out_ptr,
    base,
    num_seqs,
    q_token_stride,
    q_head_stride,
    page_stride,
    side_stride,
    head_stride,
    slot_stride,
    table_stride,
    scale_log2,
    soft_cap,
    window,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SINKS: tl.constexpr,
    WINDOWED: tl.constexpr,
    LOG2E: tl.constexpr,
    FLOAT32_DOT: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    # The last tiles of a sequence see the most keys: they start first, so that short ones fill the end.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    seq = _sequence_of(cu_seqlens_ptr, tile, base, num_seqs, BLOCK_Q)
    first_token = tl.load(cu_seqlens_ptr + seq)
    num_queries = tl.load(cu_seqlens_ptr + seq + 1) - first_token
    q_start = (tile - ((first_token - base) // BLOCK_Q + seq)) * BLOCK_Q
    if q_start >= num_queries:
        return
    seq_len = tl.load(seq_lens_ptr + seq)
    context = seq_len - num_queries

    rows = tl.arange(0, BLOCK_Q * GROUP_PAD)
    tokens = q_start + rows // GROUP_PAD
    heads = kv_head * GROUP + rows % GROUP_PAD
    dims = tl.arange(0, HEAD_PAD)
    live = (tokens < num_queries) & (rows % GROUP_PAD < GROUP)
    q_mask = live[:, None] & (dims < HEAD_DIM)[None, :]
    q_rows = (first_token + tokens).to(tl.int64)
    q = tl.load(q_ptr + (q_rows * q_token_stride + heads * q_head_stride)[:, None] + dims[None, :], q_mask, other=0.0)
    if FLOAT32_DOT:
        q = q.to(tl.float32)

    best = tl.full([BLOCK_Q * GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q * GROUP_PAD], tl.float32)
    if SINKS:
        best = tl.load(sinks_ptr + heads, mask=live, other=0.0).to(tl.float32) * LOG2E
        total += 1.0
    acc = tl.zeros([BLOCK_Q * GROUP_PAD, HEAD_PAD], tl.float32)

    first_position = context + q_start
    begin = 0
    seen_by_all = (first_position + 1) // TILE * TILE
    if WINDOWED:
        begin = tl.maximum(first_position + 1 - window, 0) // TILE * TILE
        seen_by_all = begin
    end = tl.minimum(first_position + BLOCK_Q, seq_len)
    table_row = table_ptr + seq.to(tl.int64) * table_stride
    head_base = kv_ptr + kv_head.to(tl.int64) * head_stride
    positions = context + tokens
    if not WINDOWED:
        acc, best, total = _attend_tiles(
            acc, best, total, q, head_base, table_row, positions, begin, seen_by_all, seq_len, page_stride, side_stride,
            slot_stride, scale_log2, soft_cap, window, HEAD_DIM, HEAD_PAD, PAGE, TILE, False, SOFT_CAP, WINDOWED, LOG2E,
        )  # fmt: skip
    acc, best, total = _attend_tiles(
        acc, best, total, q, head_base, table_row, positions, seen_by_all, end, seq_len, page_stride, side_stride,
        slot_stride, scale_log2, soft_cap, window, HEAD_DIM, HEAD_PAD, PAGE, TILE, True, SOFT_CAP, WINDOWED, LOG2E,
    )  # fmt: skip

    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    out_rows = (q_rows * NUM_HEADS + heads) * HEAD_DIM
    tl.store(out_ptr + out_rows[:, None] + dims[None, :], acc, mask=q_mask)


def _shape_for(head_pad: int, group_pad: int, element_size: int, *, short: bool) -> tuple[int, int, int, int]:
    """(query tokens a program, key tile, warps, stages), so that q, k and v tiles fit shared memory."""
    if element_size > 2:
        return max(1, 32 // group_pad), 32, 4, 1
    if head_pad > 128:
        return max(1, 64 // group_pad), 32, 4, 2
    rows, tile, num_warps, num_stages = _TUNED_SHORT if short else _TUNED
    return max(1, rows // group_pad), tile, num_warps, num_stages


def paged_prefill(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    *,
    first_token: int,
    scale: float,
    window: int,
    soft_cap: float,
    sinks: torch.Tensor | None,
) -> None:
    """Fills out's rows from `first_token` on; arguments are `paged_attention`'s, of the prefilling sequences alone.

    cu_seqlens_q [S+1] counts from the batch's first token, so cu_seqlens_q[0] == first_token.
    """
    num_tokens, num_heads, head_dim = q.shape
    _, _, num_kv_heads, block_size, _ = kv_cache.shape
    num_seqs = seq_lens.shape[0]
    if not num_seqs or num_tokens == first_token:
        return
    group = num_heads // num_kv_heads
    group_pad = triton.next_power_of_2(group)
    head_pad = max(16, triton.next_power_of_2(head_dim))  # tl.dot's smallest side
    programs = (num_tokens - first_token) * group_pad * num_kv_heads // _TUNED[0]
    short = programs < num_multiprocessors(q.device.index or 0)
    block_q, tile, num_warps, num_stages = _shape_for(head_pad, group_pad, q.element_size(), short=short)
    while block_q * group_pad < 16:  # tl.dot's smallest side
        block_q *= 2
    num_tiles = (num_tokens - first_token) // block_q + num_seqs
    _prefill_kernel[(num_tiles, num_kv_heads)](
        q,
        kv_cache,
        block_table,
        cu_seqlens_q,
        seq_lens,
        q if sinks is None else sinks,
        out,
        first_token,
        num_seqs,
        q.stride(0),
        q.stride(1),
        kv_cache.stride(0),
        kv_cache.stride(1),
        kv_cache.stride(2),
        kv_cache.stride(3),
        block_table.stride(0),
        scale * _LOG2E,
        soft_cap,
        window,
        NUM_HEADS=num_heads,
        GROUP=group,
        GROUP_PAD=group_pad,
        BLOCK_Q=block_q,
        HEAD_DIM=head_dim,
        HEAD_PAD=head_pad,
        PAGE=block_size,
        TILE=tile,
        SOFT_CAP=soft_cap > 0,
        SINKS=sinks is not None,
        WINDOWED=window > 0,
        LOG2E=_LOG2E,
        FLOAT32_DOT=dots_in_float32(),
        num_warps=num_warps,
        num_stages=num_stages,
        **dependent_launch(q),
    )
