"""Batch-invariant forward passes for the deterministic mode, by torch alone.

A product's rounding depends on its number of rows, and attention's on how queries are grouped. So every forward call
gets the same number of query tokens (the last one padded), and every token attends alone, over its own context. An
expert gets as many rows as a call has tokens, however many chose it (`make_invariant`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from engine.attention import Attention, AttentionMetadata, KVView
from engine.batch import StepBatch
from engine.layers.moe import RoutedExperts
from engine.models.base import CausalLM


def make_invariant(model: CausalLM) -> None:
    """Sets a loaded model up for `invariant_forward`."""
    for module in model.modules():
        if isinstance(module, RoutedExperts):
            module.batch_invariant = True


def invariant_forward(
    model: CausalLM,
    kv: KVView,
    batch: StepBatch,
    num_tokens: int,
    make_attention: Callable[[KVView, AttentionMetadata], Attention] = Attention,
) -> torch.Tensor:
    """The batch's hidden states [T, hidden], computed `num_tokens` query tokens a call, in order: a later call reads
    the keys that an earlier one wrote."""
    total = batch.input_ids.shape[0]
    tables = _per_token_tables(batch.meta, total)
    parts = []
    for start in range(0, total, num_tokens):
        end = min(total, start + num_tokens)
        missing = num_tokens - (end - start)
        meta = AttentionMetadata(
            cu_seqlens_q=torch.arange(num_tokens + 1, dtype=torch.int32, device=batch.positions.device),
            seq_lens=_padded(batch.positions[start:end] + 1, missing, 1).to(torch.int32),
            block_tables=tuple(F.pad(table[start:end], (0, 0, 0, missing)) for table in tables),
            slot_mapping=tuple(_padded(slots[start:end], missing, -1) for slots in batch.meta.slot_mapping),
            num_decodes=num_tokens,
            max_query_len=1,
            max_seq_len=batch.meta.max_seq_len,
            batch_invariant=True,
        )
        ids, positions = (
            _padded(batch.input_ids[start:end], missing, 0),
            _padded(batch.positions[start:end], missing, 0),
        )
        parts.append(model(ids, positions, make_attention(kv, meta))[: end - start])
    return torch.cat(parts)


def invariant_rows(function: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    """`function` over [R, ...] rows, `num_rows` at a time, the last call padded."""
    parts = []
    for start in range(0, rows.shape[0], num_rows):
        part = rows[start : start + num_rows]
        padded = F.pad(part, (0, 0, 0, num_rows - part.shape[0]))
        parts.append(function(padded)[: part.shape[0]])
    return torch.cat(parts)


def _per_token_tables(meta: AttentionMetadata, total: int) -> tuple[torch.Tensor, ...]:
    counts = (meta.cu_seqlens_q[1:] - meta.cu_seqlens_q[:-1]).long()
    return tuple(torch.repeat_interleave(table, counts, dim=0, output_size=total) for table in meta.block_tables)


def _padded(values: torch.Tensor, missing: int, fill: int) -> torch.Tensor:
    return F.pad(values, (0, missing), value=fill)
