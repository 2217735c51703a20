"""RMSNorm: y = x / sqrt(mean(x**2) + eps) * weight over the hidden dimension (arXiv:1910.07467).

`add_rms_norm` first adds x to the residual stream: one pass over memory in place of two. `rms_norm_fp8` does both, or
the norm alone, and leaves float8 rows with their scales for a product whose weight is in float8.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels._triton import dependent_launch, tl, triton, uses_triton
from kernels.fp8_quantize import fp8_quantize_ref
from kernels.kv_write import FP8_MAX

MAX_HIDDEN = 65536  # one program holds a row in registers


def rms_norm_ref(
    x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, *, unit_offset: bool = False
) -> torch.Tensor:
    """Llama rounds before it multiplies by the weight; Gemma (`unit_offset`) multiplies by 1 + weight in float32."""
    x32 = x.float()
    normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    if unit_offset:
        return (normed * (1.0 + weight.float())).to(x.dtype)
    return normed.to(x.dtype) * weight


def _rms_norm_cpu(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Through LayerNorm of (x, -x), whose mean is 0 and whose variance is mean(x**2): one pass in place of five.

    The values are the reference's; 576 wide, bf16, one Zen 5 core: 1 row 10.4 -> 5.5 us, 16 rows 13.9 -> 11.8 us.
    """
    hidden = x.shape[-1]
    both = F.layer_norm(torch.cat((x, -x), dim=-1), (2 * hidden,), None, None, eps)
    return both[..., :hidden] * weight


def add_rms_norm_ref(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, *, unit_offset: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return rms_norm_ref(total, weight, eps, unit_offset=unit_offset), total


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    total_ptr,
    scales_ptr,
    x_row_stride,
    residual_row_stride,
    hidden,
    eps,
    ADD: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    FP8_LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """FP8_LIMIT > 0: out is float8 and each row's scale goes to `scales_ptr`."""
    row = tl.program_id(0).to(tl.int64)  # row * stride passes 2**31 beyond 524k tokens x 4096
    cols = tl.arange(0, BLOCK)
    mask = cols < hidden
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    x = tl.load(x_ptr + row * x_row_stride + cols, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + row * residual_row_stride + cols, mask=mask, other=0.0).to(tl.float32)
        # The reference normalises the sum as it is stored, so round it first.
        x = x.to(total_ptr.dtype.element_ty).to(tl.float32)
        tl.store(total_ptr + row * hidden + cols, x, mask=mask)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / hidden + eps)
    if UNIT_OFFSET:
        y = x * scale * (1.0 + weight)
    else:
        # Llama rounds before the multiply; back to float32, as Triton's interpreter has no bf16 arithmetic.
        y = (x * scale).to(x_ptr.dtype.element_ty).to(tl.float32) * weight
    if FP8_LIMIT > 0:
        y = y.to(x_ptr.dtype.element_ty).to(tl.float32)  # the values that the norm alone would have left
        row_scale = tl.maximum(tl.max(tl.abs(y), axis=0), 1e-12) / FP8_LIMIT
        tl.store(scales_ptr + row, row_scale)
        y = tl.clamp(y / row_scale, -FP8_LIMIT, FP8_LIMIT).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * hidden + cols, y, mask=mask)


def _check(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None) -> None:
    hidden = x.shape[-1]
    if weight.shape != (hidden,):
        raise ValueError(f"weight has shape {tuple(weight.shape)}; x of width {hidden} needs ({hidden},)")
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"residual has shape {tuple(residual.shape)}, x {tuple(x.shape)}: they must be equal")
    if hidden > MAX_HIDDEN:
        raise ValueError(f"hidden is {hidden}; the limit is {MAX_HIDDEN}")


def _rows(x: torch.Tensor) -> torch.Tensor:
    """x as (rows, hidden) with unit stride in the last dimension, a view wherever the strides allow one."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    return x.reshape(-1, x.shape[-1])


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    unit_offset: bool,
    scales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(normed, total); with `scales` to fill, normed is float8."""
    rows = _rows(x)
    res = rows if residual is None else _rows(residual)
    out = torch.empty(x.shape, dtype=x.dtype if scales is None else torch.float8_e4m3fn, device=x.device)
    total = rows if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_rows, hidden = rows.shape
    if num_rows == 0:
        return out, total
    block = triton.next_power_of_2(hidden)
    _rms_norm_kernel[(num_rows,)](
        rows,
        res,
        weight,
        out,
        total,
        out if scales is None else scales,
        rows.stride(0),
        res.stride(0),
        hidden,
        eps,
        ADD=residual is not None,
        UNIT_OFFSET=unit_offset,
        FP8_LIMIT=0.0 if scales is None else FP8_MAX,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
        **dependent_launch(x),
    )
    return out, total


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, *, unit_offset: bool = False) -> torch.Tensor:
    """RMSNorm over the last dimension.

    Args: x (..., hidden) bf16/fp16/fp32; weight (hidden,); unit_offset multiplies by 1 + weight (Gemma).
    Returns: as x, new and contiguous. Raises: ValueError on other shapes.
    """
    _check(x, weight, None)
    if not uses_triton(x):
        if x.dtype is torch.bfloat16 and not unit_offset:
            return _rms_norm_cpu(x, weight, eps)
        return rms_norm_ref(x, weight, eps, unit_offset=unit_offset)
    return _launch(x, None, weight, eps, unit_offset)[0]


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, *, unit_offset: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """total = x + residual, then RMSNorm of the total.

    Args: x, residual (..., hidden), same dtype; weight (hidden,).
    Returns: (normed, total), both new, as x. Raises: ValueError on other shapes.
    """
    _check(x, weight, residual)
    if not uses_triton(x):
        if x.dtype is torch.bfloat16 and not unit_offset:
            total = x + residual
            return _rms_norm_cpu(total, weight, eps), total
        return add_rms_norm_ref(x, residual, weight, eps, unit_offset=unit_offset)
    return _launch(x, residual, weight, eps, unit_offset)


def rms_norm_fp8(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    unit_offset: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(rows float8_e4m3fn, scales float32 (num_rows, 1), total): the norm of x + residual, or of x, as `fp8_quantize`
    would make it float8; total is that sum, or x.

    Args: x, residual (num_rows, hidden); the rest as `rms_norm`. Raises: ValueError on other shapes.
    """
    _check(x, weight, residual)
    if x.dim() != 2:
        raise ValueError(f"rms_norm_fp8: x has shape {tuple(x.shape)}; it must be (num_rows, hidden)")
    if not uses_triton(x):
        total = x if residual is None else x + residual
        return (*fp8_quantize_ref(rms_norm_ref(total, weight, eps, unit_offset=unit_offset)), total)
    scales = torch.empty((x.shape[0], 1), dtype=torch.float32, device=x.device)
    rows, total = _launch(x, residual, weight, eps, unit_offset, scales)
    return rows, scales, total
