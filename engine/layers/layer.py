"""`Layer`: `nn.Module` for inference, where calling it costs what calling its `forward` costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Layer(nn.Module):
    """A module without hooks, whose parameters and submodules are plain attributes.

    `nn.Module` looks for hooks in every call and finds parameters through `__getattr__`: on a CPU, 30 layers, one
    token, the two took 15 % of what a decode step costs beside its products.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in cls.__dict__:
            cls.__call__ = cls.forward  # type: ignore[method-assign]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, nn.Module | torch.Tensor):
            self.__dict__[name] = value

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Layer:
        """Moving or casting may replace parameters: the plain attributes follow."""
        super()._apply(fn, recurse)
        for name, parameter in self._parameters.items():
            if name in self.__dict__:
                self.__dict__[name] = parameter
        return self
