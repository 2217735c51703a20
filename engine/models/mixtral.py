"""Mixtral (arXiv:2401.04088): Mistral with eight experts in place of every MLP."""

from __future__ import annotations

from torch import nn

from engine.errors import ModelLoadError
from engine.layers.moe import MIXTRAL_NAMES, SparseMoe
from engine.model_config import ModelConfig
from engine.models.llama import LlamaForCausalLM, LlamaLayer, LlamaModel


class MixtralLayer(LlamaLayer):
    mlp_name = "block_sparse_moe"

    def make_mlp(self, config: ModelConfig, layer_index: int) -> nn.Module:  # noqa: ARG002  # every layer is alike
        if config.moe is None:
            raise ModelLoadError("Mixtral's config.json lacks 'num_local_experts'")
        return SparseMoe(config, config.moe, MIXTRAL_NAMES)


class MixtralModel(LlamaModel):
    layer_class = MixtralLayer


class MixtralForCausalLM(LlamaForCausalLM):
    model_class = MixtralModel
