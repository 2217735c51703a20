"""Weights packed for the CPU's bf16 products (oneDNN), where `F.linear` packs the weight anew in every call.

Measured with bf16 on one Zen 5 core (AVX512-BF16), 3072 x 576: 1 row 0.37 -> 0.12 ms, 16 rows 0.56 -> 0.22 ms,
512 rows 5.7 -> 4.3 ms. fp32 stays with `F.linear`: it is the reference path.

Weights that came from a 4-bit file keep its codes beside their bf16 form: for few rows the time goes into reading the
weight, and codes are a third of the bytes (a group's scale and zero counted). The two forms differ by bf16's rounding.
"""

from __future__ import annotations

import torch
from torch import nn

from engine.layers.embedding import OutputHead
from engine.layers.linear import Linear, WeightForm
from engine.quant.int4 import LOSSLESS, Int4Weight, keeps_four_bits

# oneDNN chooses the layout by the rows it is told to expect; the one for 16 was best or near it from 1 to 512 rows.
_EXPECTED_ROWS = 16
# Up to here codes are the faster form: 3072 x 576 on a Sapphire Rapids core, us by rows, codes / bf16:
# 1: 166 / 486, 2: 225 / 691, 4: 350 / 672, 8: 593 / 526, 512: 37,452 / 4,599.
FEW_ROWS = 4


class CpuPackedWeight(WeightForm):
    """weight (out, in) bfloat16 in oneDNN's blocked layout."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _EXPECTED_ROWS)
        self._linear = torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._linear(x, self._packed, None, "none", [], "")
        return out


class CpuFourBitWeight(WeightForm):
    """weight (out, in) bfloat16 of which 4 bits lose nothing: its codes for few rows, its packed form for more."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.few = Int4Weight(weight, sizes=(32,))
        self.many = CpuPackedWeight(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.few(x) if x.shape[0] <= FEW_ROWS else self.many(x)
        return out


def can_pack() -> bool:
    """Whether this CPU and this build of torch multiply packed bf16 weights."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_for_cpu(model: nn.Module) -> None:
    """Packs every plain bf16 weight that lies on the CPU, those of a 4-bit file in both forms. A tied head keeps the
    embedding's matrix beside its own."""
    if not can_pack():
        return
    for module in model.modules():
        if not isinstance(module, Linear | OutputHead) or module.form is not None:
            continue
        weight = module.weight
        if weight.device.type == "cpu" and weight.dtype is torch.bfloat16:
            module.take_form(best_form(weight.data) if isinstance(module, Linear) else CpuPackedWeight(weight.data))


def best_form(weight: torch.Tensor) -> WeightForm:
    """Both forms where 4 bits lose nothing of any row, else the packed one. Args: weight (out, in) bfloat16."""
    if weight.shape[0] % 16 == 0 and keeps_four_bits(weight):
        form = CpuFourBitWeight(weight)
        if (
            form.few.loss < LOSSLESS
        ):  # files mix formats: what the first rows are, the rest of a merged weight may not be
            return form
    return CpuPackedWeight(weight)
