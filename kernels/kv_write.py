"""KV write: stores a step's keys and values in their page slots."""

from __future__ import annotations

import torch

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
    kv_write_ref(k, v, kv_cache, slot_mapping)
