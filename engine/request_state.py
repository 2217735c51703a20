"""`RequestState`: what the device knows of the running sequences, one row each, kept from step to step.

Inputs of a step are gathered from here by row, so a steady decode step sends the device a few integers a sequence and
the sampled ids never have to visit the host before the next step reads them.
"""

from __future__ import annotations

import torch

from engine.sequence import Sequence
from engine.step_plan import StepPlan


class RequestState:
    """Tables with `max_num_seqs` rows: tokens int32 [rows, max_model_len + 1]; block_tables int32 [rows, max_blocks] a
    group; output_counts int32 and prompt_seen bool [rows, vocab], made when the first penalty asks for them."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        num_groups: int,
        logits_width: int,
        device: torch.device,
    ) -> None:
        self.device = device
        self.block_size = block_size
        self._logits_width = logits_width
        self._max_num_seqs = max_num_seqs
        max_blocks = -(-(max_model_len + 1) // block_size)
        self.tokens = torch.zeros(max_num_seqs, max_model_len + 1, dtype=torch.int32, device=device)
        self.block_tables = tuple(
            torch.zeros(max_num_seqs, max_blocks, dtype=torch.int32, device=device) for _ in range(num_groups)
        )
        self.output_counts: torch.Tensor | None = None
        self.prompt_seen: torch.Tensor | None = None

    def apply(self, plan: StepPlan) -> None:
        """New rows, new pages and drafts of a plan."""
        for sequence in plan.admitted:
            if sequence.row >= 0:
                self.admit(sequence)
        for update in plan.table_updates:
            if update.row >= 0:
                pages = torch.tensor(update.pages, dtype=torch.int32)
                self.block_tables[update.group][update.row, update.column : update.column + len(update.pages)] = pages
        drafts = [(item.row, item.start, item.draft) for item in plan.scheduled if item.draft >= 0]
        if drafts:
            rows, positions, ids = torch.tensor(drafts, device=self.device).unbind(1)
            self.append(rows, positions, ids)

    def admit(self, sequence: Sequence) -> None:
        """Fills the sequence's row from the host: its known tokens, pages and counts."""
        row = sequence.row
        ids = torch.tensor(sequence.token_ids, dtype=torch.int32)
        self.tokens[row, : len(ids)] = ids
        for table, pages in zip(self.block_tables, sequence.block_tables, strict=True):
            table[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        if uses_penalties(sequence):
            self._count(row, ids.long(), sequence.num_prompt)

    def _count(self, row: int, ids: torch.Tensor, num_prompt: int) -> None:
        if self.output_counts is None or self.prompt_seen is None:
            shape = (self._max_num_seqs, self._logits_width)
            self.output_counts = torch.zeros(shape, dtype=torch.int32, device=self.device)
            self.prompt_seen = torch.zeros(shape, dtype=torch.bool, device=self.device)
        self.prompt_seen[row] = False
        self.prompt_seen[row, ids[:num_prompt].to(self.device)] = True
        counts = torch.bincount(ids[num_prompt:], minlength=self._logits_width)
        self.output_counts[row] = counts.to(torch.int32)

    def append(self, rows: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Sampled ids (and drafts) take their place in the token table; all int64 [R] on the device."""
        self.tokens[rows, positions] = token_ids.to(torch.int32)


def uses_penalties(sequence: Sequence) -> bool:
    sampling = sequence.group.request.sampling
    return sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
