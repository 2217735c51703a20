"""`DecodeGraphs`: whole decode steps captured once a padded batch size and replayed, from gathering ids to sampling.

A replay is one launch for the host, where an eager step of 32 layers is some 250. All graphs share one memory pool:
only one runs at a time. On a CPU (tests) the same body runs uncaptured.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from engine.attention import Attention, AttentionMetadata, KVView
from engine.cuda_sampler import draw
from engine.cuda_state import CudaRequestState
from engine.models.base import CausalLM
from kernels.decode_inputs import DecodeInputs, append_tokens, gather_decode_inputs


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Padded batch sizes: every one up to 4, then steps that waste at most an eighth of a large batch's rows."""
    sizes = [1, 2, 3, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_num_seqs + 32, 32)]
    kept = [size for size in sizes if size < max_num_seqs]
    return [*kept, max_num_seqs]


@dataclass(frozen=True)
class _Captured:
    """A graph with the addresses it reads and writes."""

    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor
    token_ids: torch.Tensor


class DecodeGraphs:
    """Args: max_model_len bounds the contexts a captured launch must allow for."""

    def __init__(
        self, model: CausalLM, kv: KVView, state: CudaRequestState, *, max_num_seqs: int, max_model_len: int
    ) -> None:
        self._model = model
        self._kv = kv
        self._state = state
        self._max_model_len = max_model_len
        self.sizes = graph_sizes(max_num_seqs)
        self._captured: dict[int, _Captured] = {}
        self._device = state.device
        self._where = torch.zeros(2 * max_num_seqs, dtype=torch.int64, device=self._device)
        self._inputs = self._make_inputs(max_num_seqs)
        self._cumulative = torch.arange(max_num_seqs + 1, dtype=torch.int32, device=self._device)
        self.num_captures = 0

    def _make_inputs(self, size: int) -> DecodeInputs:
        def zeros(dtype: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.zeros(size, *shape, dtype=dtype, device=self._device)

        tables = self._state.block_tables
        return DecodeInputs(
            zeros(torch.int64),
            zeros(torch.int64),
            zeros(torch.int32),
            tuple(zeros(torch.int64) for _ in tables),
            tuple(zeros(torch.int32, table.shape[1]) for table in tables),
        )

    @torch.inference_mode()
    def capture_all(self) -> float:
        """Captures every size, the largest first so that the shared pool is made once. Returns seconds."""
        started = time.perf_counter()
        if self._device.type != "cuda":
            return 0.0
        # Rows of -1 are padding: a warm-up touches no page and no token.
        self._where.fill_(-1)
        self._compile_ahead()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        pool = torch.cuda.graph_pool_handle()
        with torch.cuda.stream(stream):
            for size in reversed(self.sizes):
                self._body(size)  # compiles what is still new to this size, and lets cuBLAS make its workspaces
                stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=stream):
                    logits, token_ids = self._body(size)
                self._captured[size] = _Captured(graph, logits, token_ids)
                self.num_captures += 1
        torch.cuda.current_stream().wait_stream(stream)
        return time.perf_counter() - started

    def _compile_ahead(self) -> None:
        """Compiles the kernels of all size classes side by side: much of a compilation is a process of its own."""
        most = self.sizes[-1]
        classes = sorted({min(size, most) for size in (1, 2, 4, 8, 16, 32, 64, 128, most)})
        with ThreadPoolExecutor(len(classes)) as threads:
            list(threads.map(self._run_uncaptured, classes))
        torch.cuda.synchronize()

    def _run_uncaptured(self, size: int) -> None:
        with torch.inference_mode():  # a thread has its own
            self._body(size)

    def run(self, rows: list[int], starts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """One decode step of the sequences at `rows`, whose tokens at `starts` are next.

        Returns: logits [n, vocab] and token ids int64 [n], valid until the next run; the ids stand in the token table.
        """
        count = len(rows)
        captured = self._captured.get(self.sizes[bisect_left(self.sizes, count)])
        if captured is None:  # on a CPU: nothing is captured, so nothing needs padding
            self._state.staging.to_device(rows + starts, self._where)
            logits, token_ids = self._body(count)
            return logits, token_ids
        padding = captured.token_ids.shape[0] - count
        self._state.staging.to_device([*rows, *([-1] * padding), *starts, *([0] * padding)], self._where)
        captured.graph.replay()
        return captured.logits[:count], captured.token_ids[:count]

    def _body(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows, starts = self._where[:size], self._where[size : 2 * size]
        inputs = self._inputs
        inputs = DecodeInputs(
            inputs.token_ids[:size],
            inputs.positions[:size],
            inputs.seq_lens[:size],
            tuple(slots[:size] for slots in inputs.slots),
            tuple(table[:size] for table in inputs.block_tables),
        )
        state = self._state
        gather_decode_inputs(rows, starts, state.tokens, state.block_tables, state.block_size, inputs)
        meta = AttentionMetadata(
            cu_seqlens_q=self._cumulative[: size + 1],
            seq_lens=inputs.seq_lens,
            block_tables=inputs.block_tables,
            slot_mapping=inputs.slots,
            num_decodes=size,
            max_query_len=1,
            max_seq_len=self._max_model_len,
        )
        hidden = self._model(inputs.token_ids, inputs.positions, Attention(self._kv, meta))
        logits = self._model.compute_logits(hidden)
        token_ids = draw(state.params, logits, rows.clamp(min=0), starts + 1)
        append_tokens(token_ids, rows, starts, state.tokens)
        return logits, token_ids
