"""The weight-streaming product and what rides along with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import kernels.few_row_linear as module
from kernels.few_row_linear import Epilogue, Shape, few_row_linear, few_row_linear_ref
from kernels.fp8_quantize import fp8_quantize_ref

EPILOGUES = ["plain", "norm", "gemma_norm_bias", "silu", "gelu_norm_bias", "residual"]


def _epilogue(kind: str, rows: int, width: int, depth: int, device: str) -> Epilogue:
    norm = torch.randn(depth, device=device) if "norm" in kind else None
    return Epilogue(
        norm_weight=norm,
        norm_eps=1e-5,
        unit_offset="gemma" in kind,
        bias=torch.randn(width, device=device) if "bias" in kind else None,
        gate=next((gate for gate in ("silu", "gelu") if gate in kind), None),
        residual=torch.randn(rows, width, device=device) if kind == "residual" else None,
    )


@pytest.mark.parametrize("kind", EPILOGUES)
@pytest.mark.parametrize(("rows", "width", "depth"), [(1, 6, 40), (1, 130, 64), (3, 70, 200), (17, 64, 128)])
def test_matches_the_steps_one_by_one(device, kind, rows, width, depth):
    x = torch.randn(rows, depth, device=device)
    weight = torch.randn(width, depth, device=device)
    extra = _epilogue(kind, rows, width, depth, device)
    expected = few_row_linear_ref(x.double(), weight.double(), _as_double(extra))
    actual = few_row_linear(x, weight, extra)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("kind", ["plain", "norm", "residual"])
def test_parts_of_k_join_exactly_once_launch_after_launch(device, kind, monkeypatch):
    # Given a shape that splits K over four programs, the last with less of it
    monkeypatch.setattr(module, "choose_shape", lambda *_: Shape(64, 32, 4, 4, 2))
    x = torch.randn(5, 230, device=device)
    weight = torch.randn(70, 230, device=device)
    extra = _epilogue(kind, 5, 70, 230, device)
    expected = few_row_linear_ref(x.double(), weight.double(), _as_double(extra))
    # When launched twice, then both are right: the counters were set back
    for _ in range(2):
        torch.testing.assert_close(few_row_linear(x, weight, extra).double(), expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(("rows", "kind"), [(1, "plain"), (1, "gelu_norm_bias"), (5, "plain"), (5, "gelu_norm_bias")])
def test_a_float8_weight_widens_and_takes_its_scales(device, rows, kind):
    x = torch.randn(rows, 96, device=device)
    weight, scales = fp8_quantize_ref(torch.randn(34, 96, device=device))
    extra = replace(_epilogue(kind, rows, 34, 96, device), scales=scales.flatten())
    expected = few_row_linear_ref(x, weight, extra)
    torch.testing.assert_close(few_row_linear(x, weight, extra), expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("rows", [1, 5, 20])
@pytest.mark.parametrize("parts", [1, 2])
def test_float8_rows_before_a_float8_weight_take_both_scales(device, rows, parts, monkeypatch):
    monkeypatch.setattr(module, "choose_shape", lambda *_: Shape(64, 32, parts, 4, 2))
    x, row_scales = fp8_quantize_ref(torch.randn(rows, 96, device=device))
    weight, scales = fp8_quantize_ref(torch.randn(34, 96, device=device))
    extra = Epilogue(scales=scales.flatten(), row_scales=row_scales)
    expected = (x.double() * row_scales) @ (weight.double() * scales).T
    actual = few_row_linear(x, weight, extra, out_dtype=torch.float32)
    # The tensor cores of Hopper add products of float8 with 14 bits.
    torch.testing.assert_close(actual.double(), expected, rtol=1e-3, atol=4e-3)


def test_a_float8_weight_without_scales_is_refused():
    with pytest.raises(ValueError, match="scales go with a float8 weight"):
        few_row_linear(torch.zeros(1, 8), torch.zeros(3, 8).to(torch.float8_e4m3fn))


def test_a_row_does_not_depend_on_the_other_rows(device):
    x, weight = torch.randn(4, 96, device=device), torch.randn(66, 96, device=device)
    together = few_row_linear(x, weight)
    assert torch.equal(few_row_linear(x[:2], weight), together[:2])


def test_too_many_rows_are_refused(device):
    with pytest.raises(ValueError, match="65 rows; the limit is 64"):
        few_row_linear(torch.zeros(65, 8, device=device), torch.zeros(4, 8, device=device))


def test_a_residual_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"residual \(2, 4\), output \(2, 3\)"):
        few_row_linear(torch.zeros(2, 8), torch.zeros(3, 8), Epilogue(residual=torch.zeros(2, 4)))


def _as_double(extra: Epilogue) -> Epilogue:
    tensors = {name: getattr(extra, name) for name in ("norm_weight", "bias", "residual")}
    doubled = {name: None if tensor is None else tensor.double() for name, tensor in tensors.items()}
    return Epilogue(norm_eps=extra.norm_eps, unit_offset=extra.unit_offset, gate=extra.gate, **doubled)
