"""gpt-oss (arXiv:2508.10925): experts with biases and a clamped activation, attention sinks, every other layer
windowed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from engine.errors import ModelLoadError
from engine.layers.attention import SelfAttention
from engine.layers.layer import Layer
from engine.layers.linear import Linear
from engine.layers.moe import RoutedExperts
from engine.model_config import ModelConfig, MoeConfig
from engine.models.llama import LlamaForCausalLM, LlamaLayer, LlamaModel

_SIGMOID_SLOPE = 1.702


class GptOssExperts(RoutedExperts):
    """Weights as `F.linear` wants them; the checkpoint's are (experts, in, out), its gate and up rows alternate."""

    def __init__(self, config: ModelConfig, moe: MoeConfig) -> None:
        super().__init__()
        experts, width, hidden = moe.num_experts, moe.intermediate_size, config.hidden_size
        self.limit = moe.swiglu_limit
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * width, hidden), requires_grad=False)
        self.gate_up_bias = nn.Parameter(torch.empty(experts, 2 * width), requires_grad=False)
        self.down = nn.Parameter(torch.empty(experts, hidden, width), requires_grad=False)
        self.down_bias = nn.Parameter(torch.empty(experts, hidden), requires_grad=False)

    def apply_expert(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        gate_up = F.linear(x, self.gate_up[expert], self.gate_up_bias[expert])
        gate = gate_up[:, ::2].clamp(max=self.limit)
        up = gate_up[:, 1::2].clamp(-self.limit, self.limit)
        activated = (up + 1) * (gate * torch.sigmoid(gate * _SIGMOID_SLOPE))
        return F.linear(activated, self.down[expert], self.down_bias[expert])

    def weight_slots(self, path: str) -> Iterator[tuple[str, torch.Tensor]]:
        yield f"{path}.gate_up_proj", self.gate_up.data.transpose(1, 2)
        yield f"{path}.gate_up_proj_bias", self.gate_up_bias.data
        yield f"{path}.down_proj", self.down.data.transpose(1, 2)
        yield f"{path}.down_proj_bias", self.down_bias.data


class GptOssMoe(Layer):
    """The best experts are picked first, then weighted by a softmax over them alone."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.moe is None:
            raise ModelLoadError("gpt-oss's config.json lacks 'num_local_experts'")
        self.router = Linear(config.hidden_size, config.moe.num_experts, bias=True)
        self.experts = GptOssExperts(config, config.moe)
        self.num_chosen = config.moe.num_experts_per_token

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, chosen = torch.topk(self.router(x), self.num_chosen, dim=-1)
        out: torch.Tensor = self.experts(x, torch.softmax(scores, dim=-1), chosen)
        return out


class GptOssLayer(LlamaLayer):
    def make_attention(self, config: ModelConfig, layer_index: int) -> SelfAttention:
        return SelfAttention(config, layer_index, sinks=True)

    def make_mlp(self, config: ModelConfig, layer_index: int) -> nn.Module:  # noqa: ARG002  # every layer is alike
        return GptOssMoe(config)


class GptOssModel(LlamaModel):
    layer_class = GptOssLayer


class GptOssForCausalLM(LlamaForCausalLM):
    model_class = GptOssModel
