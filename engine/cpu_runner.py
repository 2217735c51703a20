"""`CpuRunner`: a `ModelRunner` that says how far a step has come, layer by layer.

A step of a large model on a slow host may take minutes and a hung one takes for ever; from outside, only progress
within the step tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.attention import Attention, AttentionMetadata, KVView
from engine.batch import StepBatch
from engine.invariant import invariant_forward
from engine.model_runner import INVARIANT_TOKENS, ModelRunner


class CpuRunner(ModelRunner):
    """`on_progress` is called at every layer of a step, on the thread that runs it."""

    on_progress: Callable[[], None] | None = None

    def _forward(self, batch: StepBatch) -> torch.Tensor:
        if self.deterministic:
            return invariant_forward(self.model, self.cache.view, batch, INVARIANT_TOKENS, self._attention)
        return self.model.forward(batch.input_ids, batch.positions, self._attention(self.cache.view, batch.meta))

    def _attention(self, kv: KVView, meta: AttentionMetadata) -> Attention:
        if self.on_progress is None:
            return Attention(kv, meta)
        return _ReportingAttention(kv, meta, self.on_progress)


class _ReportingAttention(Attention):
    """What every layer of every model calls once."""

    def __init__(self, kv: KVView, meta: AttentionMetadata, on_progress: Callable[[], None]) -> None:
        super().__init__(kv, meta)
        self._on_progress = on_progress

    def __call__(
        self,
        layer_index: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self._on_progress()
        return super().__call__(layer_index, q, k, v, sinks=sinks)
