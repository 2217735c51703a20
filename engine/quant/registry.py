"""Formats that weights can be quantized to while a model loads. A new format is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from engine.errors import ModelLoadError
from engine.layers.linear import Linear, WeightForm
from engine.quant import fp8, int4, int8

FORMATS: dict[str, Callable[[torch.Tensor], WeightForm]] = {
    "int8": int8.quantize,
    "int4": int4.quantize,
    "fp8": fp8.quantize,
}


def quantize_model(model: nn.Module, name: str) -> None:
    """Turns every linear layer's weight into the format, one at a time; embedding, head and norms stay as they are.

    Raises: ModelLoadError for an unknown format, or a model whose weights mostly lie elsewhere (experts).
    """
    if name not in FORMATS:
        raise ModelLoadError(f"quantization {name!r} is not supported, only {', '.join(FORMATS)}")
    if any(parameter.dim() == 3 for parameter in model.parameters()):
        raise ModelLoadError(f"quantization {name!r} does not reach the weights of a mixture of experts")
    for module in model.modules():
        if isinstance(module, Linear) and module.form is None:
            module.take_form(FORMATS[name](module.weight.data))
