"""What the engine asks of a model: `CausalLM`."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.attention import Attention, AttentionSpec
from engine.layers.layer import Layer
from engine.model_config import ModelConfig


class CausalLM(Layer):
    """A decoder-only language model over a flat batch of tokens: no padding, no batch dimension.

    `attention_specs` has one entry a layer: the cache is laid out after it. Layers take the checkpoint's tensors
    through `weight_slots`; their attribute names follow the checkpoint's, so a slot's name is its module's path.
    """

    attention_specs: tuple[AttentionSpec, ...]
    num_parameters: int  # weights counted once, a tied head not at all; set by the loader

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.attention_specs = tuple(
            AttentionSpec(
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                scale=config.attention_scale,
                window=window,
                soft_cap=config.attention_softcap,
            )
            for window in config.layer_windows
        )

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, attention: Attention) -> torch.Tensor:
        """Args: input_ids, positions (num_tokens,), sequences laid end to end as `attention`'s metadata says.
        Returns: hidden states after the last norm (num_tokens, hidden)."""
        raise NotImplementedError

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Args: hidden (rows, hidden), the rows to sample from. Returns: logits (rows, vocab) in the model's dtype."""
        raise NotImplementedError

    def weight_slots(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(checkpoint name, view that takes it) of every tensor the model needs."""
        for path, module in self.named_modules():
            slots = getattr(module, "weight_slots", None)
            if slots is not None and module is not self:
                yield from slots(path)
