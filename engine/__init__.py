"""Tokens in, tokens out: scheduler, paged KV cache, model runner, models. No HTTP, SQL or Redis.

Importing this package imports no torch: gateway workers read its types only. `LLM` is loaded when asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.cpu_threads import calm_openmp
from engine.types import SamplingParams

if TYPE_CHECKING:
    from engine.llm import LLM

calm_openmp()  # before torch is imported

__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from engine.llm import LLM

        return LLM
    raise AttributeError(f"module 'engine' has no attribute {name!r}")
