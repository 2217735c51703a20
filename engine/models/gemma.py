"""Gemma 2 (arXiv:2408.00118) and Gemma 3 (arXiv:2503.19786), text only.

Beside Llama: norms multiply by 1 + w and stand on both sides of attention and MLP, the embedding is scaled, windowed
and full layers alternate. Gemma 2 caps its scores and logits; Gemma 3 has QK-norm instead and rotates its windowed
layers by a shorter base.
"""

from __future__ import annotations

import torch
from torch import nn

from engine.attention import Attention
from engine.layers.attention import CosSin, SelfAttention
from engine.layers.embedding import Embedding
from engine.layers.layer import Layer
from engine.layers.mlp import GatedMlp
from engine.layers.norm import RMSNorm
from engine.layers.rotary import RopeTable
from engine.model_config import ModelConfig
from engine.models.llama import LlamaForCausalLM


class GemmaLayer(Layer):
    """Four norms a layer; the residual travels beside the hidden states."""

    def __init__(self, config: ModelConfig, layer_index: int) -> None:
        super().__init__()
        self.input_layernorm = _norm(config)
        self.self_attn = SelfAttention(config, layer_index, unit_offset_norm=True)
        self.post_attention_layernorm = _norm(config)
        self.pre_feedforward_layernorm = _norm(config)
        self.mlp = GatedMlp(config)
        self.post_feedforward_layernorm = _norm(config)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, cos_sin: CosSin, attention: Attention
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            residual, hidden = hidden, self.input_layernorm(hidden)
        else:
            hidden, residual = self.input_layernorm.add(hidden, residual)
        hidden = self.post_attention_layernorm(self.self_attn(hidden, cos_sin, attention))
        hidden, residual = self.pre_feedforward_layernorm.add(hidden, residual)
        return self.post_feedforward_layernorm(self.mlp(hidden)), residual


class GemmaModel(Layer):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        dtype = torch.get_default_dtype()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, scale=config.embedding_scale)
        self.rope = RopeTable(config.rope, config.max_position, dtype)
        self.local_rope = RopeTable(config.local_rope or config.rope, config.max_position, dtype)
        self.layers = nn.ModuleList(GemmaLayer(config, i) for i in range(config.num_layers))
        self.norm = _norm(config)
        self.is_local = [window is not None for window in config.layer_windows]

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, attention: Attention) -> torch.Tensor:
        full, local = self.rope(positions), self.local_rope(positions)
        hidden: torch.Tensor = self.embed_tokens(input_ids)
        residual: torch.Tensor | None = None
        for layer, is_local in zip(self.layers, self.is_local, strict=True):
            hidden, residual = layer(hidden, residual, local if is_local else full, attention)
        assert residual is not None, "a model has at least one layer"
        hidden, _ = self.norm.add(hidden, residual)
        return hidden


class GemmaForCausalLM(LlamaForCausalLM):
    model_class = GemmaModel


def _norm(config: ModelConfig) -> RMSNorm:
    return RMSNorm(config.hidden_size, config.norm_eps, unit_offset=True)
