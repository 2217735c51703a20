"""`CpuRunner`: a `ModelRunner` whose attention is the CPU's and says how far a step has come, layer by layer.

A step of a large model on a slow host may take minutes and a hung one takes for ever; from outside, only progress
within the step tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.attention import AttentionMetadata, KVView
from engine.batch import StepBatch
from engine.cpu_attention import CpuAttention
from engine.invariant import invariant_forward
from engine.model_runner import INVARIANT_TOKENS, ModelRunner


class CpuRunner(ModelRunner):
    """`on_progress` is called at every layer of a step, on the thread that runs it."""

    on_progress: Callable[[], None] | None = None

    def _forward(self, batch: StepBatch) -> torch.Tensor:
        if self.deterministic:
            return invariant_forward(self.model, self.cache.view, batch, INVARIANT_TOKENS, self._attention)
        return self.model.forward(batch.input_ids, batch.positions, self._attention(self.cache.view, batch.meta))

    def _attention(self, kv: KVView, meta: AttentionMetadata) -> CpuAttention:
        return CpuAttention(kv, meta, self.on_progress)
