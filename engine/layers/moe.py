"""Mixture of experts: a router picks a few experts a token, their gated MLPs' outputs are weighted and summed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

from engine.layers.layer import Layer
from engine.layers.linear import Linear
from engine.model_config import ModelConfig, MoeConfig
from kernels.gated_activation import silu_mul

# (expert index, its tokens' rows) -> their outputs.
ExpertFunction = Callable[[int, torch.Tensor], torch.Tensor]
# Names of an expert's (gate, up, down) tensors in a checkpoint, under the experts' path.
Names = tuple[str, str, str]
MIXTRAL_NAMES: Names = ("w1", "w3", "w2")
QWEN_NAMES: Names = ("gate_proj", "up_proj", "down_proj")


class RoutedExperts(Layer):
    """Experts whose tokens are chosen by a router. `batch_invariant`: each expert's products have as many rows as there
    are tokens, however many chose it, so that rounding does not depend on what a token's neighbours chose."""

    batch_invariant = False
    gate_up: nn.Parameter

    def forward(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Args: x (num_tokens, hidden); weights, chosen (num_tokens, experts per token). Returns: as x."""
        num_experts = self.gate_up.shape[0]
        if not self.batch_invariant:
            return run_experts(x, weights, chosen, self.apply_expert, num_experts)

        def padded(expert: int, rows: torch.Tensor) -> torch.Tensor:
            count = rows.shape[0]
            return self.apply_expert(expert, F.pad(rows, (0, 0, 0, x.shape[0] - count)))[:count]

        return run_experts(x, weights, chosen, padded, num_experts)

    def apply_expert(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """One expert's output (rows, hidden) of its tokens' rows."""
        raise NotImplementedError


class Experts(RoutedExperts):
    """All experts' weights stacked: gate_up (experts, 2 * width, hidden), down (experts, hidden, width)."""

    def __init__(self, config: ModelConfig, moe: MoeConfig, names: Names) -> None:
        super().__init__()
        self.names = names
        self.width = moe.intermediate_size
        self.gate_up = nn.Parameter(
            torch.empty(moe.num_experts, 2 * self.width, config.hidden_size), requires_grad=False
        )
        self.down = nn.Parameter(torch.empty(moe.num_experts, config.hidden_size, self.width), requires_grad=False)

    def apply_expert(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        return F.linear(silu_mul(F.linear(x, self.gate_up[expert])), self.down[expert])

    def weight_slots(self, path: str) -> Iterator[tuple[str, torch.Tensor]]:
        gate, up, down = self.names
        for e in range(self.gate_up.shape[0]):
            yield f"{path}.{e}.{gate}.weight", self.gate_up.data[e, : self.width]
            yield f"{path}.{e}.{up}.weight", self.gate_up.data[e, self.width :]
            yield f"{path}.{e}.{down}.weight", self.down.data[e]


class SparseMoe(Layer):
    """Softmax over all experts, the best kept, their weights made to sum to one where the model says so."""

    def __init__(self, config: ModelConfig, moe: MoeConfig, names: Names) -> None:
        super().__init__()
        self.gate = Linear(config.hidden_size, moe.num_experts)
        self.experts = Experts(config, moe, names)
        self.num_chosen = moe.num_experts_per_token
        self.norm_topk_prob = moe.norm_topk_prob

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Args: x (num_tokens, hidden). Returns: the same shape."""
        probabilities = torch.softmax(self.gate(x).float(), dim=-1)
        weights, chosen = torch.topk(probabilities, self.num_chosen, dim=-1)
        if self.norm_topk_prob:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        out: torch.Tensor = self.experts(x, weights.to(x.dtype), chosen)
        return out


def run_experts(
    x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, apply_expert: ExpertFunction, num_experts: int
) -> torch.Tensor:
    """Each expert once, over all tokens that chose it, in the order of experts.

    The counts are read on the host to cut the sorted tokens, which costs one wait for the device a layer.
    """
    num_tokens, per_token = chosen.shape
    order = torch.argsort(chosen.reshape(-1), stable=True)
    counts = torch.bincount(chosen.reshape(-1), minlength=num_experts).tolist()
    token_of = order // per_token
    rows = x[token_of]
    out = torch.empty_like(rows)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            out[start : start + count] = apply_expert(expert, rows[start : start + count])
            start += count
    weighted = out * weights.reshape(-1)[order, None]
    # Put back in each token's own order before the sum: a token's result then does not depend on its neighbours.
    unsorted = torch.empty_like(weighted)
    unsorted[order] = weighted
    return unsorted.view(num_tokens, per_token, -1).sum(dim=1)
