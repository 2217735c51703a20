from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine.errors import ModelLoadError
from engine.loader import load_model
from engine.quant.mxfp4 import dequantize_mxfp4, unpack_mxfp4
from tests.engine.model_harness import PagedRun
from tests.engine.models.checkpoints import make_checkpoint


def _packed(experts: int, rows: int, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (experts, rows, width // 32, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(122, 127, (experts, rows, width // 32), dtype=torch.uint8, generator=generator)
    return blocks, scales


def test_values_equal_transformers_reading() -> None:
    blocks, scales = _packed(3, 10, 96, 0)
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
    assert torch.equal(dequantize_mxfp4(blocks, scales), expected)


def test_a_packed_checkpoint_answers_as_its_dequantised_self(tmp_path: Path) -> None:
    # Given a gpt-oss checkpoint whose experts are packed, and the same dequantised
    make_checkpoint("gpt_oss", tmp_path / "plain")
    make_checkpoint("gpt_oss", tmp_path / "packed")
    tensors = load_file(tmp_path / "plain" / "model.safetensors")
    plain, packed = dict(tensors), dict(tensors)
    for i, name in enumerate(n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))):
        experts, width, rows = tensors[name].shape
        blocks, scales = _packed(experts, rows, width, i)
        plain[name] = dequantize_mxfp4(blocks, scales).contiguous()
        del packed[name]
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(plain, tmp_path / "plain" / "model.safetensors")
    save_file(packed, tmp_path / "packed" / "model.safetensors")
    config = json.loads((tmp_path / "packed" / "config.json").read_text())
    (tmp_path / "packed" / "config.json").write_text(
        json.dumps({**config, "quantization_config": {"quant_method": "mxfp4"}})
    )
    # When both are loaded, then they say the same
    runs = [PagedRun(load_model(tmp_path / name)[0]).feed([3, 5, 7]) for name in ("plain", "packed")]
    assert torch.equal(*runs)


def test_a_half_without_its_other_is_named() -> None:
    blocks, scales = _packed(1, 4, 32, 0)
    with pytest.raises(ModelLoadError, match="'x_blocks' stands alone"):
        list(unpack_mxfp4([("x_blocks", blocks), ("y", scales)]))
    with pytest.raises(ModelLoadError, match=r"x_blocks .* differ"):
        list(unpack_mxfp4([("x_scales", scales[:, :2]), ("x_blocks", blocks)]))
