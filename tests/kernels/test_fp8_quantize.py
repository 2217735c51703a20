"""Rows quantized to float8 with a scale each."""

from __future__ import annotations

import pytest
import torch

from kernels.fp8_quantize import fp8_quantize, fp8_quantize_ref


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scales_are_the_references_and_values_within_a_step(device, dtype):
    x = (torch.randn(5, 130, device=device) * torch.tensor([[1e-3], [1.0], [50.0], [7.0], [0.0]], device=device)).to(
        dtype
    )
    actual, scales = fp8_quantize(x)
    _, expected_scales = fp8_quantize_ref(x)
    torch.testing.assert_close(scales, expected_scales)
    # e4m3 keeps three bits: half a step is 1/16 of a value. The interpreter truncates, and drops what is subnormal.
    off = (actual.float() * scales - x.float()).abs()
    assert (off <= 0.13 * x.float().abs() + scales * 2**-6).all()


def test_a_row_of_zeros_stays_zero(device):
    actual, _ = fp8_quantize(torch.zeros(2, 16, device=device))
    assert (actual.float() == 0).all()


def test_another_rank_is_refused():
    with pytest.raises(ValueError, match="fp8_quantize"):
        fp8_quantize(torch.zeros(4))
