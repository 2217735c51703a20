"""Triton where it is installed, and the switch between kernels and their torch references.

A CPU host has no Triton, and needs none: every wrapper in this package runs its reference on CPU tensors. Where Triton
is there but no GPU is (tests), its interpreter runs the kernels on CPU tensors inside `interpreted()`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

if not torch.cuda.is_available():
    # Triton reads it when its own library functions are decorated, hence before the import.
    os.environ.setdefault("TRITON_INTERPRET", "1")

try:
    import triton
    import triton.language as tl
except ImportError:

    class _NoTriton:
        """Lets kernel files be imported: `jit` leaves a function as it is, and nothing calls it."""

        constexpr = int

        @staticmethod
        def jit(fn: Any = None, **_: Any) -> Any:
            return fn if fn is not None else _NoTriton.jit

    triton = tl = _NoTriton()
    HAS_TRITON = False
else:
    HAS_TRITON = True

__all__ = [
    "HAS_TRITON",
    "dependent_launch",
    "dots_in_float32",
    "has_dependent_launch",
    "interpreted",
    "jit_for_varying",
    "num_multiprocessors",
    "tl",
    "triton",
    "uses_triton",
]

_interpreting = False


@contextmanager
def interpreted() -> Iterator[None]:
    """Runs kernels on CPU tensors through Triton's interpreter: about 40 ms a program, so for tiny shapes only.

    Raises: RuntimeError without Triton, or where a GPU made Triton compile its library.
    """
    global _interpreting  # noqa: PLW0603
    if not HAS_TRITON or torch.cuda.is_available():
        raise RuntimeError("the interpreter needs triton and a host without a GPU")
    before, _interpreting = _interpreting, True
    try:
        yield
    finally:
        _interpreting = before


def jit_for_varying(*names: str) -> Any:
    """`triton.jit` that compiles once whatever the values and alignments of these arguments, which differ from step to
    step. Triton would compile again for every kind of them it meets: half a second each, in the middle of a request.
    """
    return triton.jit(do_not_specialize=names, do_not_specialize_on_alignment=names)


def uses_triton(tensor: torch.Tensor) -> bool:
    """Whether a wrapper given this tensor launches its kernel (a CUDA tensor) or runs its reference."""
    return tensor.is_cuda or _interpreting


def dots_in_float32() -> bool:
    """True in the interpreter, whose bf16 `tl.dot` is wrong on every version up to 3.9."""
    return _interpreting


@cache
def num_multiprocessors(device_index: int) -> int:
    """Multiprocessors of a CUDA device; 4 in the interpreter, so that split rules are exercised there too."""
    if not torch.cuda.is_available():
        return 4
    return torch.cuda.get_device_properties(device_index).multi_processor_count


@cache
def has_dependent_launch(device_index: int) -> bool:
    """Whether the device starts a kernel before its predecessor ends (programmatic dependent launch, Hopper on)."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device_index)[0] >= 9


dependent_launches = True  # benchmarks switch it off to measure what it brings


def dependent_launch(tensor: torch.Tensor) -> dict[str, Any]:
    """Launch arguments of a kernel that waits for its predecessor itself (`PDL`), so that the two may overlap."""
    if dependent_launches and tensor.is_cuda and has_dependent_launch(tensor.device.index or 0):
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}
