"""Llama 2 and 3.x (arXiv:2302.13971, arXiv:2407.21783), and what differs from it by its config alone: Mistral (sliding
window), Qwen2 (bias on q, k, v), Qwen3 (QK-norm), SmolLM2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from engine.attention import Attention
from engine.layers.attention import CosSin, SelfAttention
from engine.layers.embedding import Embedding, OutputHead
from engine.layers.mlp import GatedMlp
from engine.layers.norm import RMSNorm
from engine.layers.rotary import RopeTable
from engine.model_config import ModelConfig
from engine.models.base import CausalLM


class LlamaLayer(nn.Module):
    """norm, attention, add, norm, MLP, add; the residual travels beside the hidden states, added where the next norm
    reads it."""

    packed = False  # Phi-3's checkpoints hold qkv and gate_up as one tensor each
    mlp_name = "mlp"

    def __init__(self, config: ModelConfig, layer_index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = self.make_attention(config, layer_index)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.add_module(self.mlp_name, self.make_mlp(config, layer_index))

    def make_attention(self, config: ModelConfig, layer_index: int) -> SelfAttention:
        return SelfAttention(config, layer_index, packed=self.packed)

    def make_mlp(self, config: ModelConfig, layer_index: int) -> nn.Module:  # noqa: ARG002  # MoE models look at the layer
        return GatedMlp(config, packed=self.packed)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, cos_sin: CosSin, attention: Attention
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            residual, hidden = hidden, self.input_layernorm(hidden)
        else:
            hidden, residual = self.input_layernorm.add(hidden, residual)
        hidden = self.self_attn(hidden, cos_sin, attention)
        hidden, residual = self.post_attention_layernorm.add(hidden, residual)
        return getattr(self, self.mlp_name)(hidden), residual


class LlamaModel(nn.Module):
    """Embedding, layers and the last norm: `model.*` in the checkpoint."""

    layer_class: type[LlamaLayer] = LlamaLayer

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, scale=config.embedding_scale)
        self.rope = RopeTable(config.rope, config.max_position, torch.get_default_dtype())
        self.layers = nn.ModuleList(self.layer_class(config, i) for i in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, attention: Attention) -> torch.Tensor:
        cos_sin = self.rope(positions)
        hidden: torch.Tensor = self.embed_tokens(input_ids)
        residual: torch.Tensor | None = None
        for layer in self.layers:
            hidden, residual = layer(hidden, residual, cos_sin, attention)
        assert residual is not None, "a model has at least one layer"
        hidden, _ = self.norm.add(hidden, residual)
        return hidden


class LlamaForCausalLM(CausalLM):
    model_class: Callable[[ModelConfig], Any] = LlamaModel

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        model = self.model_class(config)
        self.model = model
        self.lm_head = OutputHead(
            config.vocab_size,
            config.hidden_size,
            tied_to=model.embed_tokens if config.tie_word_embeddings else None,
            softcap=config.final_softcap,
        )

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, attention: Attention) -> torch.Tensor:
        hidden: torch.Tensor = self.model(input_ids, positions, attention)
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.lm_head(hidden)
        return logits
