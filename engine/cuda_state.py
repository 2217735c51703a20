"""`CudaRequestState`: `RequestState` whose updates reach the device in two copies a step and never wait for it.

Beside the tables of the base class it keeps each row's sampling parameters, so that a captured step can sample.
"""

from __future__ import annotations

import struct
from typing import Any

import torch

from engine.random_uniform import mix64
from engine.request_state import RequestState, uses_penalties
from engine.sequence import Sequence
from engine.staging import Staging
from engine.step_plan import StepPlan

NUM_PARAMS = 5  # temperature, top_p, min_p as float32 bits; top_k; seed


class CudaRequestState(RequestState):
    """params int64 [NUM_PARAMS, max_num_seqs], see `SamplingColumns`."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.staging = Staging(self.device)
        self.params = torch.zeros(NUM_PARAMS, self._max_num_seqs, dtype=torch.int64, device=self.device)

    def apply(self, plan: StepPlan) -> None:
        """As the base class, batched: the tables of all groups are one scatter each, so are tokens and parameters."""
        admitted = [sequence for sequence in plan.admitted if sequence.row >= 0]
        tables: list[tuple[list[int], list[int]]] = [([], []) for _ in self.block_tables]
        for update in plan.table_updates:
            if update.row >= 0:
                self._put_pages(tables, update.group, update.row, update.column, update.pages)
        for sequence in admitted:
            for group, pages in enumerate(sequence.block_tables):
                self._put_pages(tables, group, sequence.row, 0, pages)
        num_tokens = sum(len(sequence.token_ids) for sequence in admitted)
        num_pages = sum(len(pages) for _, pages in tables)
        # Rows, positions and the like of a step's sequences, and the groups that share prefixes.
        for_sequences = self._max_num_seqs * 8 + 64
        self.staging.next_step(2 * (num_tokens + num_pages) + (1 + NUM_PARAMS) * len(admitted) + for_sequences)
        for table, (places, pages) in zip(self.block_tables, tables, strict=True):
            if places:
                self._scatter(table.view(-1), places, pages)
        if admitted:
            self._admit_all(admitted)

    def _put_pages(
        self,
        tables: list[tuple[list[int], list[int]]],
        group: int,
        row: int,
        column: int,
        pages: list[int] | tuple[int, ...],
    ) -> None:
        places, values = tables[group]
        first = row * self.block_tables[group].shape[1] + column
        places.extend(range(first, first + len(pages)))
        values.extend(pages)

    def _admit_all(self, admitted: list[Sequence]) -> None:
        width = self.tokens.shape[1]
        places: list[int] = []
        ids: list[int] = []
        params: list[int] = []
        rows = [sequence.row for sequence in admitted]
        for sequence in admitted:
            first = sequence.row * width
            places.extend(range(first, first + len(sequence.token_ids)))
            ids.extend(sequence.token_ids)
            params.extend(_param_column(sequence))
        self._scatter(self.tokens.view(-1), places, ids)
        columns = self.staging.to_device(rows + params)
        self.params[:, columns[: len(rows)]] = columns[len(rows) :].view(len(rows), NUM_PARAMS).T
        for sequence in admitted:
            if uses_penalties(sequence):
                self._count(sequence.row, torch.tensor(sequence.token_ids), sequence.num_prompt)

    def _scatter(self, table: torch.Tensor, places: list[int], values: list[int]) -> None:
        """table[places] = values; the last of equal places wins on a CPU, and no plan has two of them."""
        both = self.staging.to_device(places + values)
        table[both[: len(places)]] = both[len(places) :].to(table.dtype)


class SamplingColumns:
    """The parameters of some rows, as `kernels.sampling.sample` takes them."""

    def __init__(self, params: torch.Tensor, rows: torch.Tensor) -> None:
        picked = params.index_select(1, rows)
        floats = picked[:3].to(torch.int32).view(torch.float32)
        self.temperatures, self.top_ps, self.min_ps = floats.unbind(0)
        self.top_ks = picked[3].to(torch.int32)
        self.seeds = picked[4]


def _param_column(sequence: Sequence) -> tuple[int, ...]:
    sampling = sequence.group.request.sampling
    floats = (sampling.temperature, sampling.top_p, sampling.min_p)
    seed = mix64(mix64(sequence.group.seed & ((1 << 64) - 1)) ^ sequence.index)
    return (*(_float_bits(value) for value in floats), sampling.top_k, seed - (1 << 64) if seed >> 63 else seed)


def _float_bits(value: float) -> int:
    bits: int = struct.unpack("<i", struct.pack("<f", value))[0]
    return bits
