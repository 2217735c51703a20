"""RMSNorm as a layer over `kernels.rms_norm`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from engine.layers.layer import Layer
from kernels.rms_norm import add_rms_norm, rms_norm


class RMSNorm(Layer):
    """`unit_offset`: the checkpoint keeps w where the norm multiplies by 1 + w (Gemma)."""

    def __init__(self, size: int, eps: float, *, unit_offset: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps
        self.unit_offset = unit_offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Args: x (..., size). Returns: the same shape and dtype."""
        return rms_norm(x, self.weight, self.eps, unit_offset=self.unit_offset)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(x + residual), x + residual), both (num_tokens, size)."""
        return add_rms_norm(x, residual, self.weight, self.eps, unit_offset=self.unit_offset)

    def weight_slots(self, path: str) -> Iterator[tuple[str, torch.Tensor]]:
        yield f"{path}.weight", self.weight.data
