"""Kernels run compiled where a GPU is, interpreted elsewhere; either way against their torch references."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels._triton import HAS_TRITON, interpreted


@pytest.fixture(
    params=[pytest.param("cpu", id="interpreted"), pytest.param("cuda", id="compiled", marks=pytest.mark.gpu)]
)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device to make tensors on, with the Triton path of the wrappers switched on."""
    if not HAS_TRITON:
        pytest.skip("triton is not installed")
    on_gpu = torch.cuda.is_available()
    if on_gpu != (request.param == "cuda"):
        pytest.skip("interpreted without a GPU, compiled with one")
    torch.manual_seed(0)
    if on_gpu:
        yield "cuda"
        return
    with interpreted():
        yield "cpu"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
