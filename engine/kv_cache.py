"""`KVCache`: the page pools on the device and in host memory, how many pages there are, and page moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.attention import AttentionSpec, GroupSpec, KVView, group_layers
from engine.block_manager import GroupLayout
from engine.errors import ModelLoadError
from engine.step_plan import PageMove, StepPlan

GIB = 1 << 30


@dataclass(frozen=True)
class CacheLayout:
    """Sizes of all pools. num_pages and num_host_pages have one entry a group; page 0 of a group is the null page."""

    specs: tuple[AttentionSpec, ...]
    groups: tuple[GroupSpec, ...]
    block_size: int
    dtype: torch.dtype
    num_pages: tuple[int, ...]
    num_host_pages: tuple[int, ...]

    def page_bytes(self, group: int) -> int:
        return self.groups[group].page_elements(self.block_size) * self.dtype.itemsize

    @property
    def size_bytes(self) -> int:
        return sum(pages * self.page_bytes(g) for g, pages in enumerate(self.num_pages))

    def group_layouts(self) -> tuple[GroupLayout, ...]:
        return tuple(
            GroupLayout(spec.key.window, pages, host)
            for spec, pages, host in zip(self.groups, self.num_pages, self.num_host_pages, strict=True)
        )


def plan_cache(
    specs: tuple[AttentionSpec, ...],
    *,
    block_size: int,
    dtype: torch.dtype,
    budget_bytes: int,
    num_blocks: int | None = None,
    max_num_seqs: int,
    max_chunk: int,
    max_model_len: int,
    swap_bytes: int = 0,
) -> CacheLayout:
    """As many pages as the budget holds, but no more than all sequences at full length could use.

    `num_blocks` pages are made in every group when given (the null page comes on top). A window group gets no more
    than its windows can fill, twice over for cached prefixes. Raises: ModelLoadError when not even one page fits.
    """
    groups = group_layers(specs)
    page_bytes = [group.page_elements(block_size) * dtype.itemsize for group in groups]

    def pages_of(full: int) -> list[int]:
        counts = []
        for group in groups:
            most = full
            if group.key.window is not None:
                window_blocks = -(-(group.key.window + block_size) // block_size) + 1
                chunk_blocks = -(-(max_chunk + group.key.window) // block_size) + 1
                most = min(full, 2 * max_num_seqs * window_blocks + chunk_blocks)
            counts.append(most + 1)
        return counts

    def size_of(full: int) -> int:
        return sum(count * size for count, size in zip(pages_of(full), page_bytes, strict=True))

    if num_blocks is None:
        if size_of(1) > budget_bytes:
            raise ModelLoadError(
                f"{budget_bytes / GIB:.3f} GiB are left for the KV cache, one page takes {size_of(1) / GIB:.3f} GiB: "
                "raise --gpu-memory-utilization or --kv-cache-memory-bytes"
            )
        low, high = 1, 2 * max_num_seqs * -(-max_model_len // block_size)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if size_of(middle) <= budget_bytes else (low, middle - 1)
        num_blocks = low
    num_pages = tuple(pages_of(num_blocks))
    device_bytes = sum(count * size for count, size in zip(num_pages, page_bytes, strict=True))
    share = min(1.0, swap_bytes / device_bytes)
    return CacheLayout(specs, groups, block_size, dtype, num_pages, tuple(int(share * n) for n in num_pages))


class KVCache:
    """The pools of a layout. Device pools start as zeros: attention multiplies masked slots by zero, and 0 * NaN would
    be NaN."""

    def __init__(self, layout: CacheLayout, device: torch.device) -> None:
        self.layout = layout
        self.pools = tuple(
            _zeros(self._shape(g, pages), layout.dtype, device) for g, pages in enumerate(layout.num_pages)
        )
        self.host_pools = tuple(
            _zeros(self._shape(g, pages), layout.dtype, torch.device("cpu"), pin=device.type == "cuda" and pages > 0)
            for g, pages in enumerate(layout.num_host_pages)
        )
        self.view = KVView(layout.specs, layout.groups, self.pools, layout.block_size)

    def apply(self, plan: StepPlan) -> None:
        """A plan's page moves, in their order."""
        self._move(plan.swap_out, self.pools, self.host_pools)
        for group, page in plan.zero:
            _bytes(self.pools[group])[page].zero_()
        self._move(plan.swap_in, self.host_pools, self.pools)
        self._move(plan.copies, self.pools, self.pools)

    def _move(
        self, moves: Sequence[PageMove], sources: tuple[torch.Tensor, ...], targets: tuple[torch.Tensor, ...]
    ) -> None:
        """One copy a page: pages are contiguous over layers, so each is one DMA transfer."""
        for move in moves:
            _bytes(targets[move.group])[move.target].copy_(_bytes(sources[move.group])[move.source], non_blocking=True)

    def _shape(self, group: int, pages: int) -> tuple[int, ...]:
        spec = self.layout.groups[group]
        return (pages, len(spec.layers), 2, spec.key.num_kv_heads, self.layout.block_size, spec.key.head_dim)


def _bytes(pool: torch.Tensor) -> torch.Tensor:
    """Copies of float8 have no CPU kernel in every version; bytes have."""
    return pool.view(torch.uint8) if pool.dtype.itemsize == 1 else pool


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, pin: bool = False) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=torch.uint8 if dtype.itemsize == 1 else dtype, device=device).view(dtype)
    if pin:
        return torch.zeros(shape, dtype=dtype, pin_memory=True)
    # numpy asks for zeroed memory, which the system commits when a page is first written; torch.zeros writes it all.
    size_bytes = int(np.prod(shape)) * dtype.itemsize
    if not size_bytes:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(np.zeros(size_bytes, dtype=np.uint8)).view(dtype).view(shape)
