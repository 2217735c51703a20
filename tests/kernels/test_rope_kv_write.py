"""RoPE, QK-norm and the KV write in one launch, against the steps one by one."""

from __future__ import annotations

import pytest
import torch

from kernels.kv_write import kv_write, kv_write_ref
from kernels.rope_kv_write import rope_kv_write, rope_kv_write_ref, rotate_ref

BLOCK = 4


def _angles(positions: torch.Tensor, rotary_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin as the engine's rope table keeps them: halves alike, sin's first negated."""
    frequencies = 10000.0 ** (-torch.arange(0, rotary_dim, 2, device=positions.device).float() / rotary_dim)
    angles = positions.float()[:, None] * frequencies
    return torch.cat((angles.cos(),) * 2, dim=1), torch.cat((-angles.sin(), angles.sin()), dim=1)


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "rotary"), [(4, 2, 16, 16), (9, 3, 24, 16), (16, 1, 8, 8)])
@pytest.mark.parametrize(("norm", "unit_offset"), [(False, False), (True, False), (True, True)])
def test_matches_the_steps_one_by_one(device, heads, kv_heads, dim, rotary, norm, unit_offset):
    # Given tokens at scattered positions and slots, one of them padding
    qkv = torch.randn(3, heads + 2 * kv_heads, dim, device=device)
    positions = torch.tensor([0, 30, 7], device=device)
    slots = torch.tensor([5, -1, 18], device=device)
    pool = torch.full((6, 2, 2, kv_heads, BLOCK, dim), 9.0, device=device)
    q_norm, k_norm = (torch.randn(dim, device=device), torch.randn(dim, device=device)) if norm else (None, None)
    options = {"q_norm": q_norm, "k_norm": k_norm, "eps": 1e-5, "unit_offset": unit_offset}
    cos, sin = _angles(positions, rotary)
    expected, expected_pool = qkv.clone(), pool.clone()
    rope_kv_write_ref(expected, cos, sin, expected_pool[:, 1], slots, **options)
    # When done in one launch
    rope_kv_write(qkv, cos, sin, pool[:, 1], slots, **options)
    # Then rows and pages agree, and what no token owned is untouched
    torch.testing.assert_close(qkv, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(pool, expected_pool, rtol=1e-5, atol=1e-5)
    assert (pool[:, 0] == 9.0).all()


def test_rotation_depends_on_the_distance_alone():
    q, k = torch.randn(1, 1, 8), torch.randn(1, 1, 8)

    def score(query_at: int, key_at: int) -> float:
        rotated = [rotate_ref(x, *_angles(torch.tensor([at]), 8)) for x, at in ((q, query_at), (k, key_at))]
        return float((rotated[0] * rotated[1]).sum())

    assert score(10, 3) == pytest.approx(score(50, 43), abs=1e-4)
    assert score(10, 3) != pytest.approx(score(10, 4), abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kv_write_alone_is_exact(device, dtype):
    k, v = (torch.randn(3, 3, 24, device=device).to(dtype) for _ in range(2))
    slots = torch.tensor([23, -1, 4], device=device)
    pool = torch.zeros(6, 2, 2, 3, BLOCK, 24, dtype=dtype, device=device)
    expected = pool.clone()
    kv_write_ref(k, v, expected[:, 0], slots)
    kv_write(k, v, pool[:, 0], slots)
    assert torch.equal(pool, expected)


def test_half_a_norm_is_refused():
    qkv, cache = torch.zeros(1, 4, 8), torch.zeros(2, 2, 1, BLOCK, 8)
    with pytest.raises(ValueError, match="half a norm"):
        rope_kv_write(qkv, torch.ones(1, 8), torch.ones(1, 8), cache, torch.zeros(1).long(), q_norm=torch.ones(8))
