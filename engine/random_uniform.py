"""One uniform number per (seed, output position): sampling needs no generator state, so it does not depend on the
batch, on preemption or on how often a step was run."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def mix64(value: int) -> int:
    """SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014): every input bit moves every output bit."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, index: int, position: int) -> float:
    """In [0, 1), 53 bits: for the `position`-th output token of the `index`-th sequence of a request with `seed`."""
    mixed = mix64(mix64(mix64(seed & _MASK) ^ index) ^ position)
    return (mixed >> 11) * (1.0 / (1 << 53))
