"""Decode half of `paged_attention`: one query token a sequence, KV read once for all query heads of its KV head.

Splitting the keys over programs (flash-decoding) fills the card when sequences are few; a second kernel joins the
parts. Softmax runs in base 2, with log2(e) folded into the scale.
"""

from __future__ import annotations

import torch

from kernels._triton import dependent_launch, dots_in_float32, jit_for_varying, num_multiprocessors, tl, triton

_LOG2E = 1.4426950408889634
_TILE = 64  # keys a step
# Many sequences are short ones: at 256 of 300 tokens 32 keys a step take 81 us, 64 take 85; at 64 of 4k 253 and 247.
_TILE_OF_MANY = 32
_MANY_PROGRAMS = 1024
_NUM_WARPS = 2
_NUM_STAGES = 3
_MAX_SPLITS = 16
INVARIANT_SPLITS = 8  # whatever the load, so that a sequence's sums have one order


@triton.jit
def _soft_capped(scores, soft_cap, LOG2E: tl.constexpr):
    """soft_cap * tanh(scores / soft_cap), from base 2 and back into it."""
    z = 2.0 * scores / (LOG2E * soft_cap)
    decay = tl.exp(-tl.abs(z))
    tanh = tl.where(z >= 0, 1.0, -1.0) * (1.0 - decay) / (1.0 + decay)
    return soft_cap * LOG2E * tanh


@jit_for_varying("table_ptr", "seq_lens_ptr", "table_stride")
def _decode_kernel(
    q_ptr,
    kv_ptr,
    table_ptr,
    seq_lens_ptr,
    sinks_ptr,
    out_ptr,
    partial_ptr,
    stats_ptr,
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
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
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
    # Heads vary fastest: programs that run together read the neighbouring heads of the same pages.
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    seq = tl.program_id(2)
    seq_len = tl.load(seq_lens_ptr + seq)
    first_tile = 0
    if WINDOWED:
        first_tile = tl.maximum(seq_len - window, 0) // TILE
    last_tile = tl.cdiv(seq_len, TILE)
    per_split = tl.cdiv(last_tile - first_tile, NUM_SPLITS)
    begin = first_tile + split * per_split
    end = tl.minimum(begin + per_split, last_tile)

    rows = tl.arange(0, GROUP_PAD)
    heads = kv_head * GROUP + rows
    dims = tl.arange(0, HEAD_PAD)
    q_mask = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    q_offsets = seq.to(tl.int64) * q_token_stride + heads[:, None] * q_head_stride + dims[None, :]
    q = tl.load(q_ptr + q_offsets, mask=q_mask, other=0.0)
    dot_type = tl.float32 if FLOAT32_DOT else q_ptr.dtype.element_ty
    q = q.to(dot_type)

    best = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    if SINKS:  # a logit without a value: counted once, by the first split
        sink = tl.load(sinks_ptr + heads, mask=rows < GROUP, other=0.0).to(tl.float32) * LOG2E
        best = tl.where(split == 0, sink, best)
        total += tl.where(split == 0, 1.0, 0.0)
    acc = tl.zeros([GROUP_PAD, HEAD_PAD], tl.float32)

    table_row = table_ptr + seq.to(tl.int64) * table_stride
    head_base = kv_ptr + kv_head.to(tl.int64) * head_stride
    for tile in range(begin, end):
        tokens = tile * TILE + tl.arange(0, TILE)
        valid = tokens < seq_len
        pages = tl.load(table_row + tokens // PAGE, mask=valid, other=0).to(tl.int64)
        slots = pages * page_stride + (tokens % PAGE) * slot_stride
        kv_mask = valid[:, None] & (dims < HEAD_DIM)[None, :]
        k_ptrs = head_base + slots[:, None] + dims[None, :]
        k = tl.load(k_ptrs, mask=kv_mask, other=0.0).to(dot_type)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        if SOFT_CAP:
            scores = _soft_capped(scores, soft_cap, LOG2E)
        visible = valid
        if WINDOWED:
            visible = visible & (tokens >= seq_len - window)
        scores = tl.where(visible[None, :], scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        decay = tl.exp2(best - shift)
        probs = tl.exp2(scores - shift[:, None])
        # Masked, not only multiplied by zero: a slot past the end may hold what a failed request left, NaN too.
        v = tl.load(k_ptrs + side_stride, mask=kv_mask, other=0.0).to(dot_type)
        acc = acc * decay[:, None] + tl.dot(probs.to(dot_type), v, input_precision="ieee")
        total = total * decay + tl.sum(probs, axis=1)
        best = new_best

    flat = seq.to(tl.int64) * NUM_HEADS + heads
    if NUM_SPLITS == 1:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out_ptr + flat[:, None] * HEAD_DIM + dims[None, :], acc, mask=q_mask)
    else:
        part = flat * NUM_SPLITS + split
        tl.store(partial_ptr + part[:, None] * HEAD_DIM + dims[None, :], acc, mask=q_mask)
        tl.store(stats_ptr + part * 2, best, mask=rows < GROUP)
        tl.store(stats_ptr + part * 2 + 1, total, mask=rows < GROUP)


@triton.jit
def _join_kernel(
    partial_ptr,
    stats_ptr,
    out_ptr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    flat = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, SPLITS_PAD)
    dims = tl.arange(0, HEAD_PAD)
    live = splits < NUM_SPLITS
    parts = flat * NUM_SPLITS + splits
    bests = tl.load(stats_ptr + parts * 2, mask=live, other=float("-inf"))
    totals = tl.load(stats_ptr + parts * 2 + 1, mask=live, other=0.0)
    best = tl.max(bests, axis=0)
    weights = tl.exp2(bests - tl.where(best == float("-inf"), 0.0, best))
    total = tl.sum(totals * weights, axis=0)
    mask = live[:, None] & (dims < HEAD_DIM)[None, :]
    acc = tl.load(partial_ptr + parts[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
    out = tl.sum(acc * weights[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + flat * HEAD_DIM + dims, out, mask=dims < HEAD_DIM)


def choose_splits(num_seqs: int, num_kv_heads: int, max_seq_len: int, num_sms: int) -> int:
    """Programs to split a sequence's keys over: enough for three a multiprocessor, never more than there are tiles.

    At 64 sequences of 300 tokens and 8 KV heads (four programs a multiprocessor), one part takes 24 us where two and
    their join take 31; at 16 of 16k, four take 248 us and two 351. Depends on the padded batch and on `max_seq_len` as
    the caller bounds it, so a captured graph keeps its grid.
    """
    wanted = max(1, 3 * num_sms // max(1, num_seqs * num_kv_heads))
    limit = min(_MAX_SPLITS, max(1, -(-max_seq_len // _TILE)))
    # A power of two either way: each number of parts is a kernel of its own to compile.
    return min(1 << (limit.bit_length() - 1), 1 << (wanted - 1).bit_length())


def paged_decode(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    *,
    max_seq_len: int,
    scale: float,
    window: int,
    soft_cap: float,
    sinks: torch.Tensor | None,
    num_splits: int = 0,
) -> None:
    """Fills out [B, num_heads, head_dim] (contiguous). Arguments are those of `paged_attention`, checked there.

    num_splits 0 chooses by the load; a fixed number makes a sequence's result independent of the batch.
    """
    num_seqs, num_heads, head_dim = q.shape
    _, _, num_kv_heads, block_size, _ = kv_cache.shape
    if not num_seqs:
        return
    sms = num_multiprocessors(q.device.index or 0)
    splits = num_splits or choose_splits(num_seqs, num_kv_heads, max_seq_len, sms)
    group = num_heads // num_kv_heads
    head_pad = max(16, triton.next_power_of_2(head_dim))  # tl.dot's smallest side
    partial = stats = out
    if splits > 1:
        partial = torch.empty((num_seqs * num_heads * splits, head_dim), dtype=torch.float32, device=q.device)
        stats = torch.empty((num_seqs * num_heads * splits, 2), dtype=torch.float32, device=q.device)
    _decode_kernel[(num_kv_heads, splits, num_seqs)](
        q,
        kv_cache,
        block_table,
        seq_lens,
        q if sinks is None else sinks,
        out,
        partial,
        stats,
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
        GROUP_PAD=max(16, triton.next_power_of_2(group)),
        HEAD_DIM=head_dim,
        HEAD_PAD=head_pad,
        PAGE=block_size,
        TILE=_TILE_OF_MANY if num_seqs * num_kv_heads >= _MANY_PROGRAMS else _TILE,
        NUM_SPLITS=splits,
        SOFT_CAP=soft_cap > 0,
        SINKS=sinks is not None,
        WINDOWED=window > 0,
        LOG2E=_LOG2E,
        FLOAT32_DOT=dots_in_float32(),
        num_warps=_NUM_WARPS,
        num_stages=2 if head_pad > 128 or q.element_size() > 2 else _NUM_STAGES,
        **dependent_launch(q),
    )
    if splits > 1:
        _join_kernel[(num_seqs * num_heads,)](
            partial,
            stats,
            out,
            HEAD_DIM=head_dim,
            HEAD_PAD=head_pad,
            NUM_SPLITS=splits,
            SPLITS_PAD=triton.next_power_of_2(splits),
            num_warps=2,
            **dependent_launch(q),
        )
