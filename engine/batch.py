"""`build_batch`: a plan's integers become the tensors of one forward pass, gathered from `RequestState`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.attention import AttentionMetadata
from engine.request_state import RequestState
from engine.step_plan import StepPlan


@dataclass(frozen=True)
class StepBatch:
    """input_ids, positions int64 [T]; sample_from int64 [R], the hidden row of each sampled sequence (forks repeat
    their parent's); sample_rows and sample_positions int64 [R], where the sampled id goes in the token table."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    meta: AttentionMetadata
    sample_from: torch.Tensor
    sample_rows: torch.Tensor
    sample_positions: torch.Tensor


def build_batch(plan: StepPlan, state: RequestState) -> StepBatch:
    """One host-to-device transfer of a few integers a sequence, then gathers on the device."""
    items = plan.scheduled
    starts, lengths, rows, sample_from, sample_rows, sample_positions = [], [0], [], [], [], []
    total = 0
    for item in items:
        total += item.length
        starts.append(item.start)
        lengths.append(total)
        rows.append(item.row)
        if item.samples:
            for row in (item.row, *(fork.row for fork in item.forks)):
                sample_from.append(total - 1)
                sample_rows.append(row)
                sample_positions.append(item.start + item.length)
    device = state.device
    # One packed tensor, one copy: [rows | starts | cumulative lengths | sample from, rows, positions].
    packed = torch.tensor(
        [*rows, *starts, *lengths, *sample_from, *sample_rows, *sample_positions],
        dtype=torch.int64,
        pin_memory=device.type == "cuda",  # from pageable memory the copy may wait for the step that runs
    ).to(device, non_blocking=True)
    n, r = len(items), len(sample_from)
    row_of, start_of, cumulative, *samples = packed.split([n, n, n + 1, r, r, r])
    if total == n:
        token_rows, positions = row_of, start_of
    else:
        counts = cumulative[1:] - cumulative[:-1]
        token_rows = torch.repeat_interleave(row_of, counts, output_size=total)
        offsets = torch.repeat_interleave(start_of - cumulative[:-1], counts, output_size=total)
        positions = torch.arange(total, device=device) + offsets
    max_seq_len = max(item.start + item.length for item in items)
    num_columns = -(-max_seq_len // state.block_size)
    columns, offsets_in_page = positions // state.block_size, positions % state.block_size
    meta = AttentionMetadata(
        cu_seqlens_q=cumulative.to(torch.int32),
        seq_lens=(start_of + cumulative[1:] - cumulative[:-1]).to(torch.int32),
        block_tables=tuple(table[row_of, :num_columns] for table in state.block_tables),
        slot_mapping=tuple(
            table[token_rows, columns].long() * state.block_size + offsets_in_page for table in state.block_tables
        ),
        num_decodes=sum(1 for item in items if item.length == 1),
        max_query_len=max(item.length for item in items),
        max_seq_len=max_seq_len,
    )
    input_ids = state.tokens[token_rows, positions].long()
    return StepBatch(input_ids, positions, meta, *samples)
