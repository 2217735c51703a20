from __future__ import annotations

import copy

import torch
from torch import nn

from engine.layers.layer import Layer


class Scale(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Twice(Scale):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_a_subclass_call_runs_its_own_forward() -> None:
    assert torch.equal(Scale()(torch.ones(3)), torch.ones(3))
    assert torch.equal(Twice()(torch.ones(3)), torch.full((3,), 2.0))


def test_parameters_stay_parameters_after_replacing_casting_and_copying() -> None:
    layer = Scale()
    layer.weight = nn.Parameter(torch.full((3,), 5.0), requires_grad=False)
    assert layer.state_dict()["weight"].tolist() == [5, 5, 5]
    layer.bfloat16()
    assert layer.weight.dtype is torch.bfloat16
    assert layer.weight is layer._parameters["weight"]
    twin = copy.deepcopy(layer)
    twin.weight.data.fill_(7)
    assert twin(torch.ones(3)).tolist() == [7, 7, 7]
    assert layer(torch.ones(3)).tolist() == [5, 5, 5]
