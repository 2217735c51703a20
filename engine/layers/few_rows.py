"""A decoder layer's products in their few-row form: norms, gates and residuals ride along with the one read."""

from __future__ import annotations

import torch

from engine.layers.linear import Linear
from engine.layers.norm import RMSNorm
from engine.quant.fp8 import Fp8Weight
from kernels.few_row_linear import Epilogue, few_row_linear, takes_few_rows


def fits_few_rows(x: torch.Tensor, *layers: torch.nn.Module) -> bool:
    """Whether products of x (num_tokens, in) with all these layers may take the form: few rows of plain or float8
    weights on a GPU."""
    return all(
        isinstance(layer, Linear) and (held := _held(layer)) is not None and takes_few_rows(x, held[0])
        for layer in layers
    )


def fits_gated_rows(x: torch.Tensor, layer: Linear) -> bool:
    """Whether one pass over gate and up is the faster way, which it stays for more rows than plain products."""
    held = _held(layer)
    return held is not None and takes_few_rows(x, held[0], gated=True)


def _held(layer: Linear) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """The layer's weight, and its scales if it is a float8 one; None for another form."""
    if layer.form is None:
        return layer.weight, None
    return (layer.form.quantized, layer.form.scales) if isinstance(layer.form, Fp8Weight) else None


def few_row_product(
    layer: Linear,
    x: torch.Tensor,
    *,
    norm: RMSNorm | None = None,
    gate: str | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """residual + gate(layer(norm(x))), of which each part but the product is optional; gate "silu" or "gelu"."""
    held = _held(layer)
    assert held is not None, "fits_few_rows was asked"
    extra = Epilogue(
        norm_weight=None if norm is None else norm.weight,
        norm_eps=0.0 if norm is None else norm.eps,
        unit_offset=norm is not None and norm.unit_offset,
        scales=held[1],
        bias=layer.bias,
        gate=gate,
        residual=residual,
    )
    return few_row_linear(x, held[0], extra)
