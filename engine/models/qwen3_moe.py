"""Qwen3-MoE (arXiv:2505.09388): Qwen3 with experts in place of the MLP of all or some layers."""

from __future__ import annotations

from torch import nn

from engine.layers.moe import QWEN_NAMES, SparseMoe
from engine.model_config import ModelConfig
from engine.models.llama import LlamaForCausalLM, LlamaLayer, LlamaModel


class Qwen3MoeLayer(LlamaLayer):
    def make_mlp(self, config: ModelConfig, layer_index: int) -> nn.Module:
        if config.moe is None or layer_index not in config.moe.sparse_layers:
            return super().make_mlp(config, layer_index)
        return SparseMoe(config, config.moe, QWEN_NAMES)


class Qwen3MoeModel(LlamaModel):
    layer_class = Qwen3MoeLayer


class Qwen3MoeForCausalLM(LlamaForCausalLM):
    model_class = Qwen3MoeModel
