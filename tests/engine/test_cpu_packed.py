from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.layers.cpu_packed import CpuPackedWeight, can_pack
from engine.loader import load_model, num_parameters
from tests.engine.model_harness import PagedRun
from tests.engine.models.checkpoints import make_checkpoint

pytestmark = pytest.mark.skipif(not can_pack(), reason="this CPU has no bf16 products")


@pytest.mark.parametrize("rows", [1, 2, 17, 64])
@pytest.mark.parametrize("shape", [(5, 3), (96, 64), (320, 576)])
def test_packed_products_equal_plain_ones(rows: int, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator).bfloat16()
    x = torch.randn(rows, shape[1], generator=generator).bfloat16()
    expected = (x.float() @ weight.float().T).bfloat16()
    torch.testing.assert_close(CpuPackedWeight(weight)(x), expected)


@pytest.mark.parametrize("case", ["llama_biased", "llama_tied_mha", "qwen3_moe"])
def test_a_bf16_model_is_packed_and_stays_near_its_fp32_self(case: str, tmp_path: Path) -> None:
    reference = make_checkpoint(case, tmp_path)
    packed, _ = load_model(tmp_path, dtype="bfloat16")
    exact, _ = load_model(tmp_path)
    assert any(isinstance(module, CpuPackedWeight) for module in packed.modules())
    assert num_parameters(packed) == sum(p.numel() for p in reference.parameters())
    tokens = list(range(3, 40))
    difference = (PagedRun(packed).feed(tokens) - PagedRun(exact).feed(tokens)).abs().mean()
    assert difference < 0.05 * PagedRun(exact).feed(tokens).abs().mean()
