"""Quantized products equal the product with the dequantized weight, and the weight stays near the original."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from engine import LLM, SamplingParams
from engine.errors import ModelLoadError
from engine.loader import load_model, num_parameters
from engine.quant.fp8 import Fp8Weight
from engine.quant.int4 import Int4Weight
from engine.quant.int8 import Int8Weight
from engine.quant.registry import FORMATS
from tests.engine.models.checkpoints import make_checkpoint

# Largest error of a weight beside the spread of its row (int8, fp8) or group (int4): half a step, and bf16's rounding.
STEP = {"int8": 1 / 127, "int4": 1 / 15, "fp8": 1 / 14}  # e4m3's largest gap is 32 below 448


def _weight(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(shape[0])
    rows = torch.rand(shape[0], 1, generator=generator) * 3 + 0.01
    return (torch.randn(shape, generator=generator) * rows).to(dtype)


def _reference(name: str, weight: torch.Tensor) -> Int8Weight | Int4Weight | Fp8Weight:
    if name == "fp8":
        return Fp8Weight(weight)
    return Int8Weight(weight) if name == "int8" else Int4Weight(weight, native=False)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 40])
@pytest.mark.parametrize("shape", [(5, 32), (48, 96), (64, 576), (96, 1536)])
def test_a_quantized_product_equals_the_dequantized_one(
    name: str, dtype: torch.dtype, rows: int, shape: tuple[int, int]
) -> None:
    weight = _weight(shape, dtype)
    form = FORMATS[name](weight)
    reference = _reference(name, weight)
    x = torch.randn(rows, shape[1], generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = F.linear(x.float(), reference.dequantized().float())
    scale = expected.abs().mean()
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(form(x).float(), expected, atol=tolerance * float(scale) * 4, rtol=tolerance)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_is_off_by_half_a_step_at_most(name: str, dtype: torch.dtype) -> None:
    weight = _weight((48, 576), dtype)
    error = (_reference(name, weight).dequantized().float() - weight.float()).abs()
    spread = weight.float().abs().amax(1, keepdim=True) * (2 if name == "int4" else 1)
    slack = 1e-6 if dtype is torch.float32 else 2e-2
    assert (error <= spread * (0.51 * STEP[name] + slack)).all()


def test_constant_and_zero_groups_survive() -> None:
    weight = torch.zeros(16, 64)
    weight[3] = 2.5
    for form in (Int8Weight(weight), Int4Weight(weight)):
        torch.testing.assert_close(form.dequantized(), weight, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(("name", "share"), [("int8", 0.55), ("int4", 0.35), ("fp8", 0.55)])
def test_a_quantized_form_is_smaller(name: str, share: float) -> None:
    weight = _weight((64, 576), torch.bfloat16)
    held = sum(buffer.numel() * buffer.element_size() for buffer in FORMATS[name](weight).buffers())
    assert held < share * weight.numel() * weight.element_size()


@pytest.mark.parametrize("name", FORMATS)
def test_a_real_model_still_answers(name: str, smollm2: Path) -> None:
    llm = LLM(str(smollm2), quantization=name, max_num_seqs=2, max_model_len=256, num_gpu_blocks_override=64)
    # What every form and bf16 agree on. Of France's capital 4 bits leave so little that the kernel's bf16 sums decide.
    messages = [{"role": "user", "content": "How many days has a week?"}]
    (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
    assert "7" in output.outputs[0].text


def test_every_linear_layer_is_quantized_and_counted_as_before(tmp_path: Path) -> None:
    reference = make_checkpoint("llama_biased", tmp_path)
    model, _ = load_model(tmp_path, quantization="int8")
    assert sum(isinstance(module, Int8Weight) for module in model.modules()) == 4 * 3
    assert num_parameters(model) == sum(p.numel() for p in reference.parameters())


def test_what_cannot_be_quantized_is_refused_by_name(tmp_path: Path) -> None:
    make_checkpoint("mixtral", tmp_path / "moe")
    with pytest.raises(ModelLoadError, match="int8' does not reach the weights of a mixture of experts"):
        load_model(tmp_path / "moe", quantization="int8")
    make_checkpoint("llama", tmp_path / "dense")
    with pytest.raises(ModelLoadError, match="quantization 'int3' is not supported, only int8, int4, fp8"):
        load_model(tmp_path / "dense", quantization="int3")
    with pytest.raises(ModelLoadError, match="multiple of 32, a layer's is 40"):
        Int4Weight(torch.zeros(8, 40))
