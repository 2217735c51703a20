"""Paged attention: queries of many sequences over keys and values that lie in pages (PagedAttention, arXiv:2309.06180).

One call serves decodes (one query token a sequence, the first `num_decodes` of the batch) and prefill chunks over
cached prefixes (varlen, causal), with grouped-query heads, sliding window, soft-capping and attention sinks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from kernels._paged_decode import INVARIANT_SPLITS, Parts, choose_splits, join_parts, paged_decode
from kernels._paged_prefill import CHUNK_SPLITS, paged_prefill
from kernels._triton import num_multiprocessors, uses_triton

# A shared prefix ends at a multiple of this: whole tiles of keys, for every size of tile that decodes take.
PREFIX_TILE = 64


@dataclass(frozen=True)
class SharedPrefixes:
    """Decodes whose contexts begin alike, in the same pages: those are read once for all of a group.

    groups int32 [G + 1]: group i is the decodes groups[i] to groups[i + 1] of the batch; groups without any have equal
    bounds. lens int32 [G]: keys a group shares, a multiple of PREFIX_TILE below each context. starts int32 [B]: the
    same by decode, 0 for one without a group.
    """

    groups: torch.Tensor
    lens: torch.Tensor
    starts: torch.Tensor


def _dequantised(pages: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return pages if pages.dtype == dtype else pages.to(dtype)


def _gather(kv_cache: torch.Tensor, pages: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """pages [R, N] -> [2, R, num_kv_heads, N * block_size, head_dim] in `dtype`."""
    rows, num = pages.shape
    _, _, kv_heads, block_size, head_dim = kv_cache.shape
    if kv_cache.dtype == torch.float8_e4m3fn:  # index_select has no float8 kernel on the CPU
        picked = kv_cache.view(torch.uint8).index_select(0, pages.reshape(-1)).view(torch.float8_e4m3fn)
    else:
        picked = kv_cache.index_select(0, pages.reshape(-1))
    picked = _dequantised(picked, dtype).view(rows, num, 2, kv_heads, block_size, head_dim)
    return picked.permute(2, 0, 3, 1, 4, 5).reshape(2, rows, kv_heads, num * block_size, head_dim)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    hidden: torch.Tensor,
    *,
    scale: float,
    soft_cap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """q [..., M, D], k and v [..., S, D], hidden bool broadcastable to [..., M, S] (True = masked), sinks
    broadcastable to [..., M, 1]. Softmax in float32. Returns [..., M, D]."""
    scores = torch.matmul(q, k.transpose(-1, -2)).float() * scale
    if soft_cap:
        scores = torch.tanh(scores / soft_cap) * soft_cap
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        with_sink = torch.cat((scores, sinks.float().expand(*scores.shape[:-1], 1)), dim=-1)
        probs = torch.softmax(with_sink, dim=-1)[..., :-1]
    else:
        probs = torch.softmax(scores, dim=-1)
    return torch.matmul(probs.to(q.dtype), v)


def _decode_ref(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    max_seq_len: int,
    scale: float,
    window: int,
    soft_cap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """One query token a sequence. The query heads of one KV head are the rows of one product (GQA packed): on a CPU,
    bf16, 8 sequences of 512 tokens, that takes 0.16 ms where SDPA with enable_gqa takes 1.67 ms."""
    num_seqs, num_heads, head_dim = q.shape
    _, _, kv_heads, block_size, _ = kv_cache.shape
    num_cols = -(-max_seq_len // block_size)
    lens = seq_lens.long()[:, None]
    if window and max_seq_len > window + block_size:
        num_cols = min(num_cols, -(-window // block_size) + 1)
        cols = (lens - window).clamp_(min=0) // block_size + torch.arange(num_cols, device=q.device)
        pages = block_table.gather(1, cols.clamp(max=block_table.shape[1] - 1))
        positions = (cols[:, :, None] * block_size + torch.arange(block_size, device=q.device)).view(num_seqs, -1)
    else:
        pages = block_table[:, :num_cols]
        positions = torch.arange(num_cols * block_size, device=q.device)[None]
    hidden = positions >= lens
    if window:
        hidden = hidden | (positions < lens - window)
    k, v = _gather(kv_cache, pages, q.dtype)
    grouped = q.view(num_seqs, kv_heads, num_heads // kv_heads, head_dim)
    sink_rows = None if sinks is None else sinks.view(1, kv_heads, num_heads // kv_heads, 1)
    out = _attend(grouped, k, v, hidden[:, None, None], scale=scale, soft_cap=soft_cap, sinks=sink_rows)
    return out.reshape(num_seqs, num_heads, head_dim)


def _prefill_ref(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    pages: torch.Tensor,
    seq_len: int,
    *,
    scale: float,
    window: int,
    soft_cap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """One sequence's chunk: q [L, H, D], its last token at position seq_len - 1."""
    length, num_heads, head_dim = q.shape
    _, _, kv_heads, block_size, _ = kv_cache.shape
    first_position = seq_len - length
    first_col = max(0, first_position + 1 - window) // block_size if window else 0
    last_col = -(-seq_len // block_size)
    offset = first_col * block_size
    keys, values = _gather(kv_cache, pages[None, first_col:last_col], q.dtype)[:, 0, :, : seq_len - offset]
    heads_first = q.transpose(0, 1)
    repeats = num_heads // kv_heads
    query_positions = torch.arange(first_position, seq_len, device=q.device)[:, None]
    key_positions = torch.arange(offset, seq_len, device=q.device)[None]
    hidden = key_positions > query_positions
    if window:
        hidden |= key_positions <= query_positions - window
    if soft_cap or sinks is not None:
        grouped = heads_first.reshape(kv_heads, repeats, length, head_dim)
        sink_rows = None if sinks is None else sinks.view(kv_heads, repeats, 1, 1)
        out = _attend(grouped, keys[:, None], values[:, None], hidden, scale=scale, soft_cap=soft_cap, sinks=sink_rows)
        return out.reshape(num_heads, length, head_dim).transpose(0, 1)
    whole = first_position == 0 and not window
    out = F.scaled_dot_product_attention(
        heads_first[None],
        keys.repeat_interleave(repeats, dim=0)[None],
        values.repeat_interleave(repeats, dim=0)[None],
        attn_mask=None if whole else torch.logical_not(hidden),
        is_causal=whole,
        scale=scale,
    )
    return out[0].transpose(0, 1)


def paged_attention_ref(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    num_decodes: int,
    max_query_len: int,  # noqa: ARG001 - a kernel sizes its grid by it
    max_seq_len: int,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """The reference of `paged_attention`, and the CPU path. A sequence's result does not depend on its neighbours
    beyond the rounding of products of another size."""
    num_seqs = seq_lens.shape[0]
    options = {"scale": scale, "window": window, "soft_cap": soft_cap, "sinks": sinks}
    decodes = None
    if num_decodes:
        table, lens = block_table[:num_decodes], seq_lens[:num_decodes]
        if batch_invariant:
            rows = [
                _decode_ref(q[i : i + 1], kv_cache, table[i : i + 1], lens[i : i + 1], max_seq_len=length, **options)  # type: ignore[arg-type]
                for i, length in enumerate(lens.tolist())
            ]
            decodes = torch.cat(rows)
        else:
            decodes = _decode_ref(q[:num_decodes], kv_cache, table, lens, max_seq_len=max_seq_len, **options)  # type: ignore[arg-type]
        if num_decodes == num_seqs:
            return decodes
    out = torch.empty_like(q)
    if decodes is not None:
        out[:num_decodes] = decodes
    starts, lengths = cu_seqlens_q.tolist(), seq_lens.tolist()
    for i in range(num_decodes, num_seqs):
        chunk = slice(starts[i], starts[i + 1])
        out[chunk] = _prefill_ref(q[chunk], kv_cache, block_table[i], lengths[i], **options)  # type: ignore[arg-type]
    return out


def _unpadded_ref(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    num_decodes: int,
    **options: Any,
) -> torch.Tensor:
    """The reference of a padded batch: what is padding is left out, and is zeros in the result."""
    decodes = int((seq_lens[:num_decodes] > 0).sum())
    bounds = cu_seqlens_q[num_decodes:].tolist()
    chunks = [i for i in range(len(bounds) - 1) if bounds[i + 1] > bounds[i]]
    rows = [*range(decodes), *(num_decodes + i for i in chunks)]
    cu_seqlens = torch.tensor([*range(decodes), *(bounds[i] for i in chunks), bounds[-1]], dtype=torch.int32)
    out = torch.zeros_like(q)
    out[: bounds[-1]] = paged_attention_ref(
        q[: bounds[-1]], kv_cache, block_table[rows], cu_seqlens, seq_lens[rows], num_decodes=decodes, **options
    )
    return out


def paged_attention(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    num_decodes: int,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    batch_invariant: bool = False,
    padded: bool = False,
    shared: SharedPrefixes | None = None,
) -> torch.Tensor:
    """Causal attention of T query tokens of B sequences over their pages.

    Args: q [T, num_heads, head_dim]; kv_cache one layer's [num_pages, 2, num_kv_heads, block_size, head_dim], any
    strides with the last 1; block_table int32 [B, max_blocks]; cu_seqlens_q int32 [B+1]; seq_lens int32 [B], context
    including the new tokens; num_decodes: the first sequences, with one query token each; window 0 = full; soft_cap
    0 = none; sinks [num_heads]; batch_invariant: a decode's result does not depend on its neighbours by one bit.
    padded: of the first `num_decodes` sequences those with contexts are the decodes, the chunks' tokens start at
    cu_seqlens_q[num_decodes] and may be none, and tokens from cu_seqlens_q[-1] on are padding, whose rows become zeros.
    shared: decodes alone, without a window: what they share is read once.
    Slots beyond a sequence's length must hold finite numbers.
    Returns: [T, num_heads, head_dim], new. Raises: ValueError on other shapes.
    """
    if q.dim() != 3 or kv_cache.dim() != 5 or q.shape[1] % kv_cache.shape[2] or q.shape[2] != kv_cache.shape[4]:
        raise ValueError(f"paged_attention: q {tuple(q.shape)} does not fit a cache of {tuple(kv_cache.shape)}")
    if cu_seqlens_q.shape[0] != seq_lens.shape[0] + 1 or block_table.shape[0] != seq_lens.shape[0]:
        raise ValueError(
            f"paged_attention: cu_seqlens_q {tuple(cu_seqlens_q.shape)} and block_table {tuple(block_table.shape)} "
            f"do not fit {seq_lens.shape[0]} sequences"
        )
    if shared is not None and (padded or window or num_decodes != seq_lens.shape[0]):
        raise ValueError(f"paged_attention: shared prefixes in a batch with chunks, padding or a window of {window}")
    if not uses_triton(q):
        return (_unpadded_ref if padded else paged_attention_ref)(
            q,
            kv_cache,
            block_table,
            cu_seqlens_q,
            seq_lens,
            num_decodes=num_decodes,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            scale=scale,
            window=window,
            soft_cap=soft_cap,
            sinks=sinks,
            batch_invariant=batch_invariant,
        )
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    common: dict[str, Any] = {
        "max_seq_len": max_seq_len, "scale": scale, "window": window, "soft_cap": soft_cap, "sinks": sinks,
    }  # fmt: skip
    decode_options: dict[str, Any]
    prefill_options: dict[str, Any]
    if shared is not None:
        _attend_shared(q, kv_cache, block_table, seq_lens, out, shared, common)
        return out
    if padded:
        parts = Parts.make(q, CHUNK_SPLITS)
        decode_options = {"num_splits": CHUNK_SPLITS, "parts": parts, "padded": True}
        prefill_options = {"first_token": 0, "parts": parts}
    else:
        decode_options = {"num_splits": INVARIANT_SPLITS if batch_invariant else 0}
        prefill_options = {"first_token": num_decodes}
    paged_decode(
        q[:num_decodes],
        kv_cache,
        block_table[:num_decodes],
        seq_lens[:num_decodes],
        out[:num_decodes],
        **common,
        **decode_options,
    )
    paged_prefill(
        q,
        kv_cache,
        block_table[num_decodes:],
        cu_seqlens_q[num_decodes:],
        seq_lens[num_decodes:],
        out,
        **common,
        **prefill_options,
    )
    if padded:
        join_parts(parts, out, num_tokens=cu_seqlens_q[-1:])
    return out


def _attend_shared(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    shared: SharedPrefixes,
    common: dict[str, Any],
) -> None:
    """Each group over its prefix, as the queries of one sequence; each decode over its own keys; then both joined."""
    sms = num_multiprocessors(q.device.index or 0)
    splits = choose_splits(q.shape[0], kv_cache.shape[2], common["max_seq_len"], sms)
    parts = Parts.make(q, CHUNK_SPLITS + splits)
    paged_prefill(
        q,
        kv_cache,
        block_table,
        shared.groups,
        shared.lens,
        out,
        first_token=0,
        parts=parts,
        shared=True,
        **{**common, "sinks": None},  # counted once, among each decode's own keys
    )
    paged_decode(
        q,
        kv_cache,
        block_table,
        seq_lens,
        out,
        num_splits=splits,
        parts=parts,
        first_slot=CHUNK_SPLITS,
        starts=shared.starts,
        **common,
    )
    join_parts(parts, out, prefix_slots=CHUNK_SPLITS, prefix_lens=shared.starts)
