"""`ModelConfig`: what a checkpoint's config.json says, in one frozen object that every other file reads.

A GGUF file has no reader of its own here: `engine/gguf_convert.py` writes its metadata as a config.json first.
Both spellings of transformers are understood: `rope_theta` + `rope_scaling` (4.x) and `rope_parameters` (5.x).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError

MAX_CONFIG_BYTES = 4 << 20
CHECKPOINT_QUANTIZATIONS = ("mxfp4",)  # dequantised while loading
ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary embedding of one kind of layer. `rotary_dim` <= head_dim dimensions of each head are rotated.

    Field names are transformers'. `original_max_position` is the context the model was first trained on.
    """

    rope_type: str = "default"
    theta: float = 10000.0
    rotary_dim: int
    factor: float = 1.0
    original_max_position: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MoeConfig:
    """Mixture of experts. `sparse_layers` are the layers that have experts; the others keep a dense MLP."""

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    norm_topk_prob: bool
    sparse_layers: frozenset[int]
    swiglu_limit: float = 7.0


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share one KV pool and one block table: `window` tokens are looked back at, None = all."""

    window: int | None
    layers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer. Sizes are in elements; `layer_windows[i]` is layer i's sliding window or None.

    `attention_scale` multiplies q·k before the softmax. `local_rope` serves the windowed layers when they have a
    rotary embedding of their own (Gemma 3). `dtype` is the checkpoint's ("bfloat16", "float16" or "float32").
    """

    architecture: str
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_eps: float
    hidden_act: str
    tie_word_embeddings: bool
    rope: RopeConfig
    local_rope: RopeConfig | None = None
    layer_windows: tuple[int | None, ...]
    attention_scale: float
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    attention_softcap: float | None = None
    final_softcap: float | None = None
    embedding_scale: float | None = None
    moe: MoeConfig | None = None
    checkpoint_quantization: str | None = None
    dtype: str = "bfloat16"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """Layers grouped by window, full attention first, then by falling window."""
        windows = sorted(set(self.layer_windows), key=lambda w: math.inf if w is None else w, reverse=True)
        return tuple(
            LayerGroup(window, tuple(i for i, w in enumerate(self.layer_windows) if w == window)) for window in windows
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """KV cache bytes one token takes in all layers at 2 bytes an element."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * 2


def load_model_config(folder: Path) -> ModelConfig:
    """Reads `folder`/config.json (and generation_config.json for the end ids).

    Raises: ModelLoadError naming the file and the key that is missing, of a wrong type or not supported.
    """
    path = folder / "config.json"
    raw = _read_json(path)
    if raw is None:
        raise ModelLoadError(f"{folder} holds no config.json: it is not a Hugging Face model folder")
    generation = _read_json(folder / "generation_config.json") or {}
    return parse_model_config(raw, source=str(path), generation=generation)


def parse_model_config(
    raw: Mapping[str, Any], *, source: str = "config.json", generation: Mapping[str, Any] | None = None
) -> ModelConfig:
    """The same from a dict. `source` is named in errors; `generation` is generation_config.json.

    Raises: ModelLoadError.
    """
    text = raw.get("text_config")
    if isinstance(text, dict):  # a multimodal wrapper (Gemma 3): the language model's settings lie one level down
        inherited = {k: raw[k] for k in ("architectures", "dtype", "torch_dtype") if k in raw}
        raw = {**inherited, **{k: v for k, v in text.items() if v is not None}}
    return _Reader(raw, source).config(generation or {})


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    size_bytes = path.stat().st_size
    if size_bytes > MAX_CONFIG_BYTES:
        raise ModelLoadError(f"{path} has {size_bytes} bytes, more than the limit of {MAX_CONFIG_BYTES}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as exc:
        raise ModelLoadError(f"{path} is not valid JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


class _Reader:
    """Typed access to one config.json; every complaint names the file and the key."""

    def __init__(self, raw: Mapping[str, Any], source: str) -> None:
        self.raw = raw
        self.source = source
        self.model_type = str(raw.get("model_type", ""))

    def config(self, generation: Mapping[str, Any]) -> ModelConfig:
        architecture = self._architecture()
        hidden = self.count("hidden_size")
        heads = self.count("num_attention_heads")
        layers = self.count("num_hidden_layers")
        head_dim = self.count("head_dim", hidden // heads)
        kv_heads = self.count("num_key_value_heads", heads)
        if heads % kv_heads:
            raise ModelLoadError(
                f"{self.source}: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
            )
        rope, local_rope = self._ropes(head_dim)
        values: dict[str, Any] = {
            "architecture": architecture,
            "model_type": self.model_type,
            "vocab_size": self.count("vocab_size"),
            "hidden_size": hidden,
            "intermediate_size": self.count("intermediate_size"),
            "num_layers": layers,
            "num_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim": head_dim,
            "max_position": self.count("max_position_embeddings"),
            "norm_eps": self.number("rms_norm_eps", 1e-6),
            "hidden_act": str(self.raw.get("hidden_activation") or self.raw.get("hidden_act") or "silu"),
            "tie_word_embeddings": bool(self.raw.get("tie_word_embeddings", False)),
            "rope": rope,
            "local_rope": local_rope,
            "layer_windows": self._layer_windows(layers),
            "attention_scale": head_dim**-0.5,
            "qkv_bias": bool(self.raw.get("attention_bias", False)),
            "o_bias": bool(self.raw.get("attention_bias", False)),
            "mlp_bias": bool(self.raw.get("mlp_bias", False)),
            "checkpoint_quantization": self._checkpoint_quantization(),
            "dtype": str(self.raw.get("dtype") or self.raw.get("torch_dtype") or "float32").removeprefix("torch."),
            "bos_token_id": self._bos(),
            "eos_token_ids": _as_ids(generation.get("eos_token_id")) or _as_ids(self.raw.get("eos_token_id")),
        }
        family = _FAMILIES.get(self.model_type)
        if family is not None:
            values.update(family(self, values))
        return ModelConfig(**values)

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number. Raises: ModelLoadError."""
        value = self.raw.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelLoadError(f"{self.source} lacks {key!r}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelLoadError(f"{self.source}: {key!r} must be a positive whole number, got {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number. Raises: ModelLoadError."""
        value = self.raw.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ModelLoadError(f"{self.source}: {key!r} must be a finite number, got {value!r}")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return None if self.raw.get(key) is None else self.number(key)

    def _architecture(self) -> str:
        names = self.raw.get("architectures")
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise ModelLoadError(f"{self.source} lacks 'architectures': a list with the model class's name")
        return names[0]

    def _checkpoint_quantization(self) -> str | None:
        quantization = self.raw.get("quantization_config")
        if not isinstance(quantization, dict):
            return None
        method = str(quantization.get("quant_method"))
        if method not in CHECKPOINT_QUANTIZATIONS:
            raise ModelLoadError(f"{self.source}: a checkpoint with quantization {method!r} is not supported")
        return method

    def _bos(self) -> int | None:
        ids = _as_ids(self.raw.get("bos_token_id"))
        return ids[0] if ids else None

    def _layer_windows(self, layers: int) -> tuple[int | None, ...]:
        """`layer_types` where given, else the family's older keys, else one kind for all layers."""
        window = self.raw.get("sliding_window")
        kinds = self.raw.get("layer_types")
        if window is None or self.raw.get("use_sliding_window") is False:
            return (None,) * layers
        window = self.count("sliding_window")
        if kinds is None:
            return tuple(window if self._is_sliding(i) else None for i in range(layers))
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise ModelLoadError(f"{self.source}: 'layer_types' must list all {layers} layers")
        unknown = set(kinds) - {"full_attention", "sliding_attention"}
        if unknown:
            raise ModelLoadError(f"{self.source}: layer type {sorted(map(str, unknown))[0]!r} is not supported")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)

    def _is_sliding(self, layer: int) -> bool:
        """Before `layer_types` existed each family had its own rule (transformers 4.x configuration files)."""
        if self.model_type in ("gemma3_text", "gemma3"):
            return bool((layer + 1) % self.count("sliding_window_pattern", 6))
        if self.model_type in ("gemma2", "gpt_oss"):
            return layer % 2 == 0
        if self.model_type in ("qwen2", "qwen3", "qwen3_moe"):
            return bool(self.raw.get("use_sliding_window")) and layer >= int(self.raw.get("max_window_layers") or 0)
        return True

    def _ropes(self, head_dim: int) -> tuple[RopeConfig, RopeConfig | None]:
        parameters = self.raw.get("rope_parameters")
        if isinstance(parameters, dict) and isinstance(parameters.get("full_attention"), dict):
            local = parameters.get("sliding_attention")
            return self._rope(parameters["full_attention"], head_dim), (
                self._rope(local, head_dim) if isinstance(local, dict) else None
            )
        scaling = parameters if isinstance(parameters, dict) else self.raw.get("rope_scaling")
        full = self._rope(scaling if isinstance(scaling, dict) else {}, head_dim)
        theta = self.optional_number("rope_local_base_freq")
        if theta is None:
            return full, None
        return full, RopeConfig(theta=theta, rotary_dim=full.rotary_dim)

    def _rope(self, spec: Mapping[str, Any], head_dim: int) -> RopeConfig:
        inner = _Reader({**self.raw, **spec}, self.source)
        rope_type = str(spec.get("rope_type") or spec.get("type") or "default")
        if rope_type in ("su", "mrope"):
            rope_type = "longrope" if rope_type == "su" else "default"
        if rope_type not in ROPE_TYPES:
            raise ModelLoadError(f"{self.source}: rope type {rope_type!r} is not supported, only {ROPE_TYPES}")
        original = inner.raw.get("original_max_position_embeddings")
        if original is None and rope_type in ("llama3", "yarn", "longrope"):
            original = self.raw.get("max_position_embeddings")
        default_factor: float | None = None
        if rope_type in ("default", "longrope"):
            default_factor = 1.0
        if rope_type == "longrope" and original:
            default_factor = self.count("max_position_embeddings") / float(original)
        return RopeConfig(
            rope_type=rope_type,
            theta=inner.number("rope_theta", 10000.0),
            rotary_dim=int(head_dim * inner.number("partial_rotary_factor", 1.0)),
            factor=inner.number("factor", default_factor),
            original_max_position=None if original is None else int(original),
            low_freq_factor=inner.number("low_freq_factor", 1.0),
            high_freq_factor=inner.number("high_freq_factor", 4.0),
            beta_fast=inner.number("beta_fast", 32.0),
            beta_slow=inner.number("beta_slow", 1.0),
            attention_factor=inner.optional_number("attention_factor"),
            mscale=inner.optional_number("mscale"),
            mscale_all_dim=inner.optional_number("mscale_all_dim"),
            truncate=bool(spec.get("truncate", True)),
            short_factor=tuple(float(v) for v in spec.get("short_factor") or ()),
            long_factor=tuple(float(v) for v in spec.get("long_factor") or ()),
        )


def _as_ids(value: object) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if isinstance(value, list):
        return tuple(v for v in value if isinstance(v, int) and not isinstance(v, bool))
    return ()


def _gemma2(reader: _Reader, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_gemma3(reader, values),
        "attention_softcap": reader.optional_number("attn_logit_softcapping"),
        "final_softcap": reader.optional_number("final_logit_softcapping"),
        "qk_norm": False,
    }


def _gemma3(reader: _Reader, values: Mapping[str, Any]) -> dict[str, Any]:
    scalar = reader.number("query_pre_attn_scalar", float(values["head_dim"]))
    return {
        "attention_scale": scalar**-0.5,
        "embedding_scale": math.sqrt(values["hidden_size"]),
        "tie_word_embeddings": bool(reader.raw.get("tie_word_embeddings", True)),
        "hidden_act": str(reader.raw.get("hidden_activation") or "gelu_pytorch_tanh"),
        "qk_norm": True,
        "attention_softcap": reader.optional_number("attn_logit_softcapping"),
        "final_softcap": reader.optional_number("final_logit_softcapping"),
    }


def _qwen2(_reader: _Reader, _values: Mapping[str, Any]) -> dict[str, Any]:
    return {"qkv_bias": True, "o_bias": False}  # Qwen2 has no key for it: the code always adds the bias


def _qwen3(_reader: _Reader, _values: Mapping[str, Any]) -> dict[str, Any]:
    return {"qk_norm": True}


def _qwen3_moe(reader: _Reader, values: Mapping[str, Any]) -> dict[str, Any]:
    step = reader.count("decoder_sparse_step", 1)
    dense = set(reader.raw.get("mlp_only_layers") or ())
    sparse = frozenset(i for i in range(values["num_layers"]) if i not in dense and (i + 1) % step == 0)
    return {
        "qk_norm": True,
        "moe": MoeConfig(
            num_experts=reader.count("num_experts", reader.raw.get("num_local_experts")),
            num_experts_per_token=reader.count("num_experts_per_tok"),
            intermediate_size=reader.count("moe_intermediate_size"),
            norm_topk_prob=bool(reader.raw.get("norm_topk_prob", False)),
            sparse_layers=sparse,
        ),
    }


def _mixtral(reader: _Reader, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "moe": MoeConfig(
            num_experts=reader.count("num_local_experts"),
            num_experts_per_token=reader.count("num_experts_per_tok"),
            intermediate_size=values["intermediate_size"],
            norm_topk_prob=True,
            sparse_layers=frozenset(range(values["num_layers"])),
        )
    }


def _gpt_oss(reader: _Reader, values: Mapping[str, Any]) -> dict[str, Any]:
    moe = _mixtral(reader, values)["moe"]
    return {
        "moe": replace(moe, swiglu_limit=reader.number("swiglu_limit", 7.0)),
        "qkv_bias": bool(reader.raw.get("attention_bias", True)),
        "o_bias": bool(reader.raw.get("attention_bias", True)),
    }


# What a family leaves unsaid in its config.json because its own code hard-wires it.
_FAMILIES: dict[str, Callable[[_Reader, Mapping[str, Any]], dict[str, Any]]] = {
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "gpt_oss": _gpt_oss,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
