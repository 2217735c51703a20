"""4-bit weights in groups along the input: 16 levels between each group's least and greatest value.

A quarter of bf16's memory and reads and a little for the groups. SmolLM2's 3072 x 576 with one row of x on one Zen 5
core: 142 us packed bf16, 73 us int4.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.errors import ModelLoadError
from engine.layers.linear import WeightForm

GROUP_SIZES = (64, 32)
_LEVELS = 15
_MIDDLE = 8  # torch's kernel computes (q - 8) * scale + zero


class Int4Weight(WeightForm):
    """weight ~ (code - 8) * scale + zero, codes of 4 bits; scale and zero (in / group, out).

    Codes are kept once: in torch's CPU layout where its product takes this shape and dtype, else two to a byte.
    `native` False keeps to the reference.
    """

    def __init__(self, weight: torch.Tensor, *, native: bool = True) -> None:
        super().__init__()
        out_features, in_features = weight.shape
        self.group = next((size for size in GROUP_SIZES if in_features % size == 0), 0)
        if not self.group:
            raise ModelLoadError(f"int4 needs an input width that is a multiple of 32, a layer's is {in_features}")
        codes, scales_and_zeros = _encode(weight, self.group)
        self.codes: torch.Tensor
        self.scales_and_zeros: torch.Tensor
        self.register_buffer("scales_and_zeros", scales_and_zeros)
        on_cpu = weight.device.type == "cpu" and weight.dtype is torch.bfloat16 and out_features % 16 == 0
        self.native = native and on_cpu
        if self.native:
            self.register_buffer("codes", torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1))
        else:
            self.register_buffer("codes", codes[:, ::2] | (codes[:, 1::2] << 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.native:
            return F.linear(x, self.dequantized())
        product = torch.ops.aten._weight_int4pack_mm_for_cpu
        out: torch.Tensor = product(x, self.codes, self.group, self.scales_and_zeros)
        return out

    def dequantized(self) -> torch.Tensor:
        """The weight (out, in) that the reference multiplies by. Not to be called on the native form."""
        assert not self.native, "torch's layout of the codes is its own"
        codes = torch.stack((self.codes & 15, self.codes >> 4), dim=-1).view(self.codes.shape[0], -1)
        scale, zero = (part.T[:, :, None] for part in self.scales_and_zeros.unbind(-1))
        groups = codes.view(codes.shape[0], -1, self.group).to(scale.dtype) - _MIDDLE
        return (groups * scale + zero).view(codes.shape)


def _encode(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes uint8 (out, in), scales and zeros (in / group, out, 2) in the weight's dtype)."""
    groups = weight.float().view(weight.shape[0], -1, group)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    # Rounded to the stored dtype first, so that the codes are the best for the scales that will be used.
    scale = ((high - low).clamp(min=1e-6) / _LEVELS).to(weight.dtype).float()
    zero = (low + scale * _MIDDLE).to(weight.dtype).float()
    codes = ((groups - zero) / scale + _MIDDLE).round_().clamp_(0, _LEVELS).to(torch.uint8)
    pairs = torch.stack((scale.squeeze(-1).T, zero.squeeze(-1).T), dim=-1)
    return codes.view(weight.shape), pairs.to(weight.dtype).contiguous()


def quantize(weight: torch.Tensor) -> WeightForm:
    """Args: weight (out, in), in a multiple of 32. Returns: its 4-bit form. Raises: ModelLoadError."""
    return Int4Weight(weight)
