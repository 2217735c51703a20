"""Checkpoints that load, and those that are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelLoadError
from engine.loader import load_model, num_parameters
from tests.engine.model_harness import PagedRun
from tests.engine.models.checkpoints import make_checkpoint

PROMPT = [5, 7, 11, 13]


def _edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in config.items() if v != "DELETE"}))


def _edit_tensors(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    path = folder / "model.safetensors"
    tensors = {**load_file(path), **{k: v for k, v in change.items() if v is not None}}
    save_file({k: v.clone() for k, v in tensors.items() if k not in change or change[k] is not None}, path)


def test_a_sharded_checkpoint_equals_the_single_file(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path / "one")
    make_checkpoint("llama", tmp_path / "many", max_shard_size="100KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    one, _ = load_model(tmp_path / "one")
    many, _ = load_model(tmp_path / "many")
    assert torch.equal(PagedRun(one).feed(PROMPT), PagedRun(many).feed(PROMPT))


def test_a_tied_head_counts_and_loads_once(tmp_path: Path) -> None:
    reference = make_checkpoint("llama_tied_mha", tmp_path)
    model, config = load_model(tmp_path)
    assert config.tie_word_embeddings
    assert num_parameters(model) == sum(p.numel() for p in reference.parameters())
    # A checkpoint may carry the tied head's copy all the same
    _edit_tensors(tmp_path, {"lm_head.weight": torch.zeros(199, 64)})
    again, _ = load_model(tmp_path)
    assert torch.equal(PagedRun(model).feed(PROMPT), PagedRun(again).feed(PROMPT))


@pytest.mark.parametrize(("dtype", "expected"), [("auto", torch.float32), ("bfloat16", torch.bfloat16)])
def test_dtype_is_the_checkpoints_own_or_the_one_asked_for(tmp_path: Path, dtype: str, expected: torch.dtype) -> None:
    make_checkpoint("llama", tmp_path)
    model, _ = load_model(tmp_path, dtype=dtype)
    assert {p.dtype for p in model.parameters()} == {expected}
    assert torch.get_default_dtype() == torch.float32


def test_dummy_weights_need_no_weight_file_and_are_the_same_each_time(tmp_path: Path) -> None:
    make_checkpoint("mixtral", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    first, _ = load_model(tmp_path, load_format="dummy")
    second, _ = load_model(tmp_path, load_format="dummy")
    logits = PagedRun(first).feed(PROMPT)
    assert logits.isfinite().all()
    assert torch.equal(logits, PagedRun(second).feed(PROMPT))


def test_a_multimodal_checkpoint_serves_its_language_model(tmp_path: Path) -> None:
    # Given Gemma 3 as its multimodal releases are laid out
    make_checkpoint("gemma3", tmp_path)
    plain, _ = load_model(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    nested = {f"language_model.{name}": value for name, value in tensors.items()}
    save_file({**nested, "vision_tower.x.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": raw})
    )
    # When it is loaded, then its text answers are the same
    model, _ = load_model(tmp_path)
    assert torch.equal(PagedRun(plain).feed(PROMPT), PagedRun(model).feed(PROMPT))


Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({Q_PROJ: None}, f"lacks tensor '{Q_PROJ}'$"),
        ({Q_PROJ: None, "model.norm.weight": None}, f"lacks tensor '{Q_PROJ}' and 1 more"),
        ({Q_PROJ: torch.zeros(63, 64)}, rf"tensor '{Q_PROJ}' has shape \[63, 64\], the config asks for \[64, 64\]"),
        ({"model.layers.1.self_attn.q_proj.bias": torch.zeros(64)}, "q_proj.bias' is known to no layer"),
        ({"model.layers.3.mlp.up_proj.weight": torch.zeros(96, 64)}, "layers.3.mlp.up_proj.weight' is known to no"),
    ],
)
def test_a_missing_misshapen_or_unknown_tensor_is_named(
    tmp_path: Path, tensors: dict[str, torch.Tensor | None], message: str
) -> None:
    make_checkpoint("llama", tmp_path)
    _edit_tensors(tmp_path, tensors)
    with pytest.raises(ModelLoadError, match=message):
        load_model(tmp_path)


def test_derived_tables_in_old_checkpoints_are_passed_over(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path)
    _edit_tensors(tmp_path, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
    load_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architecture 'MambaForCausalLM' is not supported; Weir runs"),
        ({"architectures": "DELETE"}, "lacks 'architectures'"),
        ({"hidden_size": "DELETE"}, "lacks 'hidden_size'"),
        ({"hidden_size": "64"}, "'hidden_size' must be a positive whole number, got '64'"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' must be a positive whole number"),
        ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' must be a finite number"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"hidden_act": "relu6"}, "activation 'relu6' is not supported"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope type 'spiral' is not supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, "'factor' must be a finite number, got None"),
        ({"layer_types": ["full_attention"], "sliding_window": 8}, "'layer_types' must list all 3 layers"),
        ({"layer_types": ["mamba"] * 3, "sliding_window": 8}, "layer type 'mamba' is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization 'awq' is not supported"),
    ],
)
def test_a_config_that_cannot_be_served_names_the_key(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    make_checkpoint("llama", tmp_path)
    _edit(tmp_path, **changes)
    with pytest.raises(ModelLoadError, match=message):
        load_model(tmp_path)


def test_a_folder_that_is_no_checkpoint_says_why(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"holds no config\.json"):
        load_model(tmp_path)
    make_checkpoint("llama", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin is a pickle"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ModelLoadError, match="not a readable safetensors file"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"config\.json is not valid JSON"):
        load_model(tmp_path)


def test_an_index_cannot_name_files_outside_the_folder(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "outside.safetensors")
    index = {"weight_map": {"x": "../outside.safetensors"}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match="which is not in"):
        load_model(tmp_path / "model")


def test_bad_load_formats_and_dtypes_are_refused(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path)
    with pytest.raises(ModelLoadError, match="load format 'pickle'"):
        load_model(tmp_path, load_format="pickle")
    with pytest.raises(ModelLoadError, match="dtype 'int3'"):
        load_model(tmp_path, dtype="int3")
