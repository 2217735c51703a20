"""Architecture name in config.json -> the class that runs it. A new architecture is one line here and one file."""

from __future__ import annotations

import importlib

from engine.errors import ModelLoadError
from engine.models.base import CausalLM

ARCHITECTURES: dict[str, tuple[str, str]] = {
    "Gemma2ForCausalLM": ("gemma", "GemmaForCausalLM"),
    "Gemma3ForCausalLM": ("gemma", "GemmaForCausalLM"),
    "Gemma3ForConditionalGeneration": ("gemma", "GemmaForCausalLM"),
    "GptOssForCausalLM": ("gpt_oss", "GptOssForCausalLM"),
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    "MistralForCausalLM": ("llama", "LlamaForCausalLM"),
    "MixtralForCausalLM": ("mixtral", "MixtralForCausalLM"),
    "Phi3ForCausalLM": ("phi3", "Phi3ForCausalLM"),
    "Qwen2ForCausalLM": ("llama", "LlamaForCausalLM"),
    "Qwen3ForCausalLM": ("llama", "LlamaForCausalLM"),
    "Qwen3MoeForCausalLM": ("qwen3_moe", "Qwen3MoeForCausalLM"),
}


def model_class(architecture: str) -> type[CausalLM]:
    """Raises: ModelLoadError naming the architecture and those that are supported."""
    if architecture not in ARCHITECTURES:
        raise ModelLoadError(
            f"architecture {architecture!r} is not supported; Weir runs {', '.join(sorted(ARCHITECTURES))}"
        )
    module, name = ARCHITECTURES[architecture]
    found: type[CausalLM] = getattr(importlib.import_module(f"engine.models.{module}"), name)
    return found
