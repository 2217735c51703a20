"""Tiny random checkpoints made with transformers, one per architecture or special setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 199
_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_HALF_DIM = 8
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(_HALF_DIM)],
    "long_factor": [1.0 + 0.5 * i for i in range(_HALF_DIM)],
    "original_max_position_embeddings": 512,
    "rope_theta": 10000.0,
}
# name -> (transformers' configuration class, model class, settings beside `_SMALL`)
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "llama_tied_mha": ("LlamaConfig", "LlamaForCausalLM", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama_biased": ("LlamaConfig", "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama_rope_llama3": ("LlamaConfig", "LlamaForCausalLM", {"rope_parameters": _LLAMA3}),
    "llama_rope_linear": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    ),
    "llama_rope_yarn": ("LlamaConfig", "LlamaForCausalLM", {"rope_parameters": _YARN}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"sliding_window": 20}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen2_windowed": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 32}),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {"sliding_window": 20, "query_pre_attn_scalar": 24, "tie_word_embeddings": True},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {"sliding_window": 20, "query_pre_attn_scalar": 24, "tie_word_embeddings": True, "num_hidden_layers": 7},
    ),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {"sliding_window": 20}),
    "phi4_mini": (
        "Phi3Config",
        "Phi3ForCausalLM",
        {
            "tie_word_embeddings": True,
            "head_dim": 16,
            "rope_parameters": {
                **LONGROPE,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0] * 6,
                "long_factor": [2.0] * 6,
            },
            "original_max_position_embeddings": 512,
        },
    ),
    "phi3_longrope": (
        "Phi3Config",
        "Phi3ForCausalLM",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 512},
    ),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 20, "num_hidden_layers": 4},
    ),
}


def make_checkpoint(
    case: str, folder: Path, *, max_shard_size: str = "5GB", **overrides: Any
) -> transformers.PreTrainedModel:
    """Saves a seeded random checkpoint and returns transformers' own model of it, fp32, eager attention.

    Weights are spread so widely that logits reach tens: rounding differences stay small beside what a wrong rope,
    window, cap or norm would do.
    """
    config_name, model_name, settings = CASES[case]
    config = getattr(transformers, config_name)(**{**_SMALL, **settings, **overrides})
    config._attn_implementation = "eager"
    model = getattr(transformers, model_name)(config).eval()
    generator = torch.Generator().manual_seed(sum(map(ord, case)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.normal_(0.0 if "gemma" in case else 1.0, 0.3, generator=generator)
            elif parameter.dim() == 1 or name.endswith("bias"):
                parameter.normal_(0, 0.5, generator=generator)
            else:
                parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5, generator=generator)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    model.generation_config.eos_token_id = None
    return model
