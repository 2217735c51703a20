"""RMSNorm as a layer over `kernels.rms_norm`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from engine.layers.layer import Layer
from engine.layers.linear import Float8Rows, Linear
from kernels.rms_norm import add_rms_norm, rms_norm, rms_norm_fp8


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

    def add_for(
        self, layer: Linear, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor | Float8Rows, torch.Tensor]:
        """As `add`, or the norm of x alone, in the form that the next product takes its input in."""
        if layer.form is not None and layer.form.takes_float8_rows(x):
            rows, scales, total = rms_norm_fp8(x, residual, self.weight, self.eps, unit_offset=self.unit_offset)
            return Float8Rows(rows, scales), total
        return (self(x), x) if residual is None else self.add(x, residual)

    def weight_slots(self, path: str) -> Iterator[tuple[str, torch.Tensor]]:
        yield f"{path}.weight", self.weight.data
