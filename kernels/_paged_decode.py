"""Decode half of `paged_attention`: one query token a sequence, KV read once for all query heads of its KV head.

Splitting the keys over programs (flash-decoding) fills the card when sequences are few; a second kernel joins the
parts, whoever made them. Softmax runs in base 2, with log2(e) folded into the scale.
"""

from __future__ import annotations

from dataclasses import dataclass

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
_FEW_ROWS_TO_JOIN = 2048


@triton.jit
def _soft_capped(scores, soft_cap, LOG2E: tl.constexpr):
    """soft_cap * tanh(scores / soft_cap), from base 2 and back into it."""
    z = 2.0 * scores / (LOG2E * soft_cap)
    decay = tl.exp(-tl.abs(z))
    tanh = tl.where(z >= 0, 1.0, -1.0) * (1.0 - decay) / (1.0 + decay)
    return soft_cap * LOG2E * tanh


@jit_for_varying("table_ptr", "seq_lens_ptr", "starts_ptr", "table_stride")
def _decode_kernel(
    q_ptr,
    kv_ptr,
    table_ptr,
    seq_lens_ptr,
    starts_ptr,
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
    SLOTS: tl.constexpr,
    FIRST_SLOT: tl.constexpr,
    STARTS: tl.constexpr,
    PADDED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SINKS: tl.constexpr,
    WINDOWED: tl.constexpr,
    LOG2E: tl.constexpr,
    FLOAT32_DOT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Split i of NUM_SPLITS fills slot FIRST_SLOT + i of SLOTS. STARTS: keys before starts[seq], whole tiles, are
    somebody else's. PADDED: a sequence of no keys writes nothing, as its row may be a chunk's."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    # Heads vary fastest: programs that run together read the neighbouring heads of the same pages.
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    seq = tl.program_id(2)
    if PADDED:  # noqa: SIM102
        # Lengths are set before the graph starts, so nothing is waited for; some must wait, lest the kernel end before
        # its predecessor has.
        if (seq > 0) & (tl.load(seq_lens_ptr + seq) == 0):
            return
    if PDL:
        tl.extra.cuda.gdc_wait()
    seq_len = tl.load(seq_lens_ptr + seq)
    if PADDED:  # noqa: SIM102
        if seq_len == 0:
            return
    first_tile = 0
    if STARTS:
        first_tile = tl.load(starts_ptr + seq) // TILE
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
    if SLOTS == 1:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out_ptr + flat[:, None] * HEAD_DIM + dims[None, :], acc, mask=q_mask)
    else:
        part = flat * SLOTS + FIRST_SLOT + split
        # What no key was counted in is not read, so it need not be written.
        tl.store(partial_ptr + part[:, None] * HEAD_DIM + dims[None, :], acc, mask=q_mask & (total > 0.0)[:, None])
        tl.store(stats_ptr + part * 2, best, mask=rows < GROUP)
        tl.store(stats_ptr + part * 2 + 1, total, mask=rows < GROUP)


@jit_for_varying("first_row", "num_rows", "num_tokens_ptr", "prefix_lens_ptr")
def _join_kernel(
    partial_ptr,
    stats_ptr,
    out_ptr,
    prefix_lens_ptr,
    num_tokens_ptr,
    first_row,
    num_rows,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    SLOTS: tl.constexpr,
    PREFIX_SLOTS: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """ROWS rows, each a head of a token. The first PREFIX_SLOTS count where the token has a shared prefix. PADDED: rows
    of tokens from num_tokens on become zeros."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    rows = first_row + tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    alive = inside
    if PADDED:
        alive = alive & (rows // NUM_HEADS < tl.load(num_tokens_ptr))
    has_prefix = alive
    if PREFIX_SLOTS > 0:
        has_prefix = alive & (tl.load(prefix_lens_ptr + rows // NUM_HEADS, mask=inside, other=0) > 0)
    first_part = rows.to(tl.int64) * SLOTS
    stats = stats_ptr + first_part * 2
    best = tl.full([ROWS], float("-inf"), tl.float32)
    for slot in tl.static_range(SLOTS):
        live = has_prefix if slot < PREFIX_SLOTS else alive
        live = live & (tl.load(stats + slot * 2 + 1, mask=live, other=0.0) > 0.0)
        best = tl.maximum(best, tl.load(stats + slot * 2, mask=live, other=float("-inf")))
    shift = tl.where(best == float("-inf"), 0.0, best)
    dims = tl.arange(0, HEAD_PAD)[None, :]
    sums = partial_ptr + (first_part * HEAD_DIM)[:, None] + dims
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    for slot in tl.static_range(SLOTS):
        live = has_prefix if slot < PREFIX_SLOTS else alive
        counted = tl.load(stats + slot * 2 + 1, mask=live, other=0.0)
        live = live & (counted > 0.0)
        weight = tl.exp2(tl.load(stats + slot * 2, mask=live, other=float("-inf")) - shift)
        total += counted * weight
        acc += tl.load(sums + slot * HEAD_DIM, mask=live[:, None] & (dims < HEAD_DIM), other=0.0) * weight[:, None]
    out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out_ptr + (rows.to(tl.int64) * HEAD_DIM)[:, None] + dims, out, mask=inside[:, None] & (dims < HEAD_DIM))


@dataclass(frozen=True)
class Parts:
    """Unfinished softmaxes over parts of the keys, a slot each.

    sums float32 [rows * slots, head_dim], stats float32 [rows * slots, 2] of best score and total, for a row a head of
    a token. A slot whose total is 0 has no sum.
    """

    sums: torch.Tensor
    stats: torch.Tensor
    slots: int

    @staticmethod
    def make(q: torch.Tensor, slots: int) -> Parts:
        """For all heads of q [num_tokens, num_heads, head_dim]."""
        num_parts = q.shape[0] * q.shape[1] * slots
        sums = torch.empty((num_parts, q.shape[2]), dtype=torch.float32, device=q.device)
        return Parts(sums, torch.empty((num_parts, 2), dtype=torch.float32, device=q.device), slots)


def join_parts(
    parts: Parts,
    out: torch.Tensor,
    *,
    first_row: int = 0,
    prefix_slots: int = 0,
    prefix_lens: torch.Tensor | None = None,
    num_tokens: torch.Tensor | None = None,
) -> None:
    """Fills out [num_tokens, num_heads, head_dim] (contiguous) from token `first_row` on.

    prefix_lens int32 [num_tokens]: the first `prefix_slots` of a token hold something where its entry is not 0.
    num_tokens int32 [1]: tokens from there on are padding and become zeros.
    """
    tokens, num_heads, head_dim = out.shape
    rows_a_program, num_warps = (1, 2) if (tokens - first_row) * num_heads <= _FEW_ROWS_TO_JOIN else (8, 4)
    _join_kernel[(triton.cdiv((tokens - first_row) * num_heads, rows_a_program),)](
        parts.sums,
        parts.stats,
        out,
        out if prefix_lens is None else prefix_lens,
        out if num_tokens is None else num_tokens,
        first_row * num_heads,
        tokens * num_heads,
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        HEAD_PAD=max(16, triton.next_power_of_2(head_dim)),
        SLOTS=parts.slots,
        PREFIX_SLOTS=prefix_slots if prefix_lens is not None else 0,
        PADDED=num_tokens is not None,
        ROWS=rows_a_program,
        num_warps=num_warps,
        **dependent_launch(out),
    )


def choose_splits(num_seqs: int, num_kv_heads: int, max_seq_len: int, num_sms: int) -> int:
    """Programs to split a sequence's keys over: about three a multiprocessor, never more than there are tiles.

    At 64 sequences of 300 tokens and 8 KV heads (four programs a multiprocessor), one part takes 24 us where two and
    their join take 31; at 24 of 700, two take 25 us and one 35; at 16 of 16k, four take 248 us and two 351. Depends on
    the padded batch and on `max_seq_len` as the caller bounds it, so a captured graph keeps its grid.
    """
    wanted = max(1, round(3 * num_sms / max(1, num_seqs * num_kv_heads)))
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
    parts: Parts | None = None,
    first_slot: int = 0,
    starts: torch.Tensor | None = None,
    padded: bool = False,
) -> None:
    """Fills out [B, num_heads, head_dim] (contiguous). Arguments are those of `paged_attention`, checked there.

    num_splits 0 chooses by the load; a fixed number makes a sequence's result independent of the batch. With `parts`
    it fills their slots from `first_slot` on instead, one a split, and the caller joins them. starts int32 [B]: keys
    before them, whole tiles of 64, are left out. padded: a sequence of length 0 writes nothing.
    """
    num_seqs, num_heads, head_dim = q.shape
    _, _, num_kv_heads, block_size, _ = kv_cache.shape
    if not num_seqs:
        return
    sms = num_multiprocessors(q.device.index or 0)
    splits = num_splits or choose_splits(num_seqs, num_kv_heads, max_seq_len, sms)
    group = num_heads // num_kv_heads
    head_pad = max(16, triton.next_power_of_2(head_dim))  # tl.dot's smallest side
    own_parts = None
    if parts is None and splits > 1:
        parts = own_parts = Parts.make(q, splits)
    _decode_kernel[(num_kv_heads, splits, num_seqs)](
        q,
        kv_cache,
        block_table,
        seq_lens,
        seq_lens if starts is None else starts,
        q if sinks is None else sinks,
        out,
        out if parts is None else parts.sums,
        out if parts is None else parts.stats,
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
        SLOTS=1 if parts is None else parts.slots,
        FIRST_SLOT=first_slot,
        STARTS=starts is not None,
        PADDED=padded,
        SOFT_CAP=soft_cap > 0,
        SINKS=sinks is not None,
        WINDOWED=window > 0,
        LOG2E=_LOG2E,
        FLOAT32_DOT=dots_in_float32(),
        num_warps=_NUM_WARPS,
        num_stages=2 if head_pad > 128 or q.element_size() > 2 else _NUM_STAGES,
        **dependent_launch(q),
    )
    if own_parts is not None:
        join_parts(own_parts, out)
