"""Rows of activations in float8 with a scale each, for products whose weights are in float8 too."""

from __future__ import annotations

import torch

from kernels._triton import dependent_launch, tl, triton, uses_triton
from kernels.kv_write import FP8_MAX

MAX_WIDTH = 65536  # one program holds a row in registers


def fp8_quantize_ref(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x32 = x.float()
    scales = x32.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / FP8_MAX
    return (x32 / scales).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scales


@triton.jit
def _fp8_quantize_kernel(
    x_ptr, out_ptr, scales_ptr, row_stride, width, LIMIT: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < width
    x = tl.load(x_ptr + row * row_stride + cols, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-12) / LIMIT
    y = tl.clamp(x / scale, -LIMIT, LIMIT)
    tl.store(out_ptr + row * width + cols, y.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(scales_ptr + row, scale)


def fp8_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row over its largest magnitude.

    Args: x (num_rows, width), last stride 1. Returns: float8_e4m3fn (num_rows, width) and float32 scales
    (num_rows, 1), whose product is x within e4m3's half step. Raises: ValueError on another rank or a width over 65536.
    """
    if x.dim() != 2 or x.stride(1) != 1 or x.shape[1] > MAX_WIDTH:
        raise ValueError(f"fp8_quantize: x {tuple(x.shape)} with strides {x.stride()}; width at most {MAX_WIDTH}")
    if not uses_triton(x):
        return fp8_quantize_ref(x)
    out = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((x.shape[0], 1), dtype=torch.float32, device=x.device)
    if x.shape[0]:
        block = triton.next_power_of_2(x.shape[1])
        _fp8_quantize_kernel[(x.shape[0],)](
            x,
            out,
            scales,
            x.stride(0),
            x.shape[1],
            LIMIT=FP8_MAX,
            BLOCK=block,
            num_warps=min(16, max(1, block // 512)),
            **dependent_launch(x),
        )
    return out, scales
