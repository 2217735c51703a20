"""Embedding lookup, with the next step's ids taken from where the sampler left them on the device."""

from __future__ import annotations

import torch

from kernels._triton import dependent_launch, tl, triton, uses_triton


def embedding_ref(token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight[token_ids.long()]


@triton.jit
def _embedding_kernel(ids_ptr, weight_ptr, out_ptr, weight_row_stride, hidden, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < hidden
    token = tl.load(ids_ptr + row).to(tl.int64)
    values = tl.load(weight_ptr + token * weight_row_stride + cols, mask=mask, other=0.0)
    tl.store(out_ptr + row * hidden + cols, values, mask=mask)


def embedding(token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows of `weight`.

    Args: token_ids (num_tokens,) int32/int64, each in [0, vocab): checked before the engine, not here, as a check
    would wait for the device; weight (vocab, hidden), last stride 1. Returns: (num_tokens, hidden), new.
    Raises: ValueError on other shapes.
    """
    if token_ids.dim() != 1 or weight.dim() != 2 or weight.stride(1) != 1:
        raise ValueError(f"needs ids (num_tokens,) and weight (vocab, hidden); got {token_ids.shape}, {weight.shape}")
    if not uses_triton(weight):
        return embedding_ref(token_ids, weight)
    hidden = weight.shape[1]
    out = torch.empty((token_ids.shape[0], hidden), dtype=weight.dtype, device=weight.device)
    if out.numel() == 0:
        return out
    block = min(1024, triton.next_power_of_2(hidden))
    grid = (token_ids.shape[0], triton.cdiv(hidden, block))
    _embedding_kernel[grid](
        token_ids, weight, out, weight.stride(0), hidden, BLOCK=block, num_warps=4, **dependent_launch(weight)
    )
    return out
