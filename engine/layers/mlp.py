"""The gated MLP: down(act(gate(x)) * up(x)) (arXiv:2002.05202)."""

from __future__ import annotations

import torch

from engine.errors import ModelLoadError
from engine.layers.few_rows import few_row_product, fits_gated_rows
from engine.layers.layer import Layer
from engine.layers.linear import Float8Rows, Linear, MergedLinear
from engine.model_config import ModelConfig
from engine.quant.fp8 import Fp8Weight
from kernels.gated_activation import gelu_mul, silu_mul

ACTIVATIONS = {"silu": silu_mul, "gelu_pytorch_tanh": gelu_mul}


class GatedMlp(Layer):
    """`packed` checkpoints hold gate and up as one gate_up_proj (Phi-3)."""

    def __init__(self, config: ModelConfig, *, packed: bool = False) -> None:
        super().__init__()
        width = config.intermediate_size
        parts = {"gate_up_proj": 2 * width} if packed else {"gate_proj": width, "up_proj": width}
        self.gate_up_proj = MergedLinear(config.hidden_size, parts, bias=config.mlp_bias)
        self.down_proj = Linear(width, config.hidden_size, bias=config.mlp_bias)
        if config.hidden_act not in ACTIVATIONS:
            raise ModelLoadError(f"activation {config.hidden_act!r} is not supported, only {', '.join(ACTIVATIONS)}")
        self.activation = ACTIVATIONS[config.hidden_act]
        self.gate = "silu" if config.hidden_act == "silu" else "gelu"

    def forward(self, x: torch.Tensor | Float8Rows) -> torch.Tensor:
        """Args: x (num_tokens, hidden). Returns: the same shape."""
        form = self.gate_up_proj.form
        if isinstance(x, torch.Tensor) and fits_gated_rows(x, self.gate_up_proj):
            gated = few_row_product(self.gate_up_proj, x, gate=self.gate)
        elif isinstance(form, Fp8Weight) and self.gate_up_proj.bias is None and form.takes_few_rows(x):
            gated = form.few_row_product(x, self.gate)
        else:
            gated = self.activation(self.gate_up_proj(x))
        out: torch.Tensor = self.down_proj(gated)
        return out
