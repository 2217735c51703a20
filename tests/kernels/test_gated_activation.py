"""silu(gate) * up and gelu(gate) * up."""

from __future__ import annotations

import pytest
import torch

from kernels.gated_activation import gelu_mul, gelu_mul_ref, silu_mul, silu_mul_ref

PAIRS = [(silu_mul, silu_mul_ref), (gelu_mul, gelu_mul_ref)]
TOLERANCE = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 3.2e-2, "atol": 1e-2},
}


@pytest.mark.parametrize(("fn", "ref"), PAIRS)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", [(1, 2), (3, 246), (2, 3000)])
def test_matches_reference(device, fn, ref, dtype, shape):
    gate_up = (4 * torch.randn(shape, device=device)).to(dtype)
    torch.testing.assert_close(fn(gate_up), ref(gate_up), **TOLERANCE[dtype])


@pytest.mark.parametrize(("fn", "ref"), PAIRS)
def test_large_gates_do_not_overflow(device, fn, ref):
    gate_up = torch.tensor([[-80.0, 80.0, -1e4, 1e4, 1.0, 1.0, 1.0, 1.0]], device=device)
    out = fn(gate_up)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out, ref(gate_up))


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match="even"):
        silu_mul(torch.ones(1, 3))
