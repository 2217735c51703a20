"""Linear layers. Products that share an input are one product: `MergedLinear` holds q, k and v (or gate and up) in one
weight, one read of the input and one call instead of two or three.

After loading, a layer's plain weight may give way to another form of it (`WeightForm`): packed for the CPU's products,
or quantized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import nn

from engine.layers.layer import Layer
from kernels.few_row_linear import linear


class Float8Rows(NamedTuple):
    """Rows of activations, rows float8_e4m3fn (num_tokens, width) * scales float32 (num_tokens, 1)."""

    rows: torch.Tensor
    scales: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        return self.rows.shape


class WeightForm(Layer):
    """A weight (out, in) held in another form; calling it multiplies."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Args: x (num_tokens, in). Returns: x W^T (num_tokens, out), in x's dtype."""
        raise NotImplementedError

    def takes_float8_rows(self, x: torch.Tensor) -> bool:  # noqa: ARG002  # forms of float8 look at it
        """Whether it would make x float8 itself, so that what makes x may as well."""
        return False


class Linear(Layer):
    """y = x W^T + b; weight (out, in), bias (out,)."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None
        self.form: WeightForm | None = None

    def forward(self, x: torch.Tensor | Float8Rows) -> torch.Tensor:
        """Args: x (num_tokens, in), as float8 where the layer's form takes it so. Returns: (num_tokens, out)."""
        form = self.form
        if form is None:
            return linear(x, self.weight, self.bias)  # type: ignore[arg-type]
        out: torch.Tensor = form(x)
        return out if self.bias is None else out + self.bias

    def take_form(self, form: WeightForm) -> None:
        """Uses `form` from now on; the plain weight is let go."""
        self.form = form
        self.weight = nn.Parameter(self.weight.new_empty(0), requires_grad=False)

    def weight_slots(self, path: str) -> Iterator[tuple[str, torch.Tensor]]:
        """(checkpoint name, view that takes it) of every tensor this layer reads."""
        yield f"{path}.weight", self.weight.data
        if self.bias is not None:
            yield f"{path}.bias", self.bias.data


class MergedLinear(Linear):
    """Several linear layers of one input, their rows stacked in the order of `parts` (checkpoint name -> rows)."""

    def __init__(self, in_features: int, parts: Mapping[str, int], *, bias: bool = False) -> None:
        super().__init__(in_features, sum(parts.values()), bias=bias)
        self.parts = dict(parts)

    def weight_slots(self, path: str) -> Iterator[tuple[str, torch.Tensor]]:
        parent = path.rpartition(".")[0]
        start = 0
        for name, rows in self.parts.items():
            yield f"{parent}.{name}.weight", self.weight.data[start : start + rows]
            if self.bias is not None:
                yield f"{parent}.{name}.bias", self.bias.data[start : start + rows]
            start += rows
