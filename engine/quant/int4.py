"""4-bit weights in groups along the input: 16 levels between each group's least and greatest value.

A quarter of bf16's memory and reads and a little for the groups. SmolLM2's 3072 x 576 with one row of x on one Zen 5
core: 142 us packed bf16, 73 us int4; on a Sapphire Rapids core beside other work 486 and 166 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from engine.errors import ModelLoadError
from engine.layers.linear import WeightForm

GROUP_SIZES = (64, 32)
_LEVELS = 15
# Root mean square of what 4 bits lose, as a share of the weights'. Weights that had 16 levels in each group of 32
# before they were rounded to bf16 (GGUF's Q4_1) come back at 0.003, others lose 0.06 to 0.1.
LOSSLESS = 0.01
_BLOCK = 28_000  # weights encoded at a time: 112 kB in float32, which malloc keeps where 128 kB go back to the system
_MIDDLE = 8  # torch's kernel computes (q - 8) * scale + zero


class Int4Weight(WeightForm):
    """weight ~ (code - 8) * scale + zero, codes of 4 bits; scale and zero (in / group, out).

    Codes are kept once: in torch's CPU layout where its product takes this shape and dtype, else two to a byte.
    Groups are of the first of `sizes`, or of the last where those lose less than half as much. `native` False keeps to
    the reference. loss: as LOSSLESS says.
    """

    def __init__(self, weight: torch.Tensor, *, native: bool = True, sizes: Sequence[int] = GROUP_SIZES) -> None:
        super().__init__()
        out_features, in_features = weight.shape
        sizes = [size for size in sizes if in_features % size == 0]
        if not sizes:
            raise ModelLoadError(f"int4 needs an input width that is a multiple of 32, a layer's is {in_features}")
        found = [_encode(weight, size) for size in sizes]
        best = len(found) - 1 if found[-1].loss < found[0].loss / 2 else 0
        self.group, self.loss = sizes[best], found[best].loss
        codes, scales_and_zeros = found[best].codes, found[best].scales_and_zeros
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


def keeps_four_bits(weight: torch.Tensor) -> bool:
    """Whether 4 bits lose nothing of a weight (out, in) but bf16's rounding, judged by its first rows."""
    size = GROUP_SIZES[-1]
    return weight.shape[1] % size == 0 and _encode(weight[:64], size).loss < LOSSLESS


class _Encoded(NamedTuple):
    """codes uint8 (out, in); scales and zeros (in / group, out, 2) in the weight's dtype; loss as LOSSLESS says."""

    codes: torch.Tensor
    scales_and_zeros: torch.Tensor
    loss: float


def _encode(weight: torch.Tensor, group: int) -> _Encoded:
    """Some rows at a time: what is worked on stays in a core's cache, and is not fetched from the system each time."""
    rows, width = weight.shape
    parts = [
        _encode_groups(part.float().view(-1, group).T.contiguous(), weight.dtype)
        for part in weight.split(max(1, _BLOCK // width))
    ]
    codes, scales, zeros, errors, squares = zip(*parts, strict=True)
    loss = (sum(errors) / max(sum(squares), 1e-12)) ** 0.5
    pairs = torch.stack((torch.cat(scales).view(rows, -1).T, torch.cat(zeros).view(rows, -1).T), dim=-1)
    return _Encoded(torch.cat(codes).view(weight.shape), pairs.to(weight.dtype).contiguous(), loss)


def _encode_groups(
    groups: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, float]:
    """Args: groups float32 (group, n): a group a column, as sums of 32 numbers in a row are ten times slower.
    Returns: codes uint8 (n, group); scales and zeros (n,), float32 of `dtype`'s values; the sums of squares of errors
    and values."""
    low = groups.amin(0)
    scale = (groups.amax(0) - low).clamp_(min=1e-6) / _LEVELS
    codes = (groups - low).div_(scale).round_()
    # The line through a group's values over its codes is nearer to them than the one through the two ends.
    mean, middle = groups.mean(0), codes.mean(0)
    codes -= middle
    spread, slope = codes.square().sum(0), (codes * groups).sum(0)
    # Rounded to the stored dtype first, so that the codes are the best for the scales that will be used.
    scale = torch.where(spread > 0, slope / spread, scale).to(dtype).float()
    zero = (mean + scale * (_MIDDLE - middle)).to(dtype).float()
    codes = (groups - zero).div_(scale).add_(_MIDDLE).round_().clamp_(0, _LEVELS)
    error = (codes - _MIDDLE).mul_(scale).add_(zero).sub_(groups)
    squares = [float(torch.linalg.vecdot(values.view(-1), values.view(-1))) for values in (error, groups)]
    return codes.to(torch.uint8).T.contiguous(), scale, zero, squares[0], squares[1]


def quantize(weight: torch.Tensor) -> WeightForm:
    """Args: weight (out, in), in a multiple of 32. Returns: its 4-bit form. Raises: ModelLoadError."""
    return Int4Weight(weight)
