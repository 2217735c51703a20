"""`DecodeGraphs`: whole decode steps captured once a padded batch size and replayed, from gathering ids to sampling.

A replay is one launch for the host, where an eager step of 32 layers is some 250. All graphs share one memory pool:
only one runs at a time. Some sizes are captured a second time for steps whose decodes share prefixes. On a CPU (tests)
the same body runs uncaptured.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from engine.attention import Attention, AttentionMetadata, KVView
from engine.cuda_sampler import draw
from engine.cuda_state import CudaRequestState
from engine.models.base import CausalLM
from engine.shared_prefix import MAX_GROUPS, SharedDecodes
from kernels.decode_inputs import DecodeInputs, append_tokens, gather_decode_inputs
from kernels.paged_attention import SharedPrefixes


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Padded batch sizes: every one up to 4, then steps that waste at most an eighth of a large batch's rows."""
    sizes = [1, 2, 3, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_num_seqs + 32, 32)]
    kept = [size for size in sizes if size < max_num_seqs]
    return [*kept, max_num_seqs]


def shared_sizes(max_num_seqs: int) -> list[int]:
    """Padded sizes of steps with shared prefixes: with fewer sequences there is little to gain."""
    return [*range(32, max_num_seqs, 32), max_num_seqs]


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
        only_group = kv.groups[0] if len(kv.groups) == 1 else None
        can_share = only_group is not None and only_group.key.window is None
        self.shared_sizes = shared_sizes(max_num_seqs) if can_share else []
        self._captured: dict[tuple[int, bool], _Captured] = {}
        self._device = state.device
        self._where = torch.zeros(2 * max_num_seqs, dtype=torch.int64, device=self._device)
        self._inputs = self._make_inputs(max_num_seqs)
        self._cumulative = torch.arange(max_num_seqs + 1, dtype=torch.int32, device=self._device)
        # [bounds of the groups | their lengths | each decode's share of one]
        self._prefixes = torch.zeros(2 * MAX_GROUPS + 1 + max_num_seqs, dtype=torch.int32, device=self._device)
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

    def compilations(self) -> list[Callable[[], None]]:
        """Calls that compile the kernels of all size classes; they may run side by side."""
        self._where.fill_(-1)
        most = self.sizes[-1]
        classes = sorted({min(size, most) for size in (1, 2, 4, 8, 16, 32, 64, 128, most)})
        kinds = [(size, False) for size in classes]
        kinds += [(size, True) for size in sorted({*self.shared_sizes[:1], *self.shared_sizes[-1:]})]
        return [partial(self._run_uncaptured, size, shared) for size, shared in kinds]

    @torch.inference_mode()
    def capture_all(self, pool: Any, stream: torch.cuda.Stream) -> None:
        """Captures every size, the largest first so that the shared pool is made once."""
        self._where.fill_(-1)  # rows of -1 are padding: a warm-up touches no page and no token
        kinds = [(size, False) for size in self.sizes] + [(size, True) for size in self.shared_sizes]
        for size, shared in sorted(kinds, reverse=True):
            self._body(size, shared)  # compiles what is still new to this size, and lets cuBLAS make its workspaces
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                logits, token_ids = self._body(size, shared)
            self._captured[size, shared] = _Captured(graph, logits, token_ids)
            self.num_captures += 1

    def _run_uncaptured(self, size: int, shared: bool) -> None:
        with torch.inference_mode():  # a thread has its own
            self._body(size, shared)

    def run(
        self, rows: list[int], starts: list[int], shared: SharedDecodes | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One decode step of the sequences at `rows`, whose tokens at `starts` are next; with `shared`, in its order.

        Returns: logits [n, vocab] and token ids int64 [n], valid until the next run; the ids stand in the token table.
        """
        count = len(rows)
        sizes = self.sizes if shared is None else self.shared_sizes
        captured = self._captured.get((sizes[bisect_left(sizes, count)], shared is not None))
        if shared is not None:
            self._put_prefixes(shared)
        if captured is None:  # on a CPU: nothing is captured, so nothing needs padding
            self._state.staging.to_device(rows + starts, self._where)
            logits, token_ids = self._body(count, shared is not None)
            return logits, token_ids
        padding = captured.token_ids.shape[0] - count
        self._state.staging.to_device([*rows, *([-1] * padding), *starts, *([0] * padding)], self._where)
        captured.graph.replay()
        return captured.logits[:count], captured.token_ids[:count]

    def _put_prefixes(self, shared: SharedDecodes) -> None:
        """Groups that are not there are empty ones at the end."""
        missing = MAX_GROUPS - len(shared.lens)
        starts = shared.starts
        values = [*shared.bounds, *([shared.bounds[-1]] * missing), *shared.lens, *([0] * missing), *starts]
        self._prefixes[: len(values)] = self._state.staging.to_device(values).to(torch.int32)
        self._prefixes[len(values) :].zero_()

    def _body(self, size: int, shared: bool) -> tuple[torch.Tensor, torch.Tensor]:
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
            shared=self._shared_prefixes(size) if shared else None,
        )
        hidden = self._model(inputs.token_ids, inputs.positions, Attention(self._kv, meta))
        logits = self._model.compute_logits(hidden)
        token_ids = draw(state.params, logits, rows.clamp(min=0), starts + 1)
        append_tokens(token_ids, rows, starts, state.tokens)
        return logits, token_ids

    def _shared_prefixes(self, size: int) -> SharedPrefixes:
        groups, lens, starts = self._prefixes.split([MAX_GROUPS + 1, MAX_GROUPS, self._where.shape[0] // 2])
        return SharedPrefixes(groups, lens, starts[:size])
