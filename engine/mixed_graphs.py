"""`MixedGraphs`: the model's forward pass over a step of decodes and prompt chunks, captured once a padded token count.

Launched one by one, such a step's 350 kernels cost the host 15 ms on an H200's host, more than a step of 512 tokens
costs the device. What a step holds is read from fixed addresses: how many decodes, which chunks, where they end. The
rows to sample from differ from step to step, so that head and sampling stay outside.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from engine.attention import Attention, AttentionMetadata, KVView
from engine.batch import StepBatch
from engine.models.base import CausalLM
from engine.request_state import RequestState

# Beyond this many tokens the device has more to do than the host.
MAX_TOKENS = 512
TOKENS_APART = 64
# Chunks of one step; a step of more is launched one by one.
MAX_CHUNKS = 32


def mixed_sizes(max_num_batched_tokens: int) -> list[int]:
    """Padded token counts. A step of decodes and a chunk seldom has fewer tokens than the least of them."""
    most = min(MAX_TOKENS, -(-max_num_batched_tokens // TOKENS_APART) * TOKENS_APART)
    return list(range(TOKENS_APART, most + 1, TOKENS_APART))


@dataclass
class _Inputs:
    """What a captured step reads: tokens [N], decodes [D] and chunks [MAX_CHUNKS] beyond them; and what it leaves."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    slots: tuple[torch.Tensor, ...]
    cu_seqlens: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: tuple[torch.Tensor, ...]
    num_decodes: int
    hidden: torch.Tensor | None = None
    graph: torch.cuda.CUDAGraph | None = None


class MixedGraphs:
    """Args: max_model_len bounds the contexts a captured launch must allow for. On a CPU (tests) nothing is captured
    and the same body runs."""

    def __init__(
        self,
        model: CausalLM,
        kv: KVView,
        state: RequestState,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
    ) -> None:
        self._model = model
        self._kv = kv
        self._max_model_len = max_model_len
        self._inputs = [
            self._make_inputs(size, min(size, max_num_seqs), state) for size in mixed_sizes(max_num_batched_tokens)
        ]
        self.sizes = [inputs.input_ids.shape[0] for inputs in self._inputs]

    def _make_inputs(self, size: int, decodes: int, state: RequestState) -> _Inputs:
        device, rows = state.device, decodes + MAX_CHUNKS
        return _Inputs(
            torch.zeros(size, dtype=torch.int64, device=device),
            torch.zeros(size, dtype=torch.int64, device=device),
            tuple(torch.full((size,), -1, dtype=torch.int64, device=device) for _ in state.block_tables),
            torch.zeros(rows + 1, dtype=torch.int32, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
            tuple(torch.zeros(rows, table.shape[1], dtype=torch.int32, device=device) for table in state.block_tables),
            decodes,
        )

    def compilations(self) -> list[Callable[[], None]]:
        """Calls that compile the kernels of all sizes; they may run side by side."""
        return [partial(self._run_uncaptured, inputs) for inputs in (self._inputs[0], self._inputs[-1])]

    def _run_uncaptured(self, inputs: _Inputs) -> None:
        with torch.inference_mode():  # a thread has its own
            self._body(inputs)

    @torch.inference_mode()
    def capture_all(self, pool: Any, stream: torch.cuda.Stream) -> None:
        """Into the memory pool of the decode graphs: of all of them only one runs at a time."""
        for inputs in reversed(self._inputs):
            self._body(inputs)
            stream.synchronize()
            inputs.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(inputs.graph, pool=pool, stream=stream):
                inputs.hidden = self._body(inputs)

    def fits(self, batch: StepBatch) -> bool:
        """Whether a captured size holds the step."""
        chunks = batch.meta.num_seqs - batch.meta.num_decodes
        return batch.input_ids.shape[0] <= self.sizes[-1] and chunks <= MAX_CHUNKS

    def run(self, batch: StepBatch) -> torch.Tensor:
        """Hidden states [N, hidden] of which the batch's tokens are the first; valid until the next run."""
        inputs = self._inputs[bisect_left(self.sizes, batch.input_ids.shape[0])]
        self._fill(inputs, batch)
        if inputs.graph is None or inputs.hidden is None:
            return self._body(inputs)
        inputs.graph.replay()
        return inputs.hidden

    def _fill(self, inputs: _Inputs, batch: StepBatch) -> None:
        meta = batch.meta
        tokens, decodes = batch.input_ids.shape[0], meta.num_decodes
        first, end = inputs.num_decodes, inputs.num_decodes + meta.num_seqs - decodes
        inputs.input_ids[:tokens].copy_(batch.input_ids)
        inputs.positions[:tokens].copy_(batch.positions)
        for slots, new in zip(inputs.slots, meta.slot_mapping, strict=True):
            slots[tokens:].fill_(-1)
            slots[:tokens].copy_(new)
        inputs.cu_seqlens[end:].fill_(tokens)
        inputs.cu_seqlens[first : end + 1].copy_(meta.cu_seqlens_q[decodes:])
        inputs.seq_lens[decodes:].zero_()
        inputs.seq_lens[:decodes].copy_(meta.seq_lens[:decodes])
        inputs.seq_lens[first:end].copy_(meta.seq_lens[decodes:])
        for table, rows in zip(inputs.block_tables, meta.block_tables, strict=True):
            columns = rows.shape[1]
            table[:decodes, :columns].copy_(rows[:decodes])
            table[first:end, :columns].copy_(rows[decodes:])

    def _body(self, inputs: _Inputs) -> torch.Tensor:
        meta = AttentionMetadata(
            cu_seqlens_q=inputs.cu_seqlens,
            seq_lens=inputs.seq_lens,
            block_tables=inputs.block_tables,
            slot_mapping=inputs.slots,
            num_decodes=inputs.num_decodes,
            max_query_len=inputs.input_ids.shape[0],
            max_seq_len=self._max_model_len,
            padded=True,
        )
        hidden: torch.Tensor = self._model(inputs.input_ids, inputs.positions, Attention(self._kv, meta))
        return hidden
