"""Token embedding and the output head, which may be the same matrix."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from engine.layers.layer import Layer
from engine.layers.linear import WeightForm
from kernels.embedding import embedding
from kernels.few_row_linear import linear


class Embedding(Layer):
    """Rows of a (vocab, hidden) matrix, multiplied by `scale` (Gemma: sqrt(hidden)) where one is given."""

    def __init__(self, vocab_size: int, hidden_size: int, *, scale: float | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)
        # Gemma rounds the factor to the model's dtype before it multiplies.
        self.scale = None if scale is None else float(torch.tensor(scale, dtype=self.weight.dtype, device="cpu"))

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Args: token_ids (num_tokens,). Returns: (num_tokens, hidden)."""
        hidden = embedding(token_ids, self.weight)
        return hidden if self.scale is None else hidden * self.scale

    def weight_slots(self, path: str) -> Iterator[tuple[str, torch.Tensor]]:
        yield f"{path}.weight", self.weight.data


class OutputHead(Layer):
    """hidden -> logits. Tied, it uses the embedding's matrix and reads no tensor of its own."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, tied_to: Embedding | None = None, softcap: float | None = None
    ) -> None:
        super().__init__()
        self.tied = tied_to is not None
        self.weight = (
            tied_to.weight
            if tied_to is not None
            else nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)
        )
        self.softcap = softcap
        self.form: WeightForm | None = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Args: hidden (rows, hidden). Returns: logits (rows, vocab)."""
        logits: torch.Tensor = linear(hidden, self.weight) if self.form is None else self.form(hidden)
        if self.softcap is None:
            return logits
        return torch.tanh(logits / self.softcap) * self.softcap

    def take_form(self, form: WeightForm) -> None:
        """Uses `form` from now on; the plain weight is let go, unless the embedding still reads it."""
        self.form = form
        self.weight = nn.Parameter(self.weight.new_empty(0), requires_grad=False)

    def weight_slots(self, path: str) -> Iterator[tuple[str, torch.Tensor]]:
        if not self.tied:
            yield f"{path}.weight", self.weight.data
