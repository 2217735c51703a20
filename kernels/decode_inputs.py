"""The inputs of a decode step, gathered on the device from the tables of running sequences by their rows.

A captured graph reads fixed addresses; this fills them from two integers a sequence, so that a steady step sends the
device nothing else. `append_tokens` is its counterpart after sampling: the next step's ids are there to be gathered.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels._triton import dependent_launch, jit_for_varying, tl, uses_triton

_BLOCK = 256


class DecodeInputs(NamedTuple):
    """token_ids, positions int64 [S]; seq_lens int32 [S]; a group: slots int64 [S], block_tables int32 [S, columns]."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    seq_lens: torch.Tensor
    slots: tuple[torch.Tensor, ...]
    block_tables: tuple[torch.Tensor, ...]


def gather_decode_inputs_ref(
    rows: torch.Tensor,
    starts: torch.Tensor,
    tokens: torch.Tensor,
    block_tables: tuple[torch.Tensor, ...],
    block_size: int,
    out: DecodeInputs,
) -> None:
    live = rows >= 0
    safe_rows, safe_starts = rows.clamp(min=0), torch.where(live, starts, 0)
    out.token_ids.copy_(torch.where(live, tokens[safe_rows, safe_starts].long(), 0))
    out.positions.copy_(safe_starts)
    out.seq_lens.copy_(torch.where(live, starts + 1, 0))
    for table, slots, rows_out in zip(block_tables, out.slots, out.block_tables, strict=True):
        rows_out.copy_(torch.where(live[:, None], table[safe_rows], 0))
        pages = table[safe_rows, safe_starts // block_size].long()
        slots.copy_(torch.where(live, pages * block_size + safe_starts % block_size, -1))


@jit_for_varying("rows_ptr", "starts_ptr")
def _gather_kernel(
    rows_ptr,
    starts_ptr,
    tokens_ptr,
    table_ptr,
    ids_ptr,
    positions_ptr,
    seq_lens_ptr,
    slots_ptr,
    table_out_ptr,
    tokens_stride,
    table_stride,
    table_out_stride,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    WITH_IDS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One sequence; columns of its block table beyond its context are left as they are: nothing reads them."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    i = tl.program_id(0)
    row = tl.load(rows_ptr + i)
    start = tl.load(starts_ptr + i)
    live = row >= 0
    if row < 0:
        row = row * 0
        start = start * 0
    table_row = table_ptr + row * table_stride
    if WITH_IDS:
        token = tl.load(tokens_ptr + row * tokens_stride + start).to(tl.int64)
        tl.store(ids_ptr + i, tl.where(live, token, 0))
        tl.store(positions_ptr + i, start)
        tl.store(seq_lens_ptr + i, tl.where(live, start + 1, 0).to(tl.int32))
    page = tl.load(table_row + start // PAGE).to(tl.int64)
    tl.store(slots_ptr + i, tl.where(live, page * PAGE + start % PAGE, -1))
    num_columns = tl.where(live, start // PAGE + 1, 0)
    for column in range(0, num_columns, BLOCK):
        columns = column + tl.arange(0, BLOCK)
        mask = columns < num_columns
        pages = tl.load(table_row + columns, mask=mask, other=0)
        tl.store(table_out_ptr + i * table_out_stride + columns, pages, mask=mask)


@jit_for_varying("ids_ptr", "rows_ptr", "positions_ptr")
def _append_kernel(ids_ptr, rows_ptr, positions_ptr, tokens_ptr, tokens_stride, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    i = tl.program_id(0)
    row = tl.load(rows_ptr + i)
    if row >= 0:
        position = tl.load(positions_ptr + i)
        token = tl.maximum(tl.load(ids_ptr + i), 0)  # a failed row ends; until then its id must be a valid one
        tl.store(tokens_ptr + row * tokens_stride + position + 1, token.to(tl.int32))


def gather_decode_inputs(
    rows: torch.Tensor,
    starts: torch.Tensor,
    tokens: torch.Tensor,
    block_tables: tuple[torch.Tensor, ...],
    block_size: int,
    out: DecodeInputs,
) -> None:
    """Fills `out` for sequences whose token at `starts` is next.

    Args: rows int64 [S], each a row of the tables or -1 for padding (id 0, length 0, slot -1); starts int64 [S];
    tokens int32 [R, max_len]; block_tables int32 [R, columns] a group. Raises: ValueError on other shapes.
    """
    if rows.shape != starts.shape or out.token_ids.shape != rows.shape or len(block_tables) != len(out.slots):
        raise ValueError(f"gather_decode_inputs: rows {rows.shape}, starts {starts.shape}, {len(block_tables)} groups")
    if not uses_triton(tokens):
        gather_decode_inputs_ref(rows, starts, tokens, block_tables, block_size, out)
        return
    for group, table in enumerate(block_tables):
        _gather_kernel[(rows.shape[0],)](
            rows,
            starts,
            tokens,
            table,
            out.token_ids,
            out.positions,
            out.seq_lens,
            out.slots[group],
            out.block_tables[group],
            tokens.stride(0),
            table.stride(0),
            out.block_tables[group].stride(0),
            PAGE=block_size,
            BLOCK=_BLOCK,
            WITH_IDS=group == 0,
            num_warps=1,
            **dependent_launch(tokens),
        )


def append_tokens(token_ids: torch.Tensor, rows: torch.Tensor, starts: torch.Tensor, tokens: torch.Tensor) -> None:
    """tokens[rows, starts + 1] = token_ids, negative ids as 0, rows of -1 skipped; all [S] but tokens [R, max_len]."""
    if not uses_triton(tokens):
        live = rows >= 0
        tokens[rows[live], starts[live] + 1] = token_ids[live].clamp(min=0).to(torch.int32)
        return
    _append_kernel[(rows.shape[0],)](
        token_ids, rows, starts, tokens, tokens.stride(0), num_warps=1, **dependent_launch(tokens)
    )
