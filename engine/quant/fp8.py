"""float8 (e4m3) weights, bf16 activations: one scale an output row. Half of bf16's memory and reads.

On a GPU the rows are quantized too, a scale a row, for the float8 tensor cores: few of them by the product that streams
the weight, more by cuBLAS. Elsewhere the weight is dequantised in front of each product.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.layers.linear import Float8Rows, WeightForm
from kernels.few_row_linear import MAX_ROWS, Epilogue, few_row_linear
from kernels.fp8_quantize import fp8_quantize


class Fp8Weight(WeightForm):
    """weight ~ quantized (out, in) float8_e4m3fn * scales float32 (out,)."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        quantized, scales = fp8_quantize(weight)
        self.quantized: torch.Tensor
        self.scales: torch.Tensor
        self.register_buffer("quantized", quantized)
        self.register_buffer("scales", scales.flatten())
        self._dtype = weight.dtype
        # cuBLAS wants sides that are multiples of 16.
        self._on_tensor_cores = weight.is_cuda and not (weight.shape[0] % 16 or weight.shape[1] % 16)

    def takes_float8_rows(self, x: torch.Tensor) -> bool:
        return self._on_tensor_cores and x.element_size() == 2

    def takes_few_rows(self, x: torch.Tensor | Float8Rows) -> bool:
        """Whether the product that streams the weight is the faster way."""
        return 0 < x.shape[0] <= MAX_ROWS and (isinstance(x, Float8Rows) or self.takes_float8_rows(x))

    def few_row_product(self, x: torch.Tensor | Float8Rows, gate: str | None = None) -> torch.Tensor:
        """gate(x W^T) for few rows; gate "silu" or "gelu" over the two halves of the weight, or none."""
        rows, row_scales = x if isinstance(x, Float8Rows) else fp8_quantize(x)
        extra = Epilogue(scales=self.scales, row_scales=row_scales, gate=gate)
        return few_row_linear(rows, self.quantized, extra, out_dtype=self._dtype)

    def forward(self, x: torch.Tensor | Float8Rows) -> torch.Tensor:
        if self.takes_few_rows(x):
            return self.few_row_product(x)
        if isinstance(x, torch.Tensor) and not self.takes_float8_rows(x):
            return F.linear(x, self.dequantized().to(x.dtype))
        rows, row_scales = x if isinstance(x, Float8Rows) else fp8_quantize(x)
        return torch._scaled_mm(
            rows, self.quantized.T, scale_a=row_scales, scale_b=self.scales[None], out_dtype=self._dtype
        )

    def dequantized(self) -> torch.Tensor:
        """The weight (out, in) that the product is equal to multiplying by, in the weight's first dtype."""
        return (self.quantized.float() * self.scales[:, None]).to(self._dtype)


def quantize(weight: torch.Tensor) -> WeightForm:
    """Args: weight (out, in). Returns: its float8 form."""
    return Fp8Weight(weight)
