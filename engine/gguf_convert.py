"""GGUF file -> Hugging Face folder, once: dequantised safetensors, config.json, tokenizer.json, chat template.

Reading a 49k vocabulary through `gguf.GGUFReader` takes seconds on every start; the converted folder loads in about
one. The folder appears by one rename, so a killed conversion leaves nothing that could be taken for a whole one.
No torch: a gateway worker may convert.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import ModelLoadError
from engine.gguf_tokenizer import write_tokenizer

logger = logging.getLogger(__name__)

CONVERTER_VERSION = 1  # part of the cache key: raise it when the output changes
SHARD_BYTES = 2 << 30
_LLAMA3_ORIGINAL_CONTEXT = 8192
Array = npt.NDArray[Any]

_DTYPES = ("bfloat16", "float32")
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_GEMMA_BLOCK_NAMES = _BLOCK_NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PHI3_BLOCK_NAMES = _BLOCK_NAMES | {"ffn_up": "mlp.gate_up_proj"}
_MIXTRAL_BLOCK_NAMES = _BLOCK_NAMES | {"ffn_gate_inp": "block_sparse_moe.gate"}
_QWEN_EXPERTS = {
    "gate": "mlp.experts.{e}.gate_proj",
    "up": "mlp.experts.{e}.up_proj",
    "down": "mlp.experts.{e}.down_proj",
}
_MIXTRAL_EXPERTS = {
    "gate": "block_sparse_moe.experts.{e}.w1",
    "up": "block_sparse_moe.experts.{e}.w3",
    "down": "block_sparse_moe.experts.{e}.w2",
}
_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "mixtral": ("MixtralForCausalLM", "mixtral"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
    "gemma2": ("Gemma2ForCausalLM", "gemma2"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
    "phi3": ("Phi3ForCausalLM", "phi3"),
}


def convert_gguf(path: Path, cache_dir: Path, dtype: str = "bfloat16") -> Path:
    """The Hugging Face folder for a .gguf file, made under `cache_dir` on first use.

    Args: dtype "bfloat16" or "float32": what the weights are rounded to after dequantising.
    Raises: ModelLoadError naming the file and the tensor, key or kind that is not supported.
    """
    if dtype not in _DTYPES:
        raise ModelLoadError(f"GGUF weights can be converted to {' or '.join(_DTYPES)}, not to {dtype!r}")
    target = cache_dir / f"{path.stem}-{dtype}-{fingerprint_file(path)[:16]}"
    if (target / "config.json").is_file():
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".converting-", dir=cache_dir))
    try:
        logger.info("converting %s to %s in %s (once)", path.name, dtype, target)
        _write_folder(path, scratch, dtype)
        scratch.chmod(0o755)
        try:
            scratch.rename(target)
        except OSError:
            if not (target / "config.json").is_file():  # else another process converted it meanwhile
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def fingerprint_file(path: Path, *, samples: int = 64, sample_bytes: int = 4096) -> str:
    """Hex SHA-256 over size, the first 64 KiB and evenly spread samples: cheap, and any real change shows in it."""
    size_bytes = path.stat().st_size
    digest = hashlib.sha256(f"{CONVERTER_VERSION}:{size_bytes}:".encode())
    with path.open("rb") as file:
        digest.update(file.read(65536))
        for i in range(samples):
            file.seek(max(0, (size_bytes - sample_bytes) * i // max(1, samples - 1)))
            digest.update(file.read(sample_bytes))
    return digest.hexdigest()


def _reader(path: Path) -> Any:
    """gguf's reader over a plain array: it takes 250,000 slices of a vocabulary, and one of a `memmap` takes ten times
    as long as one of an array (SmolLM2 in all: 5.1 s of CPU against 2.1)."""
    import gguf

    class Reader(gguf.GGUFReader):  # type: ignore[misc]  # untyped
        @property
        def data(self) -> Array:
            return self._plain

        @data.setter
        def data(self, mapped: Array) -> None:
            self._plain = mapped.view(np.ndarray)  # keeps the mapping alive

    return Reader(path)


def _write_folder(path: Path, folder: Path, dtype: str) -> None:
    try:
        reader = _reader(path)
    except (ValueError, OSError, IndexError, KeyError) as exc:
        raise ModelLoadError(f"{path} is not a readable GGUF file: {exc}") from exc
    metadata = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    names = {tensor.name for tensor in reader.tensors}
    architecture = str(metadata.get("general.architecture"))
    if architecture == "llama" and metadata.get("llama.expert_count"):
        architecture = "mixtral"
    if architecture not in _ARCHITECTURES:
        raise ModelLoadError(
            f"{path}: GGUF architecture {architecture!r} is not supported, only {list(_ARCHITECTURES)}"
        )
    try:
        config = _config(metadata, architecture, names, dtype)
        rope_factors = next((t.data for t in reader.tensors if t.name == "rope_freqs.weight"), None)
        if rope_factors is not None:
            config["rope_scaling"] = _llama3_scaling(np.asarray(rope_factors, dtype=np.float32), config)
        _write_weights(_hf_tensors(reader.tensors, architecture, config), folder, dtype)
        write_tokenizer(metadata, folder)
    except ModelLoadError as exc:
        raise ModelLoadError(f"{path}: {exc}") from exc
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": _end_ids(metadata)}), encoding="utf-8")
    # Last: its presence marks the folder as whole.
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _config(metadata: Mapping[str, Any], architecture: str, names: set[str], dtype: str) -> dict[str, Any]:
    """GGUF metadata in config.json's words. Source: llama.cpp's gguf docs, gguf-py constants."""
    prefix = metadata["general.architecture"]

    def get(key: str, default: Any = None) -> Any:
        value = metadata.get(f"{prefix}.{key}", default)
        if isinstance(value, list):  # some converters write one value per layer
            if len(set(value)) != 1:
                raise ModelLoadError(f"{prefix}.{key} differs from layer to layer, which is not supported")
            return value[0]
        return value

    def need(key: str) -> Any:
        value = get(key)
        if value is None:
            raise ModelLoadError(f"the metadata lacks {prefix}.{key}")
        return value

    hidden, heads = need("embedding_length"), need("attention.head_count")
    name, model_type = _ARCHITECTURES[architecture]
    config: dict[str, Any] = {
        "architectures": [name],
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": need("feed_forward_length"),
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": get("attention.key_length", hidden // heads),
        "max_position_embeddings": need("context_length"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon", 1e-6),
        "rope_theta": get("rope.freq_base", 10000.0),
        "vocab_size": len(metadata.get("tokenizer.ggml.tokens") or []),
        "tie_word_embeddings": "output.weight" not in names,
        "dtype": dtype,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
    }
    scaling = get("rope.scaling.type")
    if scaling in ("linear", "yarn"):
        config["rope_scaling"] = {"rope_type": scaling, "factor": get("rope.scaling.factor", 1.0)}
        original = get("rope.scaling.original_context_length")
        if original:
            config["rope_scaling"]["original_max_position_embeddings"] = original
    if get("attention.sliding_window"):
        config["sliding_window"] = get("attention.sliding_window")
    extra = _EXTRA_CONFIG.get(architecture)
    return config | (extra(get, config) if extra else {})


def _llama_extra(get: Callable[..., Any], config: Mapping[str, Any]) -> dict[str, Any]:
    return {"attention_bias": False, "head_dim": get("rope.dimension_count", config["head_dim"])}


def _mixtral_extra(get: Callable[..., Any], _config: Mapping[str, Any]) -> dict[str, Any]:
    return {"num_local_experts": get("expert_count"), "num_experts_per_tok": get("expert_used_count")}


def _qwen_moe_extra(get: Callable[..., Any], _config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "num_experts": get("expert_count"),
        "num_experts_per_tok": get("expert_used_count"),
        "moe_intermediate_size": get("expert_feed_forward_length"),
        "norm_topk_prob": True,  # llama.cpp's graph always normalises for this architecture
    }


def _gemma2_extra(get: Callable[..., Any], config: Mapping[str, Any]) -> dict[str, Any]:
    # The file does not hold the query scale: 27B divides by hidden / heads, the others by head_dim (llama.cpp).
    is_27b = config["num_hidden_layers"] == 46
    return {
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"]
        if is_27b
        else config["head_dim"],
        "attn_logit_softcapping": get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": get("final_logit_softcapping", 30.0),
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _gemma3_extra(get: Callable[..., Any], config: Mapping[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    is_27b = layers == 62
    pattern = int(get("attention.sliding_window_pattern", 6))
    return {
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"]
        if is_27b
        else config["head_dim"],
        "rope_local_base_freq": 10000.0,  # hard-wired in the architecture, not in the file
        "layer_types": ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(layers)],
        "hidden_activation": "gelu_pytorch_tanh",
    }


_EXTRA_CONFIG: dict[str, Callable[[Callable[..., Any], Mapping[str, Any]], dict[str, Any]]] = {
    "llama": _llama_extra,
    "mixtral": _mixtral_extra,
    "qwen3moe": _qwen_moe_extra,
    "gemma2": _gemma2_extra,
    "gemma3": _gemma3_extra,
}


def _llama3_scaling(factors: Array, config: Mapping[str, Any]) -> dict[str, Any]:
    """Llama 3.1's rope scaling: the file holds its effect, one divisor a frequency, not its parameters.

    The only ones ever published share low 1, high 4 and 8192, so the factor is the largest divisor; that the rest
    follows from it is checked. Raises: ModelLoadError where it does not.
    """
    factor, low, high, original = float(factors.max()), 1.0, 4.0, _LLAMA3_ORIGINAL_CONTEXT
    dim = config["head_dim"]
    inv_freq = config["rope_theta"] ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
    wavelength = 2 * math.pi / inv_freq
    smooth = (original / wavelength - low) / (high - low)
    expected = 1 / ((1 - smooth) / factor + smooth)
    expected = np.where(wavelength < original / high, 1.0, np.where(wavelength > original / low, factor, expected))
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise ModelLoadError("tensor rope_freqs.weight does not follow Llama 3's scaling rule: not supported")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _end_ids(metadata: Mapping[str, Any]) -> list[int]:
    """End of text and, for chat models, end of turn."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
    return sorted({metadata[key] for key in keys if metadata.get(key) is not None})


def _hf_tensors(tensors: Any, architecture: str, config: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """(Hugging Face name, float32 array) of every tensor, one dequantised at a time."""
    import gguf

    for tensor in tensors:
        if tensor.name == "rope_freqs.weight":
            continue
        try:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as exc:
            raise ModelLoadError(f"tensor {tensor.name} is of type {tensor.tensor_type.name}: not supported") from exc
        # GGUF lists dimensions fastest first; gguf-py keeps the data in the usual order but flat for F32.
        shape = tuple(int(n) for n in reversed(tensor.shape))
        yield from _rename(tensor.name, values.reshape(shape), architecture, config)


def _rename(name: str, values: Array, architecture: str, config: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    if architecture.startswith("gemma") and "norm" in name:
        values = values - 1  # Gemma's checkpoints keep w where the norm multiplies by 1 + w; GGUF keeps the sum
    if name in _TOP_NAMES:
        yield _TOP_NAMES[name], values
        return
    match = re.fullmatch(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)", name)
    if match is None:
        raise ModelLoadError(f"tensor {name} is not known for architecture {architecture!r}")
    layer, part, suffix = match.groups()
    base = f"model.layers.{layer}."
    expert = re.fullmatch(r"ffn_(gate|up|down)_exps", part)
    if expert is not None:
        pattern = (_MIXTRAL_EXPERTS if architecture == "mixtral" else _QWEN_EXPERTS)[expert[1]]
        for e, rows in enumerate(values):
            yield f"{base}{pattern.format(e=e)}.{suffix}", rows
        return
    table = _NAME_TABLES.get(architecture, _BLOCK_NAMES)
    if part not in table:
        raise ModelLoadError(f"tensor {name} is not known for architecture {architecture!r}")
    if architecture in ("llama", "mixtral") and part in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
        values = _unpermute(values, heads)
    yield f"{base}{table[part]}.{suffix}", values


_NAME_TABLES = {
    "gemma2": _GEMMA_BLOCK_NAMES,
    "gemma3": _GEMMA_BLOCK_NAMES,
    "phi3": _PHI3_BLOCK_NAMES,
    "mixtral": _MIXTRAL_BLOCK_NAMES,
}


def _unpermute(values: Array, num_heads: int) -> Array:
    """llama.cpp rotates neighbouring pairs, Hugging Face the two halves of a head: rows are put back in halves."""
    half = values.shape[0] // num_heads // 2
    paired = values.reshape(num_heads, half, 2, *values.shape[1:])
    return paired.swapaxes(1, 2).reshape(values.shape)


def _write_weights(tensors: Iterator[tuple[str, Array]], folder: Path, dtype: str) -> None:
    """Shards of at most about `SHARD_BYTES` plus their index; one shard is in memory at a time."""
    from safetensors import TensorSpec, serialize_file

    index: dict[str, str] = {}
    shard: dict[str, Array] = {}
    shard_bytes = total_bytes = count = 0

    def flush() -> None:
        nonlocal shard, shard_bytes, count
        if not shard:
            return
        count += 1
        name = f"model-{count:05d}.safetensors"
        specs = {
            key: TensorSpec(dtype=dtype, shape=rows.shape, data_ptr=rows.ctypes.data, data_len=rows.nbytes)
            for key, rows in shard.items()
        }
        serialize_file(specs, str(folder / name), {"format": "pt"})
        index.update(dict.fromkeys(shard, name))
        shard, shard_bytes = {}, 0

    for name, values in tensors:
        rounded = _round(values, dtype)
        if shard_bytes + rounded.nbytes > SHARD_BYTES:
            flush()
        shard[name] = rounded
        shard_bytes += rounded.nbytes
        total_bytes += rounded.nbytes
    flush()
    if count == 1:
        (folder / "model-00001.safetensors").rename(folder / "model.safetensors")
        return
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total_bytes}, "weight_map": index}), encoding="utf-8"
    )


def _round(values: Array, dtype: str) -> Array:
    """float32 as it is, bfloat16 as its bits in uint16; C order."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if dtype == "float32":
        return values
    # Round to nearest, ties to even, as torch does; weights hold no NaN.
    bits = values.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    return rounded.astype(np.uint16)
