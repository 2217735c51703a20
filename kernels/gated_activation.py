"""Gated activations of an MLP: act(gate) * up, where one product made both halves (arXiv:2002.05202)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels._triton import dependent_launch, tl, triton, uses_triton

_BLOCK = 1024


def silu_mul_ref(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_mul_ref(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


@triton.jit
def sigmoid(x):
    decay = tl.exp(-tl.abs(x))  # at most 1: no overflow on either side
    return tl.where(x >= 0, 1.0, decay) / (1.0 + decay)


@triton.jit
def _gated_kernel(gate_up_ptr, out_ptr, row_stride, width, GELU: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < width
    gate = tl.load(gate_up_ptr + row * row_stride + cols, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * row_stride + width + cols, mask=mask, other=0.0).to(tl.float32)
    if GELU:
        # tanh(z) = 2 * sigmoid(2z) - 1, so 0.5 * (1 + tanh(z)) is sigmoid(2z).
        z = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        activated = gate * sigmoid(2.0 * z)
    else:
        activated = gate * sigmoid(gate)
    # Rounded between the two, as the reference is; float32 again for the interpreter's sake.
    activated = activated.to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * width + cols, activated * up, mask=mask)


def _gated(gate_up: torch.Tensor, gelu: bool) -> torch.Tensor:
    if gate_up.shape[-1] % 2:
        raise ValueError(f"the last dimension is {gate_up.shape[-1]}; gate and up need an even one")
    if not uses_triton(gate_up):
        return gelu_mul_ref(gate_up) if gelu else silu_mul_ref(gate_up)
    if gate_up.stride(-1) != 1:
        gate_up = gate_up.contiguous()
    rows = gate_up.reshape(-1, gate_up.shape[-1])
    width = rows.shape[1] // 2
    out = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel() == 0:
        return out
    grid = (rows.shape[0], triton.cdiv(width, _BLOCK))
    _gated_kernel[grid](
        rows, out, rows.stride(0), width, GELU=gelu, BLOCK=_BLOCK, num_warps=4, **dependent_launch(rows)
    )
    return out


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up. Args: gate_up (..., 2 * width). Returns: (..., width), new. Raises: ValueError on an odd one."""
    return _gated(gate_up, gelu=False)


def gelu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up with the tanh form. Args, returns and raises as `silu_mul`."""
    return _gated(gate_up, gelu=True)
