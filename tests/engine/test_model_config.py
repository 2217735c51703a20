"""config.json in its old and new spellings, and what families leave unsaid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelLoadError
from engine.model_config import LayerGroup, ModelConfig, load_model_config, parse_model_config

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}


def _parse(**changes: Any) -> ModelConfig:
    return parse_model_config({**BASE, **changes})


def test_old_and_new_spellings_read_alike() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    old = _parse(torch_dtype="float16", rope_theta=5e5, rope_scaling={"type": "llama3", **scaling})
    new = _parse(dtype="float16", rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **scaling})
    assert old == new
    assert old.rope.theta == 5e5
    assert old.rope.original_max_position == 64


def test_gemma3_old_and_new_spellings_read_alike() -> None:
    gemma = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "sliding_window": 8, "head_dim": 32}
    old = _parse(**gemma, rope_theta=1e6, rope_local_base_freq=1e4, sliding_window_pattern=6)
    kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(12)]
    ropes = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert old == _parse(**gemma, layer_types=kinds, rope_parameters=ropes)
    assert old.layer_groups == (LayerGroup(None, (5, 11)), LayerGroup(8, (0, 1, 2, 3, 4, 6, 7, 8, 9, 10)))
    assert old.tie_word_embeddings
    assert old.embedding_scale == 8.0


def test_defaults_follow_the_family() -> None:
    plain = _parse()
    assert (plain.num_kv_heads, plain.head_dim, plain.attention_scale) == (4, 16, 0.25)
    assert plain.layer_groups == (LayerGroup(None, tuple(range(12))),)
    assert _parse(model_type="qwen2").qkv_bias
    assert not _parse(model_type="qwen2").o_bias
    assert _parse(model_type="qwen3").qk_norm


@pytest.mark.parametrize(
    ("changes", "windowed"),
    [
        ({"model_type": "mistral", "sliding_window": 8}, list(range(12))),
        ({"model_type": "mistral", "sliding_window": None}, []),
        ({"model_type": "gemma2", "sliding_window": 8}, [0, 2, 4, 6, 8, 10]),
        ({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": False}, []),
        ({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 9}, [9, 10, 11]),
    ],
)
def test_windows_before_layer_types_follow_each_familys_rule(changes: dict[str, Any], windowed: list[int]) -> None:
    assert [i for i, window in enumerate(_parse(**changes).layer_windows) if window == 8] == windowed


def test_end_ids_come_from_the_generation_config_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**BASE, "eos_token_id": 2, "bos_token_id": 1}))
    assert load_model_config(tmp_path).eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    config = load_model_config(tmp_path)
    assert config.eos_token_ids == (2, 7)
    assert config.bos_token_id == 1


def test_longrope_without_a_factor_takes_it_from_the_two_contexts() -> None:
    rope = {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = _parse(model_type="phi3", rope_scaling=rope, original_max_position_embeddings=64)
    assert config.rope.rope_type == "longrope"
    assert config.rope.factor == 4.0


def test_an_oversized_or_unreadable_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(" " * ((4 << 20) + 1))
    with pytest.raises(ModelLoadError, match="more than the limit"):
        load_model_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ModelLoadError, match="must hold a JSON object, got list"):
        load_model_config(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelLoadError, match="not valid JSON"):
        load_model_config(tmp_path)
