"""Rotary position embedding (arXiv:2104.09864) and the ways checkpoints stretch it to longer contexts.

The frequencies follow transformers' `modeling_rope_utils`: linear, llama3, yarn (arXiv:2309.00071) and longrope
(arXiv:2402.13753).
"""

from __future__ import annotations

import math

import torch

from engine.errors import ModelLoadError
from engine.layers.layer import Layer
from engine.model_config import RopeConfig


class RopeTable(Layer):
    """cos and sin of every position, gathered once a step and used by all layers.

    Buffers are float32 [max_position, rotary_dim]; sin's first half is negated, so that rotating a head x is
    x * cos + roll(x, rotary_dim / 2) * sin.
    """

    def __init__(self, config: RopeConfig, max_position: int, dtype: torch.dtype) -> None:
        super().__init__()
        device = torch.get_default_device()
        with torch.device("cpu"):  # the same table, to the bit, whatever the device
            inv_freq, attention_factor = rope_frequencies(config, max_position)
            angles = torch.arange(max_position, dtype=torch.float32)[:, None] * inv_freq[None, :]
            cos, sin = angles.cos() * attention_factor, angles.sin() * attention_factor
        self.cos: torch.Tensor
        self.sin: torch.Tensor
        self.rotary_dim = config.rotary_dim
        self.register_buffer("cos", torch.cat((cos, cos), dim=-1).to(device, dtype), persistent=False)
        self.register_buffer("sin", torch.cat((-sin, sin), dim=-1).to(device, dtype), persistent=False)

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Args: positions (num_tokens,). Returns: cos, sin, each (num_tokens, 1, rotary_dim)."""
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)


def rotate(x: torch.Tensor, cos_sin: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotates the first rotary_dim dimensions of every head; x (num_tokens, num_heads, head_dim)."""
    cos, sin = cos_sin
    rotary_dim = cos.shape[-1]
    if rotary_dim == x.shape[-1]:
        return torch.addcmul(x * cos, x.roll(rotary_dim // 2, -1), sin)
    turned, kept = x[..., :rotary_dim], x[..., rotary_dim:]
    return torch.cat((torch.addcmul(turned * cos, turned.roll(rotary_dim // 2, -1), sin), kept), dim=-1)


def rope_frequencies(config: RopeConfig, max_position: int) -> tuple[torch.Tensor, float]:
    """(inverse frequencies float32 [rotary_dim / 2], factor on cos and sin). `max_position` is the context served."""
    dim = config.rotary_dim
    base = 1.0 / (config.theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
    if config.rope_type == "default":
        return base, 1.0
    if config.rope_type == "linear":
        return base / config.factor, 1.0
    if config.rope_type == "llama3":
        return _llama3(config, base), 1.0
    if config.rope_type == "yarn":
        return _yarn(config, base)
    return _longrope(config, max_position)


def _original(config: RopeConfig) -> int:
    if config.original_max_position is None:
        raise ModelLoadError(f"rope type {config.rope_type!r} needs 'original_max_position_embeddings'")
    return config.original_max_position


def _llama3(config: RopeConfig, base: torch.Tensor) -> torch.Tensor:
    """High frequencies stay, low ones are divided by `factor`, those between are blended."""
    original = _original(config)
    wavelength = 2 * math.pi / base
    low, high = config.low_freq_factor, config.high_freq_factor
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * base / config.factor + smooth * base
    result = torch.where(wavelength > original / low, base / config.factor, base)
    is_medium = ~(wavelength < original / high) * ~(wavelength > original / low)
    return torch.where(is_medium, blended, result)


def _yarn_mscale(scale: float, mscale: float = 1.0) -> float:
    return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0


def _yarn(config: RopeConfig, base: torch.Tensor) -> tuple[torch.Tensor, float]:
    dim, original = config.rotary_dim, _original(config)
    attention_factor = config.attention_factor
    if attention_factor is None:
        if config.mscale and config.mscale_all_dim:
            attention_factor = _yarn_mscale(config.factor, config.mscale) / _yarn_mscale(
                config.factor, config.mscale_all_dim
            )
        else:
            attention_factor = _yarn_mscale(config.factor)

    def correction(rotations: float) -> float:
        """The dimension whose wave turns `rotations` times over the original context."""
        return (dim * math.log(original / (rotations * 2 * math.pi))) / (2 * math.log(config.theta))

    low, high = correction(config.beta_fast), correction(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # no division by zero
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return base / config.factor * (1 - keep) + base * keep, attention_factor


def _longrope(config: RopeConfig, max_position: int) -> tuple[torch.Tensor, float]:
    """One divisor a frequency; the long list where the context served passes the original one.

    transformers switches lists by each batch's length, which would change the rotation of pages already cached; one
    list for the life of the engine is what a paged cache allows.
    """
    dim, original = config.rotary_dim, _original(config)
    factors = config.long_factor if max_position > original else config.short_factor
    if len(factors) != dim // 2:
        raise ModelLoadError(f"rope type 'longrope' needs {dim // 2} factors, the config has {len(factors)}")
    attention_factor = config.attention_factor
    if attention_factor is None:
        scale = config.factor
        attention_factor = 1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(original))
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    return 1.0 / (torch.tensor(factors, dtype=torch.float32) * config.theta**exponents), attention_factor
