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
from engine.layers.few_rows import few_row_product, fits_few_rows
from engine.layers.layer import Layer
from engine.layers.mlp import GatedMlp
from engine.layers.norm import RMSNorm
from engine.layers.rotary import RopeTable
from engine.model_config import ModelConfig
from engine.models.base import CausalLM


class LlamaLayer(Layer):
    """norm, attention, add, norm, MLP, add; the residual travels beside the hidden states, added where the next norm
    reads it."""

    packed = False  # Phi-3's checkpoints hold qkv and gate_up as one tensor each
    mlp_name = "mlp"

    def __init__(self, config: ModelConfig, layer_index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = self.make_attention(config, layer_index)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        setattr(self, self.mlp_name, self.make_mlp(config, layer_index))

    def make_attention(self, config: ModelConfig, layer_index: int) -> SelfAttention:
        return SelfAttention(config, layer_index, packed=self.packed)

    def make_mlp(self, config: ModelConfig, layer_index: int) -> nn.Module:  # noqa: ARG002  # MoE models look at the layer
        return GatedMlp(config, packed=self.packed)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, cos_sin: CosSin, attention: Attention
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(hidden, residual), whose sum is the layer's output; residual None: hidden is the sum."""
        attn, mlp = self.self_attn, getattr(self, self.mlp_name)
        if isinstance(mlp, GatedMlp) and fits_few_rows(
            hidden, attn.qkv_proj, attn.o_proj, mlp.gate_up_proj, mlp.down_proj
        ):
            total = hidden if residual is None else hidden + residual
            return self._forward_few_rows(total, mlp, cos_sin, attention), None
        normed, residual = self.input_layernorm.add_for(attn.qkv_proj, hidden, residual)
        hidden = attn(normed, cos_sin, attention)
        if isinstance(mlp, GatedMlp):
            normed, residual = self.post_attention_layernorm.add_for(mlp.gate_up_proj, hidden, residual)
        else:
            normed, residual = self.post_attention_layernorm.add(hidden, residual)
        return mlp(normed), residual

    def _forward_few_rows(
        self, total: torch.Tensor, mlp: GatedMlp, cos_sin: CosSin, attention: Attention
    ) -> torch.Tensor:
        """The same in five launches and the attention's: what is not a product rides along with one."""
        qkv = few_row_product(self.self_attn.qkv_proj, total, norm=self.input_layernorm)
        attended = self.self_attn.attend(qkv, cos_sin, attention).view(total.shape[0], -1)
        total = few_row_product(self.self_attn.o_proj, attended, residual=total)
        gated = few_row_product(mlp.gate_up_proj, total, norm=self.post_attention_layernorm, gate=mlp.gate)
        return few_row_product(mlp.down_proj, gated, residual=total)


class LlamaModel(Layer):
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
        return self.norm(hidden) if residual is None else self.norm.add(hidden, residual)[0]


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
