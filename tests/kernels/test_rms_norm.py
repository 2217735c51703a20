"""RMSNorm and its fused residual add, against the float32 reference."""

from __future__ import annotations

import pytest
import torch

from kernels.rms_norm import add_rms_norm, add_rms_norm_ref, rms_norm, rms_norm_fp8, rms_norm_ref

SHAPES = [(1, 128), (5, 123), (7, 4096)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("unit_offset", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_matches_reference(device, shape, dtype, unit_offset):
    x = torch.randn(shape, dtype=dtype, device=device)
    weight = torch.randn(shape[-1], dtype=dtype, device=device)
    expected = rms_norm_ref(x, weight, 1e-5, unit_offset=unit_offset)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5, unit_offset=unit_offset), expected, **_tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_add_rms_norm_returns_the_normed_and_the_sum(device, shape, dtype):
    x = torch.randn(shape, dtype=dtype, device=device)
    residual = torch.randn(shape, dtype=dtype, device=device)
    weight = torch.randn(shape[-1], dtype=dtype, device=device)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    expected_normed, expected_total = add_rms_norm_ref(x, residual, weight, 1e-5)
    torch.testing.assert_close(total, expected_total, **_tolerance(dtype))
    torch.testing.assert_close(normed, expected_normed, **_tolerance(dtype))


def test_rows_may_be_strided_and_of_any_rank(device):
    qkv = torch.randn(3, 4, 2, 64, device=device)
    heads = qkv[:, :3]  # rows of a wider tensor, as QK-norm sees them
    weight = torch.randn(64, device=device)
    torch.testing.assert_close(rms_norm(heads, weight), rms_norm_ref(heads, weight))


def test_no_rows_give_no_rows(device):
    assert rms_norm(torch.empty(0, 64, device=device), torch.ones(64, device=device)).shape == (0, 64)


def test_a_weight_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"needs \(64,\)"):
        rms_norm(torch.ones(2, 64), torch.ones(32))


def test_a_residual_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="must be equal"):
        add_rms_norm(torch.ones(2, 64), torch.ones(3, 64), torch.ones(64))


def _tolerance(dtype: torch.dtype) -> dict[str, float]:
    # The interpreter truncates float32 -> bf16 where the card rounds: one step of bf16 apart, twice.
    return {"rtol": 3.2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 2e-3, "atol": 2e-3}


@pytest.mark.parametrize("rows", [0, 1, 16, 70])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_the_cpus_bf16_path_gives_the_references_values(rows: int, offset: float) -> None:
    x = (torch.randn(rows, 576) * 3 + offset).bfloat16()
    weight = torch.randn(576).bfloat16()
    expected = rms_norm_ref(x, weight, 1e-5)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), expected, atol=1e-6, rtol=8e-3)
    normed, total = add_rms_norm(x, x, weight, 1e-5)
    torch.testing.assert_close(normed, rms_norm_ref(total, weight, 1e-5), atol=1e-6, rtol=8e-3)


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("unit_offset", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_float8_rows_are_those_of_the_normed_made_float8(device, shape, with_residual, unit_offset):
    x = torch.randn(shape, device=device)
    residual = torch.randn(shape, device=device) if with_residual else None
    weight = torch.randn(shape[-1], device=device)
    rows, scales, total = rms_norm_fp8(x, residual, weight, 1e-5, unit_offset=unit_offset)
    expected = x if residual is None else x + residual
    normed = rms_norm_ref(expected, weight, 1e-5, unit_offset=unit_offset)
    torch.testing.assert_close(total, expected)
    assert rows.dtype is torch.float8_e4m3fn
    torch.testing.assert_close(scales[:, 0], normed.abs().amax(dim=1) / 448)
    if device == "cpu":
        return  # the interpreter loses the carry of a mantissa that rounds up to the next power of two: 124 becomes 64
    # e4m3's half step, relative or of its smallest numbers
    torch.testing.assert_close(rows.float() * scales, normed, rtol=0.0626, atol=float(scales.max()) * 2**-9)


def test_float8_rows_of_another_rank_are_refused():
    with pytest.raises(ValueError, match=r"rms_norm_fp8: x has shape \(2, 3, 4\)"):
        rms_norm_fp8(torch.zeros(2, 3, 4), None, torch.ones(4))
