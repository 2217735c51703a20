"""MXFP4 as gpt-oss's checkpoints hold their experts: 4-bit floats in blocks of 32 with a power of two each
(OCP Microscaling Formats, v1.0). Dequantised while loading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from engine.errors import ModelLoadError

BLOCKS, SCALES = "_blocks", "_scales"
_EXPONENT_BIAS = 127
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def dequantize_mxfp4(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Args: blocks uint8 (experts, out, groups, 16), two values a byte, the low half first; scales uint8
    (experts, out, groups). Returns: (experts, groups * 32, out), the orientation of gpt-oss's plain checkpoints."""
    table = torch.tensor(_VALUES, dtype=dtype, device=blocks.device)
    pairs = torch.stack((table[(blocks & 15).int()], table[(blocks >> 4).int()]), dim=-1)
    values = torch.ldexp(pairs.flatten(-2), (scales.int() - _EXPONENT_BIAS)[..., None])
    return values.flatten(-2).transpose(1, 2)


def unpack_mxfp4(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Passes tensors on; `x_blocks` and `x_scales` become `x` once both have come, in whatever order.

    Raises: ModelLoadError naming a part whose other half never comes.
    """
    halves: dict[str, tuple[str, torch.Tensor]] = {}
    for name, tensor in tensors:
        if not name.endswith((BLOCKS, SCALES)):
            yield name, tensor
            continue
        whole = name.removesuffix(BLOCKS).removesuffix(SCALES)
        if whole not in halves:
            halves[whole] = (name, tensor)
            continue
        other_name, other = halves.pop(whole)
        blocks, scales = (tensor, other) if name.endswith(BLOCKS) else (other, tensor)
        if other_name == name or blocks.shape[:-1] != scales.shape or blocks.dtype is not torch.uint8:
            raise ModelLoadError(f"tensors {whole}_blocks {list(blocks.shape)} and _scales {list(scales.shape)} differ")
        yield whole, dequantize_mxfp4(blocks, scales)
    for name, _ in halves.values():
        raise ModelLoadError(f"tensor {name!r} stands alone: its other half is missing")
