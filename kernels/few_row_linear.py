"""y = x @ weight.T for the few rows of a decode step, where the time is that of reading the weights once.

RMSNorm before the product, and bias, gated activation or residual after it, ride along: at one row each of those would
be a launch of some microseconds for a few kilobytes. One row takes a multiply-and-add kernel, more rows tensor cores
with the weight tile as the left operand (out.T = weight @ x.T), so that it goes from memory through shared memory
straight into them. Narrow layers split K over programs; the last program of a tile adds the parts in a fixed order,
so a result depends neither on timing nor, within one kernel shape, on the other rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F

from kernels._triton import (
    dependent_launch,
    dots_in_float32,
    jit_for_varying,
    num_multiprocessors,
    tl,
    triton,
    uses_triton,
)
from kernels.gated_activation import gelu_mul_ref, sigmoid, silu_mul_ref
from kernels.rms_norm import rms_norm, rms_norm_ref

MAX_ROWS = 64  # from here on cuBLAS is at least as fast on an H200
# With gate and up in one pass: at 128 rows of Llama-3-8B 66 us against cuBLAS's 68 and an activation's 6.
MAX_GATED_ROWS = 128
_FUSED_NORM_ROWS = (
    16  # beyond, x tiles passing through registers cost more than a launch (32 rows: 5.96 ms a step, 4.7)
)
_MAX_TILES = 8192  # counters of the split-K join


@dataclass(frozen=True)
class Epilogue:
    """What rides along with a product: RMSNorm of x before it, then scales, bias, gate and residual in this order."""

    norm_weight: torch.Tensor | None = None
    norm_eps: float = 1e-6
    unit_offset: bool = False
    bias: torch.Tensor | None = None
    gate: str | None = None  # None, "silu" or "gelu": the weight's first half is gate, its second up
    residual: torch.Tensor | None = None
    scales: torch.Tensor | None = None  # float32 (weight rows,), of a float8 weight: out = scales * (x @ weight.T)
    row_scales: torch.Tensor | None = None  # float32 (num_rows, 1), of a float8 x


PLAIN = Epilogue()


def few_row_linear_ref(x: torch.Tensor, weight: torch.Tensor, extra: Epilogue = PLAIN) -> torch.Tensor:
    if extra.norm_weight is not None:
        x = rms_norm_ref(x, extra.norm_weight, extra.norm_eps, unit_offset=extra.unit_offset)
    if extra.row_scales is not None:
        x = x.to(torch.float32) * extra.row_scales
    if extra.scales is not None:
        weight = (weight.to(torch.float32) * extra.scales[:, None]).to(x.dtype)
    out = F.linear(x, weight, extra.bias)
    if extra.gate is not None:
        out = silu_mul_ref(out) if extra.gate == "silu" else gelu_mul_ref(out)
    return out if extra.residual is None else extra.residual + out


@triton.jit
def _gated(gate, up, GATE: tl.constexpr):
    if GATE == 2:
        return gate * sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up
    return gate * sigmoid(gate) * up


@triton.jit
def _one_row_kernel(
    x_ptr,
    weight_ptr,
    norm_ptr,
    scales_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    out_width,
    depth,
    weight_stride,
    eps,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    EVEN_K: tl.constexpr,
    NORM: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    SCALED: tl.constexpr,
    BIAS: tl.constexpr,
    GATE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row of x. A program walks over every num_programs-th tile of BLOCK_N outputs, chunk by chunk of K, and always
    has the next chunk of weights on its way."""
    pid = tl.program_id(0)
    step = tl.num_programs(0)
    num_tiles = tl.cdiv(out_width, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    ns = tl.arange(0, BLOCK_N)
    half = out_width.to(tl.int64) * weight_stride
    # Weights depend on no kernel before this one: the first are on their way while that still runs. Asking the L2
    # cache for more of them meanwhile gained nothing, nor did it in the kernel below (4.39 ms a step against 4.40).
    cols = tl.minimum(pid * BLOCK_N + ns, out_width - 1)
    pointers = weight_ptr + cols.to(tl.int64)[:, None] * weight_stride + ks[None, :]
    chunk_mask = (ks < depth)[None, :]
    w_next = tl.load(pointers) if EVEN_K else tl.load(pointers, mask=chunk_mask, other=0.0)
    if GATE > 0:
        u_next = tl.load(pointers + half) if EVEN_K else tl.load(pointers + half, mask=chunk_mask, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    inverse = 1.0
    if NORM:
        squares = tl.zeros([BLOCK_K], tl.float32)
        for chunk in tl.static_range(NUM_CHUNKS):
            x = tl.load(x_ptr + chunk * BLOCK_K + ks, mask=chunk * BLOCK_K + ks < depth, other=0.0).to(tl.float32)
            squares += x * x
        inverse = tl.rsqrt(tl.sum(squares, axis=0) / depth + eps)
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    chunk = 0
    tile = pid
    while tile < num_tiles:
        w = w_next
        if GATE > 0:
            u = u_next
        is_last = chunk == NUM_CHUNKS - 1
        next_chunk = tl.where(is_last, 0, chunk + 1)
        next_tile = tl.where(is_last, tile + step, tile)
        next_cols = tl.minimum(next_tile * BLOCK_N + ns, out_width - 1)
        next_ks = next_chunk * BLOCK_K + ks
        pointers = weight_ptr + next_cols.to(tl.int64)[:, None] * weight_stride + next_ks[None, :]
        next_mask = (next_ks < depth)[None, :] & (next_tile < num_tiles)
        w_next = tl.load(pointers, mask=next_mask, other=0.0)
        if GATE > 0:
            u_next = tl.load(pointers + half, mask=next_mask, other=0.0)
        here = chunk * BLOCK_K + ks
        x = tl.load(x_ptr + here, mask=here < depth, other=0.0).to(tl.float32)
        if NORM:
            scale = tl.load(norm_ptr + here, mask=here < depth, other=0.0).to(tl.float32)
            x = x * (1.0 + scale) if UNIT_OFFSET else x * scale
        acc += w.to(tl.float32) * x[None, :]
        if GATE > 0:
            up += u.to(tl.float32) * x[None, :]
        if is_last:
            cols = tile * BLOCK_N + ns
            live = cols < out_width
            out = tl.sum(acc, axis=1) * inverse
            if SCALED:
                out *= tl.load(scales_ptr + cols, mask=live, other=0.0)
            if BIAS:
                out += tl.load(bias_ptr + cols, mask=live, other=0.0).to(tl.float32)
            if GATE > 0:
                up_out = tl.sum(up, axis=1) * inverse
                if SCALED:
                    up_out *= tl.load(scales_ptr + out_width + cols, mask=live, other=0.0)
                if BIAS:
                    up_out += tl.load(bias_ptr + out_width + cols, mask=live, other=0.0).to(tl.float32)
                out = _gated(out, up_out, GATE)
            if RESIDUAL:
                out += tl.load(residual_ptr + cols, mask=live, other=0.0).to(tl.float32)
            tl.store(out_ptr + cols, out, mask=live)
            acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
            up = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
        chunk = next_chunk
        tile = next_tile


@jit_for_varying("num_rows")
def _few_row_kernel(
    x_ptr,
    weight_ptr,
    norm_ptr,
    scales_ptr,
    row_scales_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    partial_ptr,
    counter_ptr,
    num_rows,
    out_width,
    depth,
    x_stride,
    weight_stride,
    residual_stride,
    eps,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    NORM: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    SCALED: tl.constexpr,
    ROW_SCALED: tl.constexpr,
    BIAS: tl.constexpr,
    GATE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    FLOAT32_DOT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Up to ROWS rows of x. A program owns BLOCK_N outputs over a SPLIT_K-th of K."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    tile = tl.program_id(0)
    split = tl.program_id(1)
    cols = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    live = cols < out_width
    rows = tl.arange(0, ROWS)
    ks = tl.arange(0, BLOCK_K)
    per_split = tl.cdiv(tl.cdiv(depth, BLOCK_K), SPLIT_K) * BLOCK_K
    begin = split * per_split
    end = tl.minimum(begin + per_split, depth)
    dot_type = tl.float32 if FLOAT32_DOT else x_ptr.dtype.element_ty  # a float8 weight widens in registers

    weights = weight_ptr + tl.where(live, cols, 0).to(tl.int64)[:, None] * weight_stride + ks[None, :]
    half = out_width.to(tl.int64) * weight_stride
    xs = x_ptr + rows[None, :] * x_stride + ks[:, None]
    row_mask = (rows < num_rows)[None, :]
    acc = tl.zeros([BLOCK_N, ROWS], tl.float32)
    up = tl.zeros([BLOCK_N, ROWS], tl.float32)
    squares = tl.zeros([BLOCK_K, ROWS], tl.float32)
    for start in range(begin, end, BLOCK_K):
        k_mask = start + ks < depth
        if EVEN_K:
            w = tl.load(weights + start)
            x = tl.load(xs + start, mask=row_mask, other=0.0)
        else:
            w = tl.load(weights + start, mask=k_mask[None, :], other=0.0)
            x = tl.load(xs + start, mask=row_mask & k_mask[:, None], other=0.0)
        if NORM:
            x32 = x.to(tl.float32)
            squares += x32 * x32
            scale = tl.load(norm_ptr + start + ks, mask=k_mask, other=0.0).to(tl.float32)[:, None]
            x = (x32 * (1.0 + scale) if UNIT_OFFSET else x32 * scale).to(x_ptr.dtype.element_ty)
        acc = tl.dot(w.to(dot_type), x.to(dot_type), acc, input_precision="ieee")
        if GATE > 0:
            if EVEN_K:
                u = tl.load(weights + half + start)
            else:
                u = tl.load(weights + half + start, mask=k_mask[None, :], other=0.0)
            up = tl.dot(u.to(dot_type), x.to(dot_type), up, input_precision="ieee")
    totals = tl.sum(squares, axis=0)

    mask = live[:, None] & row_mask
    if SPLIT_K > 1:
        # Parts are laid out [split, sums then squares, row, column]; the last program to arrive adds them up.
        plane = ROWS * out_width
        parts = partial_ptr + rows[None, :] * out_width + cols[:, None]
        tl.store(parts + split * plane, acc, mask=mask)
        square_parts = partial_ptr + SPLIT_K * plane + (tile * SPLIT_K) * ROWS + rows
        if NORM:
            tl.store(square_parts + split * ROWS, totals)
        tl.debug_barrier()  # all threads' parts are out before one thread counts the program in
        arrived = tl.atomic_add(counter_ptr + tile, 1, sem="acq_rel")
        if arrived < SPLIT_K - 1:
            return
        tl.debug_barrier()
        acc = tl.zeros([BLOCK_N, ROWS], tl.float32)
        totals = tl.zeros([ROWS], tl.float32)
        for part in tl.static_range(SPLIT_K):
            acc += tl.load(parts + part * plane, mask=mask, other=0.0, cache_modifier=".cg")
            if NORM:
                totals += tl.load(square_parts + part * ROWS, cache_modifier=".cg")
        tl.store(counter_ptr + tile, 0)  # for the next launch
    if NORM:
        inverse = tl.rsqrt(totals / depth + eps)[None, :]
        acc = acc * inverse
        up = up * inverse
    if ROW_SCALED:
        row_scales = tl.load(row_scales_ptr + rows, mask=rows < num_rows, other=0.0)[None, :]
        acc *= row_scales
        up *= row_scales
    if SCALED:
        acc *= tl.load(scales_ptr + cols, mask=live, other=0.0)[:, None]
        if GATE > 0:
            up *= tl.load(scales_ptr + out_width + cols, mask=live, other=0.0)[:, None]
    if BIAS:
        acc += tl.load(bias_ptr + cols, mask=live, other=0.0).to(tl.float32)[:, None]
        if GATE > 0:
            up += tl.load(bias_ptr + out_width + cols, mask=live, other=0.0).to(tl.float32)[:, None]
    if GATE > 0:
        acc = _gated(acc, up, GATE)
    if RESIDUAL:
        residual = residual_ptr + rows[None, :] * residual_stride + cols[:, None]
        acc += tl.load(residual, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + rows[None, :] * out_width + cols[:, None], acc, mask=mask)


@cache
def _counters(device: torch.device) -> torch.Tensor:
    """Zeroed once: the program that joins a tile sets its counter back. One stream runs these kernels."""
    return torch.zeros(_MAX_TILES, dtype=torch.int32, device=device)


@dataclass(frozen=True)
class Shape:
    """A launch shape of the few-row kernel."""

    block_n: int
    block_k: int
    split_k: int
    num_warps: int
    num_stages: int


def choose_shape(rows: int, out_width: int, depth: int, gated: bool, element_size: int = 2) -> Shape:
    """The shapes that read weights fastest on an H200 (benchmarks/kernels/few_row_linear.py)."""
    if element_size > 2:
        return Shape(64, 32, 1, 4, 2)
    if element_size == 1:
        if gated:
            return Shape(64, 256, 1, 4, 4) if rows <= 16 else Shape(64, 128, 1, 4, 5)
        if depth > 8192:
            return Shape(64, 256, 4, 4, 4) if rows <= 16 else Shape(64, 256, 2, 4, 5)
        return Shape(64, 256, 1, 4, 5)
    if out_width > 32768 and not gated:
        return Shape(128, 128, 1, 8, 4)
    split = 2 if not gated and out_width <= 64 * 64 and depth >= 2048 else 1
    if rows <= 16:
        return Shape(64, 256, split, 4, 3)
    if rows <= 64:
        return Shape(64, 128, split, 4, 4 if gated else 5)
    return Shape(128, 64, split, 8, 4)


@dataclass(frozen=True)
class OneRowShape:
    """A launch shape of the one-row kernel."""

    block_n: int
    block_k: int
    num_warps: int
    programs_per_sm: int


def choose_one_row_shape(out_width: int, depth: int, gated: bool) -> OneRowShape:
    """The fastest of 114 on an H200, found in a whole step's chain of launches."""
    if gated:
        return OneRowShape(4, 2048, 4, 4)
    if out_width > 32768:
        return OneRowShape(8, 2048, 4, 8)
    if depth > 8192:
        return OneRowShape(8, 1024, 4, 4)
    return OneRowShape(2, 4096, 8, 8 if out_width > 4096 else 4)


def _one_row(
    x: torch.Tensor, weight: torch.Tensor, extra: Epilogue, out: torch.Tensor, shape: OneRowShape | None = None
) -> None:
    depth = x.shape[1]
    width = out.shape[1]
    shape = shape or choose_one_row_shape(width, depth, extra.gate is not None)
    block_k = min(shape.block_k, triton.next_power_of_2(depth))
    programs = num_multiprocessors(x.device.index or 0) * shape.programs_per_sm
    _one_row_kernel[(min(triton.cdiv(width, shape.block_n), programs),)](
        x,
        weight,
        x if extra.norm_weight is None else extra.norm_weight,
        x if extra.scales is None else extra.scales,
        x if extra.bias is None else extra.bias,
        x if extra.residual is None else extra.residual,
        out,
        width,
        depth,
        weight.stride(0),
        extra.norm_eps,
        BLOCK_N=shape.block_n,
        BLOCK_K=block_k,
        NUM_CHUNKS=triton.cdiv(depth, block_k),
        EVEN_K=depth % block_k == 0,
        num_warps=shape.num_warps,
        **_flags(x, extra),
    )


def _flags(x: torch.Tensor, extra: Epilogue) -> dict[str, bool | int]:
    return {
        "NORM": extra.norm_weight is not None,
        "UNIT_OFFSET": extra.unit_offset,
        "SCALED": extra.scales is not None,
        "BIAS": extra.bias is not None,
        "GATE": 0 if extra.gate is None else 1 if extra.gate == "silu" else 2,
        "RESIDUAL": extra.residual is not None,
        **dependent_launch(x),
    }


def _few_rows(
    x: torch.Tensor, weight: torch.Tensor, extra: Epilogue, out: torch.Tensor, shape: Shape | None = None
) -> None:
    num_rows, depth = x.shape
    width = out.shape[1]
    rows = max(16, triton.next_power_of_2(num_rows))
    shape = shape or choose_shape(rows, width, depth, extra.gate is not None, x.element_size())
    tiles = triton.cdiv(width, shape.block_n)
    partial = out
    if shape.split_k > 1:
        size = shape.split_k * rows * (width + tiles)
        partial = torch.empty(size, dtype=torch.float32, device=x.device)
    _few_row_kernel[(tiles, shape.split_k)](
        x,
        weight,
        x if extra.norm_weight is None else extra.norm_weight,
        x if extra.scales is None else extra.scales,
        x if extra.row_scales is None else extra.row_scales,
        x if extra.bias is None else extra.bias,
        x if extra.residual is None else extra.residual,
        out,
        partial,
        _counters(x.device),
        num_rows,
        width,
        depth,
        x.stride(0),
        weight.stride(0),
        0 if extra.residual is None else extra.residual.stride(0),
        extra.norm_eps,
        ROWS=rows,
        BLOCK_N=shape.block_n,
        BLOCK_K=shape.block_k,
        SPLIT_K=shape.split_k,
        EVEN_K=depth % (shape.block_k * shape.split_k) == 0,
        ROW_SCALED=extra.row_scales is not None,
        FLOAT32_DOT=dots_in_float32(),
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        **_flags(x, extra),
    )


def _check(x: torch.Tensor, weight: torch.Tensor, extra: Epilogue) -> int:
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"few_row_linear: x {tuple(x.shape)} does not fit a weight of {tuple(weight.shape)}")
    if extra.gate not in (None, "silu", "gelu") or (extra.gate and weight.shape[0] % 2):
        raise ValueError(f"few_row_linear: gate {extra.gate!r} over a weight of {weight.shape[0]} rows")
    width = weight.shape[0] // 2 if extra.gate else weight.shape[0]
    if (weight.dtype == torch.float8_e4m3fn) != (extra.scales is not None):
        raise ValueError(f"few_row_linear: scales go with a float8 weight and with no other, got {weight.dtype}")
    if extra.residual is not None and extra.residual.shape != (x.shape[0], width):
        raise ValueError(f"few_row_linear: residual {tuple(extra.residual.shape)}, output ({x.shape[0]}, {width})")
    if (x.dtype == torch.float8_e4m3fn) != (extra.row_scales is not None) or (extra.row_scales is not None and (
        extra.scales is None or extra.norm_weight is not None
    )):  # fmt: skip
        raise ValueError("few_row_linear: row scales go with float8 rows, a float8 weight and no norm")
    return width


def few_row_linear(
    x: torch.Tensor, weight: torch.Tensor, extra: Epilogue = PLAIN, *, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """residual + gate(rms_norm(x) @ weight.T + bias), of which each part but the product is optional.

    Args: x (num_rows, depth), num_rows up to MAX_ROWS (MAX_GATED_ROWS) on a GPU; weight (width, depth), in x's dtype or
    float8_e4m3fn with scales; last strides 1. x may be float8_e4m3fn with row scales, before a float8 weight.
    Returns: (num_rows, width), or half that width with a gate, in `out_dtype` or x's dtype.
    Raises: ValueError on other shapes, or more rows than that.
    """
    width = _check(x, weight, extra)
    if not uses_triton(x):
        product = few_row_linear_ref(x, weight, extra)
        return product if out_dtype is None else product.to(out_dtype)
    most = MAX_ROWS if extra.gate is None else MAX_GATED_ROWS
    if x.shape[0] > most:
        raise ValueError(f"few_row_linear: {x.shape[0]} rows; the limit is {most}")
    out = torch.empty((x.shape[0], width), dtype=out_dtype or x.dtype, device=x.device)
    if x.shape[0] == 1 and extra.row_scales is None:
        _one_row(x, weight, extra, out)
    elif x.shape[0]:
        if extra.norm_weight is not None and x.shape[0] > _FUSED_NORM_ROWS:
            x = rms_norm(x, extra.norm_weight, extra.norm_eps, unit_offset=extra.unit_offset)
            extra = replace(extra, norm_weight=None)
        _few_rows(x, weight, extra, out)
    return out


def takes_few_rows(x: torch.Tensor, weight: torch.Tensor, *, gated: bool = False) -> bool:
    """Whether `few_row_linear` is the faster way for this product: few rows and a weight of 16 bits on a GPU.

    A float8 weight widened in registers, for one row by multiply-and-add too, takes as long as a bf16 one: its rows
    are made float8 first (`Fp8Weight`).
    """
    most = MAX_GATED_ROWS if gated else MAX_ROWS
    return (
        uses_triton(x)
        and x.dim() == 2
        and 0 < x.shape[0] <= most
        and x.element_size() == 2
        and weight.dtype == x.dtype
        and x.stride(1) == 1
    )


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias: streamed for few rows on a GPU, torch's product else. Args: as `F.linear`."""
    if takes_few_rows(x, weight):
        return few_row_linear(x, weight, Epilogue(bias=bias))
    return F.linear(x, weight, bias)
