"""KV write: stores a step's keys and values in their page slots."""

from __future__ import annotations

import torch

from kernels._triton import dependent_launch, tl, triton, uses_triton

FP8_MAX = 448.0  # largest finite float8_e4m3fn; values beyond it would become NaN


def kv_write_ref(k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """The reference of `kv_write`, and the CPU path."""
    if slot_mapping.numel() and int(slot_mapping.min()) < 0:
        keep = slot_mapping >= 0
        k, v, slot_mapping = k[keep], v[keep], slot_mapping[keep]
    block_size = kv_cache.shape[3]
    pages = slot_mapping // block_size
    offsets = slot_mapping % block_size
    new = torch.stack((k, v), dim=1)  # [T, 2, KVH, D], the order advanced indexing gives the destination
    if kv_cache.dtype == torch.float8_e4m3fn:
        # index_put has no float8 kernel on the CPU: bytes are stored through an integer view.
        quantised = new.float().clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        kv_cache.view(torch.uint8)[pages, :, :, offsets] = quantised.view(torch.uint8)
        return
    kv_cache[pages, :, :, offsets] = new


@triton.jit
def _kv_write_kernel(
    k_ptr,
    v_ptr,
    kv_ptr,
    slots_ptr,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    page_stride,
    side_stride,
    head_stride,
    slot_stride,
    NUM_KV_HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    FP8: tl.constexpr,
    FP8_LIMIT: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    heads = tl.arange(0, HEADS_PAD)[:, None]
    dims = tl.arange(0, HEAD_PAD)[None, :]
    mask = (heads < NUM_KV_HEADS) & (dims < HEAD_DIM)
    k = tl.load(k_ptr + token * k_token_stride + heads * k_head_stride + dims, mask=mask, other=0.0)
    v = tl.load(v_ptr + token * v_token_stride + heads * v_head_stride + dims, mask=mask, other=0.0)
    if FP8:
        k = tl.clamp(k.to(tl.float32), -FP8_LIMIT, FP8_LIMIT)
        v = tl.clamp(v.to(tl.float32), -FP8_LIMIT, FP8_LIMIT)
    target = kv_ptr + (slot // PAGE) * page_stride + (slot % PAGE) * slot_stride + heads * head_stride + dims
    tl.store(target, k.to(kv_ptr.dtype.element_ty), mask=mask)
    tl.store(target + side_stride, v.to(kv_ptr.dtype.element_ty), mask=mask)


def _launch(k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    num_tokens, num_kv_heads, head_dim = k.shape
    if not num_tokens:
        return
    _kv_write_kernel[(num_tokens,)](
        k,
        v,
        kv_cache,
        slot_mapping,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        kv_cache.stride(0),
        kv_cache.stride(1),
        kv_cache.stride(2),
        kv_cache.stride(3),
        NUM_KV_HEADS=num_kv_heads,
        HEADS_PAD=triton.next_power_of_2(num_kv_heads),
        HEAD_DIM=head_dim,
        HEAD_PAD=triton.next_power_of_2(head_dim),
        PAGE=kv_cache.shape[3],
        FP8=kv_cache.dtype == torch.float8_e4m3fn,
        FP8_LIMIT=FP8_MAX,
        num_warps=4,
        **dependent_launch(k),
    )


def kv_write(k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Writes token t's K and V at slot `slot_mapping[t]` of one layer's cache.

    Args: k, v [T, num_kv_heads, head_dim]; kv_cache [num_pages, 2, num_kv_heads, block_size, head_dim], any strides
    with the last 1, in k's dtype or float8_e4m3fn; slot_mapping int64 [T], `page * block_size + offset`, -1 = skip.
    Raises: ValueError on other shapes.
    """
    if k.shape != v.shape or k.shape[0] != slot_mapping.shape[0] or k.shape[1:] != kv_cache.shape[2::2]:
        raise ValueError(
            f"kv_write: k {tuple(k.shape)}, v {tuple(v.shape)}, slots {tuple(slot_mapping.shape)} do not fit "
            f"a cache of {tuple(kv_cache.shape)}"
        )
    if not uses_triton(k):
        kv_write_ref(k, v, kv_cache, slot_mapping)
        return
    _launch(k, v, kv_cache, slot_mapping)
