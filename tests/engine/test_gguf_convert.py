"""GGUF files written here by llama.cpp's rules, from tiny checkpoints, become folders that answer as the originals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from engine import gguf_convert
from engine.errors import ModelLoadError
from engine.gguf_convert import convert_gguf
from engine.loader import load_model
from engine.tokenizer import Tokenizer
from tests.engine.model_harness import PagedRun
from tests.engine.models.checkpoints import VOCAB, make_checkpoint

# case -> (GGUF architecture, its key prefix)
ARCHITECTURES = {
    "llama": "llama",
    "llama_rope_llama3": "llama",
    "llama_rope_linear": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "phi3": "phi3",
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
}
_ENUM = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}


def write_gguf(case: str, reference: PreTrainedModel, path: Path, *, extra: dict[str, Any] | None = None) -> None:
    """A GGUF file of a transformers model, tensor names from gguf-py's own map, rows permuted as llama.cpp's are."""
    config = reference.config
    arch = ARCHITECTURES[case]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    ropes = config.rope_parameters
    writer.add_rope_freq_base((ropes.get("full_attention") or ropes)["rope_theta"])
    if case == "llama_rope_linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(ropes["factor"])
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if case in ("mixtral", "qwen3_moe"):
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", config.intermediate_size))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    writer.add_token_types([1] * VOCAB)
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(1)
    for key, value in (extra or {}).items():
        writer.add_array(key, value) if isinstance(value, list) else writer.add_string(key, value)
    _add_tensors(writer, case, reference)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensors(writer: gguf.GGUFWriter, case: str, reference: PreTrainedModel) -> None:
    config = reference.config
    names = gguf.get_tensor_name_map(_ENUM[ARCHITECTURES[case]], config.num_hidden_layers)
    for name, tensor in reference.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if ARCHITECTURES[case] == "llama" and (".q_proj" in name or ".k_proj" in name):
            heads = config.num_attention_heads if ".q_proj" in name else config.num_key_value_heads
            values = values.reshape(heads, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
        if case.startswith("gemma") and "norm" in name:
            values = values + 1
        base, _, suffix = name.rpartition(".")
        if name.endswith("experts.gate_up_proj"):  # transformers keeps gate and up of all experts in one tensor
            layer = name.split(".")[2]
            for part, rows in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
                writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.weight", np.ascontiguousarray(rows))
        elif name.endswith("experts.down_proj"):
            writer.add_tensor(f"blk.{name.split('.')[2]}.ffn_down_exps.weight", values)
        else:
            target = names.get_name(base)
            assert target is not None, name
            writer.add_tensor(f"{target}.{suffix}", np.ascontiguousarray(values, dtype=np.float32))
    if case == "llama_rope_llama3":
        ratio = 10000.0 ** (-np.arange(0, 16, 2) / 16) / reference.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor("rope_freqs.weight", ratio.astype(np.float32))


@pytest.mark.parametrize("case", ARCHITECTURES)
def test_a_converted_file_answers_as_the_original(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a tiny checkpoint written as GGUF (the file does not hold what the tiny model sets apart from the family)
    monkeypatch.setattr(gguf_convert, "_LLAMA3_ORIGINAL_CONTEXT", 64)
    overrides = {"mlp_only_layers": []} if case == "qwen3_moe" else {}  # llama.cpp has no dense layers there
    reference = make_checkpoint(case, tmp_path / "original", **overrides)
    write_gguf(case, reference, tmp_path / "tiny.gguf")
    # When it is converted and loaded
    folder = convert_gguf(tmp_path / "tiny.gguf", tmp_path / "cache", "float32")
    if case.startswith("gemma"):  # not in GGUF metadata: derived from the published sizes
        raw = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**raw, "query_pre_attn_scalar": 24}))
    model, _ = load_model(folder)
    # Then its logits are the original's
    ids = torch.randint(3, VOCAB, (1, 60), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = reference(ids).logits[0]
    torch.testing.assert_close(PagedRun(model).feed(ids[0].tolist()), expected, atol=1e-4, rtol=0)


def test_quantised_tensors_are_dequantised_as_gguf_does(tmp_path: Path) -> None:
    path = tmp_path / "q.gguf"
    values = np.random.default_rng(0).normal(size=(4, 256)).astype(np.float32)
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q5_0, gguf.GGMLQuantizationType.Q4_1):
        packed = gguf.quantize(values, kind)
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tensor("token_embd.weight", packed, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        tensors = gguf.GGUFReader(path).tensors
        ((name, result),) = gguf_convert._hf_tensors(tensors, "llama", {})
        assert name == "model.embed_tokens.weight"
        np.testing.assert_array_equal(result, gguf.dequantize(packed, kind))
        assert np.abs(result - values).max() < 0.4


def test_bfloat16_rounds_as_torch_does() -> None:
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    bits = gguf_convert._round(values, "bfloat16")
    assert torch.equal(torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16), torch.from_numpy(values).bfloat16())


def test_large_models_are_written_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = make_checkpoint("llama", tmp_path / "original")
    write_gguf("llama", reference, tmp_path / "tiny.gguf")
    monkeypatch.setattr(gguf_convert, "SHARD_BYTES", 100_000)
    folder = convert_gguf(tmp_path / "tiny.gguf", tmp_path / "cache", "float32")
    assert len(list(folder.glob("*.safetensors"))) > 2
    model, _ = load_model(folder)
    state = reference.state_dict()
    assert torch.equal(model.lm_head.weight, state["lm_head.weight"])


def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a conversion that is stopped half way
    reference = make_checkpoint("llama", tmp_path / "original")
    write_gguf("llama", reference, tmp_path / "tiny.gguf")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gguf_convert, "write_tokenizer", stop)
        with pytest.raises(KeyboardInterrupt):
            convert_gguf(tmp_path / "tiny.gguf", tmp_path / "cache")
    # Then no folder is left, and the next start converts anew
    assert not list((tmp_path / "cache").iterdir())
    assert (convert_gguf(tmp_path / "tiny.gguf", tmp_path / "cache") / "config.json").is_file()


def test_a_changed_file_is_converted_again(tmp_path: Path) -> None:
    reference = make_checkpoint("llama", tmp_path / "original")
    write_gguf("llama", reference, tmp_path / "tiny.gguf")
    first = convert_gguf(tmp_path / "tiny.gguf", tmp_path / "cache")
    reference.lm_head.weight.data.neg_()
    write_gguf("llama", reference, tmp_path / "tiny.gguf")
    assert convert_gguf(tmp_path / "tiny.gguf", tmp_path / "cache") != first


def test_chat_template_and_end_ids_come_along(tmp_path: Path) -> None:
    reference = make_checkpoint("llama", tmp_path / "original")
    write_gguf("llama", reference, tmp_path / "tiny.gguf", extra={"tokenizer.chat_template": "{{ messages }}"})
    folder = convert_gguf(tmp_path / "tiny.gguf", tmp_path / "cache")
    assert (folder / "chat_template.jinja").read_text() == "{{ messages }}"
    _, config = load_model(folder)
    assert config.eos_token_ids == (2,)
    assert Tokenizer.from_folder(folder).bos_token_id == 1


def test_an_unknown_architecture_tensor_or_dtype_is_named(tmp_path: Path) -> None:
    reference = make_checkpoint("llama", tmp_path / "original")
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "rwkv6")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match="architecture 'rwkv6' is not supported"):
        convert_gguf(path, tmp_path / "cache")
    write_gguf("llama", reference, path)
    with pytest.raises(ModelLoadError, match="int3"):
        convert_gguf(path, tmp_path / "cache", "int3")
    with pytest.raises(ModelLoadError, match=r"tensor blk\.0\.ssm_in\.weight is not known"):
        list(gguf_convert._rename("blk.0.ssm_in.weight", np.zeros(1), "llama", {}))
