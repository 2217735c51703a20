"""Rotary embedding of a fused QKV product, optional QK-norm before it, and the KV write after it, in one launch.

RoPE rotates the halves of the first `rotary_dim` elements of a head (arXiv:2104.09864, in Hugging Face's layout).
"""

from __future__ import annotations

import torch

from kernels._triton import dependent_launch, tl, triton, uses_triton
from kernels.kv_write import FP8_MAX, kv_write_ref
from kernels.rms_norm import rms_norm_ref

_HEADS_A_PROGRAM = 8


def rotate_ref(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, H, D] rotated in float32 by cos, sin [T, rotary_dim] as `rope_kv_write` has them."""
    rotary_dim = cos.shape[-1]
    turned = x[..., :rotary_dim].float()
    turned = turned * cos.float()[:, None] + turned.roll(rotary_dim // 2, -1) * sin.float()[:, None]
    return torch.cat((turned.to(x.dtype), x[..., rotary_dim:]), dim=-1)


def rope_kv_write_ref(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 1e-6,
    unit_offset: bool = False,
) -> None:
    kv_heads = kv_cache.shape[2]
    heads = qkv.shape[1] - 2 * kv_heads
    q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
    if q_norm is not None and k_norm is not None:
        q = rms_norm_ref(q, q_norm, eps, unit_offset=unit_offset)
        k = rms_norm_ref(k, k_norm, eps, unit_offset=unit_offset)
    qkv[:, :heads] = rotate_ref(q, cos, sin)
    qkv[:, heads : heads + kv_heads] = rotate_ref(k, cos, sin)
    kv_write_ref(qkv[:, heads : heads + kv_heads], v, kv_cache, slot_mapping)


@triton.jit
def _rope_kv_write_kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    kv_ptr,
    slots_ptr,
    q_norm_ptr,
    k_norm_ptr,
    qkv_token_stride,
    cos_stride,
    sin_stride,
    page_stride,
    side_stride,
    head_stride,
    slot_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    HALF: tl.constexpr,
    PAGE: tl.constexpr,
    NORM: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    FP8_LIMIT: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * HEADS  # of the query heads and the key heads; the value heads go along with the keys
    heads = (first + tl.arange(0, HEADS))[:, None]
    dims = tl.arange(0, HEAD_PAD)[None, :]
    mask = (heads < NUM_HEADS + NUM_KV_HEADS) & (dims < HEAD_DIM)
    row = qkv_ptr + token * qkv_token_stride
    x = tl.load(row + heads * HEAD_DIM + dims, mask=mask, other=0.0).to(tl.float32)
    # The other half's element, loaded again (from L1) rather than shuffled.
    partner_dims = tl.where(dims < HALF, dims + HALF, dims - HALF)
    rotary = dims < 2 * HALF
    partner = tl.load(row + heads * HEAD_DIM + partner_dims, mask=mask & rotary, other=0.0).to(tl.float32)
    is_key = heads >= NUM_HEADS
    element = qkv_ptr.dtype.element_ty
    if NORM:
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / HEAD_DIM + eps)[:, None]
        weight = tl.load(tl.where(is_key, k_norm_ptr, q_norm_ptr) + dims, mask=mask, other=0.0).to(tl.float32)
        partner_weight = tl.load(
            tl.where(is_key, k_norm_ptr, q_norm_ptr) + partner_dims, mask=mask & rotary, other=0.0
        ).to(tl.float32)
        if UNIT_OFFSET:
            x = (x * scale * (1.0 + weight)).to(element).to(tl.float32)
            partner = (partner * scale * (1.0 + partner_weight)).to(element).to(tl.float32)
        else:
            x = ((x * scale).to(element).to(tl.float32) * weight).to(element).to(tl.float32)
            partner = ((partner * scale).to(element).to(tl.float32) * partner_weight).to(element).to(tl.float32)
    cos = tl.load(cos_ptr + token * cos_stride + dims, mask=rotary, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * sin_stride + dims, mask=rotary, other=0.0).to(tl.float32)
    rotated = x * cos + partner * sin
    # Every read of the row's elements happens before the first write to them.
    tl.debug_barrier()
    tl.store(row + heads * HEAD_DIM + dims, rotated.to(element), mask=mask)

    slot = tl.load(slots_ptr + token)
    if (first + HEADS > NUM_HEADS) & (slot >= 0):
        kv_mask = mask & is_key
        target = kv_ptr + (slot // PAGE) * page_stride + (slot % PAGE) * slot_stride
        target += (heads - NUM_HEADS) * head_stride + dims
        value = tl.load(row + (heads + NUM_KV_HEADS) * HEAD_DIM + dims, mask=kv_mask, other=0.0).to(tl.float32)
        key = rotated.to(element).to(tl.float32)  # as attention would have read it
        if FP8_LIMIT > 0:
            key = tl.clamp(key, -FP8_LIMIT, FP8_LIMIT)
            value = tl.clamp(value, -FP8_LIMIT, FP8_LIMIT)
        tl.store(target, key.to(kv_ptr.dtype.element_ty), mask=kv_mask)
        tl.store(target + side_stride, value.to(kv_ptr.dtype.element_ty), mask=kv_mask)


def rope_kv_write(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 1e-6,
    unit_offset: bool = False,
) -> None:
    """Rotates the query and key heads of `qkv` in place, after QK-norm where weights are given, and writes K and V.

    Args: qkv [T, num_heads + 2 * num_kv_heads, head_dim], heads in the order q, k, v, each token's heads adjacent;
    cos, sin [T, rotary_dim], halves alike but for the sign of sin's first: a head x becomes
    x * cos + roll(x, rotary_dim / 2) * sin; kv_cache one layer's [num_pages, 2, num_kv_heads, block_size, head_dim];
    slot_mapping int64 [T], -1 = not written; q_norm, k_norm [head_dim], both or neither.
    Raises: ValueError on other shapes.
    """
    num_tokens, all_heads, head_dim = qkv.shape
    kv_heads = kv_cache.shape[2]
    if all_heads <= 2 * kv_heads or head_dim != kv_cache.shape[4] or qkv.stride()[1:] != (head_dim, 1):
        raise ValueError(f"rope_kv_write: qkv {tuple(qkv.shape)} does not fit a cache of {tuple(kv_cache.shape)}")
    if cos.shape != sin.shape or cos.shape[0] != num_tokens or slot_mapping.shape != (num_tokens,):
        raise ValueError(f"rope_kv_write: {num_tokens} tokens, cos {cos.shape}, sin {sin.shape}, {slot_mapping.shape}")
    if cos.shape[1] % 2 or cos.shape[1] > head_dim or (q_norm is None) != (k_norm is None):
        raise ValueError(f"rope_kv_write: a rotary width of {cos.shape[1]} in heads of {head_dim}, or half a norm")
    if not uses_triton(qkv):
        rope_kv_write_ref(
            qkv, cos, sin, kv_cache, slot_mapping,
            q_norm=q_norm, k_norm=k_norm, eps=eps, unit_offset=unit_offset,
        )  # fmt: skip
        return
    if not num_tokens:
        return
    heads = all_heads - 2 * kv_heads
    _rope_kv_write_kernel[(num_tokens, triton.cdiv(heads + kv_heads, _HEADS_A_PROGRAM))](
        qkv,
        cos,
        sin,
        kv_cache,
        slot_mapping,
        qkv if q_norm is None else q_norm,
        qkv if k_norm is None else k_norm,
        qkv.stride(0),
        cos.stride(0),
        sin.stride(0),
        kv_cache.stride(0),
        kv_cache.stride(1),
        kv_cache.stride(2),
        kv_cache.stride(3),
        eps,
        NUM_HEADS=heads,
        NUM_KV_HEADS=kv_heads,
        HEADS=_HEADS_A_PROGRAM,
        HEAD_DIM=head_dim,
        HEAD_PAD=triton.next_power_of_2(head_dim),
        HALF=cos.shape[1] // 2,
        PAGE=kv_cache.shape[3],
        NORM=q_norm is not None,
        UNIT_OFFSET=unit_offset,
        FP8_LIMIT=FP8_MAX if kv_cache.dtype == torch.float8_e4m3fn else 0.0,
        num_warps=2,
        **dependent_launch(qkv),
    )
