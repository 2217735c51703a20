from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.layers.cpu_packed import FEW_ROWS, CpuFourBitWeight, CpuPackedWeight, best_form, can_pack
from engine.layers.linear import Linear
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


def _of_sixteen_levels(shape: tuple[int, int]) -> torch.Tensor:
    """As GGUF's Q4_1: in each group of 32 a scale, a minimum and codes of 4 bits. float32."""
    generator = torch.Generator().manual_seed(0)
    rows, width = shape
    codes = torch.randint(0, 16, (rows, width // 32, 32), generator=generator)
    codes[..., 0], codes[..., 1] = 0, 15
    scale = torch.rand(rows, width // 32, 1, generator=generator) * 0.02 + 0.001
    minimum = -scale * 15 * torch.rand(scale.shape, generator=generator)
    return (scale * codes + minimum).view(shape)


@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1, 64])
@pytest.mark.parametrize("shape", [(64, 64), (96, 576)])
def test_a_weight_of_sixteen_levels_is_read_by_its_codes_and_loses_nothing(rows: int, shape: tuple[int, int]) -> None:
    exact = _of_sixteen_levels(shape)
    form = CpuFourBitWeight(exact.bfloat16())
    assert form.few.native
    assert form.few.loss < 0.004  # bf16's own rounding is 0.0017
    x = torch.randn(rows, shape[1], generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = x.float() @ exact.T
    error = (form(x).float() - expected).square().mean().sqrt()
    assert error < 0.01 * expected.square().mean().sqrt()


def test_a_merged_weight_of_which_a_part_has_more_levels_keeps_its_bf16_form_alone() -> None:
    four, more = _of_sixteen_levels((128, 64)), torch.randn(32, 64, generator=torch.Generator().manual_seed(2)) * 0.1
    assert isinstance(best_form(four.bfloat16()), CpuFourBitWeight)
    assert isinstance(best_form(torch.cat((four, more)).bfloat16()), CpuPackedWeight)
    assert isinstance(best_form(more.bfloat16()), CpuPackedWeight)


def test_the_packaged_model_keeps_its_files_four_bits_and_others_are_left_alone(smollm2: Path, tmp_path: Path) -> None:
    model, _ = load_model(smollm2)
    forms = [module.form for module in model.modules() if isinstance(module, Linear)]
    assert len(forms) == 120
    assert all(isinstance(form, CpuFourBitWeight) for form in forms)
    assert isinstance(model.lm_head.form, CpuPackedWeight)  # eight bits in the file
    make_checkpoint("llama", tmp_path)
    other, _ = load_model(tmp_path, dtype="bfloat16")
    assert not any(isinstance(module, CpuFourBitWeight) for module in other.modules())


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
