"""Phi-3 and Phi-4 (arXiv:2404.14219, arXiv:2412.08905): Llama whose checkpoints hold q, k, v as one tensor, and gate
and up as another. Phi-4-mini rotates a part of each head and stretches by longrope."""

from __future__ import annotations

from engine.models.llama import LlamaForCausalLM, LlamaLayer, LlamaModel


class Phi3Layer(LlamaLayer):
    packed = True


class Phi3Model(LlamaModel):
    layer_class = Phi3Layer


class Phi3ForCausalLM(LlamaForCausalLM):
    model_class = Phi3Model
