"""`Staging`: pinned host memory through which a step's integers reach the device without waiting for it."""

from __future__ import annotations

import torch

# A buffer is written again this many steps later; the engine keeps at most two steps in flight.
NUM_SLOTS = 4


class Staging:
    """Host buffers used in turn, one turn a step; `to_device` copies from the current one while the device works.

    On a CPU nothing needs pinning, and the copies are plain ones.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned = device.type == "cuda"
        self._buffers = [torch.empty(0, dtype=torch.int64) for _ in range(NUM_SLOTS)]
        self._turn = 0
        self._used = 0

    def next_step(self, size: int) -> None:
        """Takes the next buffer, with room for `size` int64."""
        self._turn = (self._turn + 1) % NUM_SLOTS
        self._used = 0
        if self._buffers[self._turn].numel() < size:
            room = 1 << max(10, (size - 1).bit_length())
            self._buffers[self._turn] = torch.empty(room, dtype=torch.int64, pin_memory=self._pinned)

    def to_device(self, values: list[int], out: torch.Tensor | None = None) -> torch.Tensor:
        """The integers as int64 on the device, in `out` where one is given (its first len(values) elements)."""
        start, self._used = self._used, self._used + len(values)
        host = self._buffers[self._turn][start : self._used]
        if host.numel() != len(values):
            raise ValueError(f"staging holds {self._buffers[self._turn].numel()} integers, {self._used} were put in")
        host.copy_(torch.tensor(values, dtype=torch.int64))
        if out is None:
            return host.to(self._device, non_blocking=self._pinned) if self._pinned else host.clone()
        return out[: len(values)].copy_(host, non_blocking=self._pinned)
