"""A decoder layer's products in their few-row form: norms, gates and residuals ride along with the one read."""

from __future__ import annotations

import torch

from engine.layers.linear import Linear
from engine.layers.norm import RMSNorm
from kernels.few_row_linear import Epilogue, few_row_linear, takes_few_rows


def fits_few_rows(x: torch.Tensor, *layers: torch.nn.Module) -> bool:
    """Whether products of x (num_tokens, in) with all these layers may take the form: few rows, plain weights, a
    GPU."""
    return all(isinstance(layer, Linear) and layer.form is None and takes_few_rows(x, layer.weight) for layer in layers)


def fits_gated_rows(x: torch.Tensor, layer: Linear) -> bool:
    """Whether one pass over gate and up is the faster way, which it stays for more rows than plain products."""
    return layer.form is None and takes_few_rows(x, layer.weight, gated=True)


def few_row_product(
    layer: Linear,
    x: torch.Tensor,
    *,
    norm: RMSNorm | None = None,
    gate: str | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """residual + gate(layer(norm(x))), of which each part but the product is optional; gate "silu" or "gelu"."""
    extra = Epilogue(
        norm_weight=None if norm is None else norm.weight,
        norm_eps=0.0 if norm is None else norm.eps,
        unit_offset=norm is not None and norm.unit_offset,
        bias=layer.bias,
        gate=gate,
        residual=residual,
    )
    return few_row_linear(x, layer.weight, extra)
