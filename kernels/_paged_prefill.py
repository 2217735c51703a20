"""Prefill half of `paged_attention`: chunks of several sequences over their cached prefixes, causal, in one launch.

The rows of a program are some query tokens times the query heads of one KV head, so that each key and value read from
the pages serves the whole group. FlashAttention-2's loop (arXiv:2307.08691), base-2 softmax. Short chunks over long
contexts split the keys over programs, as decodes do. The same kernel attends decodes that share a prefix over it: they
are then the queries of one sequence, and all see all of the keys.
"""

from __future__ import annotations

import torch

from kernels._paged_decode import _LOG2E, Parts, _soft_capped, join_parts
from kernels._triton import dependent_launch, dots_in_float32, jit_for_varying, num_multiprocessors, tl, triton

# Rows, key tile, warps, stages for 16-bit heads of up to 128: where there is work for every multiprocessor, and where a
# chunk is so short that programs of 256 rows would leave most of them idle while a few walk a long context.
_TUNED = (256, 64, 8, 4)
_TUNED_SHORT = (64, 64, 4, 3)
# Two programs of 64 rows on a multiprocessor take as long as one (256 tokens over 16k: 366 us, 512 tokens: 392), so
# that a short chunk's keys are split over programs, from so many tiles of keys a part on.
CHUNK_SPLITS = 4
_LEAST_TILES = 8
_LONG_CONTEXT = 1024


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


@jit_for_varying("table_ptr", "cu_seqlens_ptr", "seq_lens_ptr", "num_seqs", "table_stride")
def _prefill_kernel(
    q_ptr,
    kv_ptr,
    table_ptr,
    cu_seqlens_ptr,
    seq_lens_ptr,
    sinks_ptr,
    out_ptr,
    partial_ptr,
    stats_ptr,
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
    NUM_SPLITS: tl.constexpr,
    SLOTS: tl.constexpr,
    LEAST_TILES: tl.constexpr,
    SHARED: tl.constexpr,
    FLOAT32_DOT: tl.constexpr,
    PDL: tl.constexpr,
):
    """SHARED: sequence i is a group of decodes with one prefix of seq_lens[i] keys, whose pages are its first one's."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    base = tl.load(cu_seqlens_ptr)
    # The last tiles of a sequence see the most keys: they start first, so that short ones fill the end.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    seq = _sequence_of(cu_seqlens_ptr, tile, base, num_seqs, BLOCK_Q)
    first_token = tl.load(cu_seqlens_ptr + seq)
    num_queries = tl.load(cu_seqlens_ptr + seq + 1) - first_token
    q_start = (tile - ((first_token - base) // BLOCK_Q + seq)) * BLOCK_Q
    if q_start >= num_queries:
        return
    seq_len = tl.load(seq_lens_ptr + seq)
    context = seq_len - num_queries
    table_row = table_ptr + (first_token if SHARED else seq).to(tl.int64) * table_stride

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
    if SINKS:  # a logit without a value: counted once, by the first split
        sink = tl.load(sinks_ptr + heads, mask=live, other=0.0).to(tl.float32) * LOG2E
        best = tl.where(split == 0, sink, best)
        total += tl.where(split == 0, 1.0, 0.0)
    acc = tl.zeros([BLOCK_Q * GROUP_PAD, HEAD_PAD], tl.float32)

    if SHARED:
        first_position = seq_len - 1
        end = seq_len
        positions = rows * 0 + seq_len - 1
    else:
        first_position = context + q_start
        end = tl.minimum(first_position + BLOCK_Q, seq_len)
        positions = context + tokens
    begin = 0
    seen_by_all = (first_position + 1) // TILE * TILE
    if WINDOWED:
        begin = tl.maximum(first_position + 1 - window, 0) // TILE * TILE
        seen_by_all = begin
    if NUM_SPLITS > 1:
        per_split = tl.maximum(tl.cdiv(tl.cdiv(end - begin, TILE), NUM_SPLITS), LEAST_TILES) * TILE
        begin += split * per_split
        end = tl.minimum(begin + per_split, end)
    head_base = kv_ptr + kv_head.to(tl.int64) * head_stride
    if not WINDOWED:
        acc, best, total = _attend_tiles(
            acc, best, total, q, head_base, table_row, positions, begin, tl.minimum(seen_by_all, end), seq_len,
            page_stride, side_stride, slot_stride, scale_log2, soft_cap, window, HEAD_DIM, HEAD_PAD, PAGE, TILE, False,
            SOFT_CAP, WINDOWED, LOG2E,
        )  # fmt: skip
    acc, best, total = _attend_tiles(
        acc, best, total, q, head_base, table_row, positions, tl.maximum(seen_by_all, begin), end, seq_len, page_stride,
        side_stride, slot_stride, scale_log2, soft_cap, window, HEAD_DIM, HEAD_PAD, PAGE, TILE, True, SOFT_CAP,
        WINDOWED, LOG2E,
    )  # fmt: skip

    flat = q_rows * NUM_HEADS + heads
    if SLOTS == 1:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out_ptr + (flat * HEAD_DIM)[:, None] + dims[None, :], acc, mask=q_mask)
    else:
        part = flat * SLOTS + split
        # What no key was counted in is not read, so it need not be written.
        tl.store(partial_ptr + (part * HEAD_DIM)[:, None] + dims[None, :], acc, mask=q_mask & (total > 0.0)[:, None])
        tl.store(stats_ptr + part * 2, best, mask=live)
        tl.store(stats_ptr + part * 2 + 1, total, mask=live)


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
    max_seq_len: int,
    scale: float,
    window: int,
    soft_cap: float,
    sinks: torch.Tensor | None,
    parts: Parts | None = None,
    shared: bool = False,
) -> None:
    """Fills out's rows from `first_token` on; arguments are `paged_attention`'s, of the prefilling sequences alone.

    cu_seqlens_q [S+1] counts from the batch's first token, so cu_seqlens_q[0] is `first_token` or, in a padded batch,
    more. With `parts` it fills those in place of `out`, whose rows are joined by the caller. shared: see the kernel.
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
    short = parts is not None or programs < num_multiprocessors(q.device.index or 0)
    block_q, tile, num_warps, num_stages = _shape_for(head_pad, group_pad, q.element_size(), short=short)
    while block_q * group_pad < 16:  # tl.dot's smallest side
        block_q *= 2
    num_tiles = (num_tokens - first_token) // block_q + num_seqs
    own_parts = None
    if parts is None and short and max_seq_len > _LONG_CONTEXT:
        parts = own_parts = Parts.make(q, CHUNK_SPLITS)
    splits = 1 if parts is None else min(parts.slots, CHUNK_SPLITS)
    _prefill_kernel[(num_tiles, num_kv_heads, splits)](
        q,
        kv_cache,
        block_table,
        cu_seqlens_q,
        seq_lens,
        q if sinks is None else sinks,
        out,
        out if parts is None else parts.sums,
        out if parts is None else parts.stats,
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
        NUM_SPLITS=splits,
        SLOTS=1 if parts is None else parts.slots,
        LEAST_TILES=_LEAST_TILES,
        SHARED=shared,
        FLOAT32_DOT=dots_in_float32(),
        num_warps=num_warps,
        num_stages=num_stages,
        **dependent_launch(q),
    )
    if own_parts is not None:
        join_parts(own_parts, out, first_row=first_token)
