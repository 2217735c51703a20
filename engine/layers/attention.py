"""Self-attention of a decoder layer: projections, optional QK-norm, rotary embedding; the pages are `Attention`'s."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from engine.attention import Attention
from engine.layers.layer import Layer
from engine.layers.linear import Float8Rows, Linear, MergedLinear
from engine.layers.norm import RMSNorm
from engine.layers.rotary import rotate
from engine.model_config import ModelConfig

CosSin = tuple[torch.Tensor, torch.Tensor]


class SelfAttention(Layer):
    """Grouped-query attention. Bias, QK-norm and sinks follow the config; `packed` checkpoints hold one qkv_proj."""

    def __init__(
        self,
        config: ModelConfig,
        layer_index: int,
        *,
        packed: bool = False,
        unit_offset_norm: bool = False,
        sinks: bool = False,
    ) -> None:
        super().__init__()
        self.layer_index = layer_index
        self.head_dim = config.head_dim
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.q_size, self.kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = {"q_proj": self.q_size, "k_proj": self.kv_size, "v_proj": self.kv_size}
        if packed:
            parts = {"qkv_proj": self.q_size + 2 * self.kv_size}
        self.qkv_proj = MergedLinear(config.hidden_size, parts, bias=config.qkv_bias)
        self.o_proj = Linear(self.q_size, config.hidden_size, bias=config.o_bias)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.norm_eps, unit_offset=unit_offset_norm)
            self.k_norm = RMSNorm(config.head_dim, config.norm_eps, unit_offset=unit_offset_norm)
        self.sinks = nn.Parameter(torch.empty(config.num_heads), requires_grad=False) if sinks else None

    def forward(self, x: torch.Tensor | Float8Rows, cos_sin: CosSin, attention: Attention) -> torch.Tensor:
        """Args: x (num_tokens, hidden), cos_sin the step's `RopeTable` rows. Returns: (num_tokens, hidden)."""
        num_tokens = x.shape[0]
        out = self.attend(self.qkv_proj(x), cos_sin, attention)
        projected: torch.Tensor = self.o_proj(out.reshape(num_tokens, self.q_size))
        return projected

    def attend(self, qkv: torch.Tensor, cos_sin: CosSin, attention: Attention) -> torch.Tensor:
        """Everything between the projections. Args: qkv (num_tokens, q + 2 kv), the product's output, which may be
        changed in place. Returns: (num_tokens, num_heads, head_dim)."""
        heads = qkv.view(qkv.shape[0], -1, self.head_dim)
        if heads.is_cuda:
            return self._attend_fused(heads, cos_sin, attention)
        qk_heads = self.num_heads + self.num_kv_heads
        v = heads[:, qk_heads:]
        if self.q_norm is None or self.k_norm is None:
            qk = rotate(heads[:, :qk_heads], cos_sin)  # q and k turn alike: one pass for both
            q, k = qk[:, : self.num_heads], qk[:, self.num_heads :]
        else:
            q = rotate(self.q_norm(heads[:, : self.num_heads]), cos_sin)
            k = rotate(self.k_norm(heads[:, self.num_heads : qk_heads]), cos_sin)
        return attention(self.layer_index, q, k, v, sinks=self.sinks)

    def _attend_fused(self, heads: torch.Tensor, cos_sin: CosSin, attention: Attention) -> torch.Tensor:
        cos, sin = cos_sin
        norms = {}
        if self.q_norm is not None and self.k_norm is not None:
            norms = {"q_norm": self.q_norm.weight, "k_norm": self.k_norm.weight}
        return attention.from_qkv(
            self.layer_index,
            heads,
            cos.squeeze(1),
            sin.squeeze(1),
            eps=self.q_norm.eps if self.q_norm is not None else 0.0,
            unit_offset=self.q_norm.unit_offset if self.q_norm is not None else False,
            sinks=self.sinks,
            **norms,
        )

    def weight_slots(self, path: str) -> Iterator[tuple[str, torch.Tensor]]:
        if self.sinks is not None:
            yield f"{path}.sinks", self.sinks.data
