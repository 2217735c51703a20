"""Tensors in, tensors out: Triton kernels, each with its torch reference.

Callers import the module: `from kernels.rms_norm import rms_norm`.
"""

__version__ = "0.0.0"
