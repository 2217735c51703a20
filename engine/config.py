"""`EngineConfig`: how the engine runs. Field names are vLLM's flag names, so that a start script carries over.

Frozen, torch-free; unknown names are refused by whoever builds it. Each field's `Meta.description` documents it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


def _about(text: str, **bounds: Any) -> Meta:
    return Meta(description=text, **bounds)


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything an engine is told at start. Sizes are in tokens, bytes or GiB as the name says."""

    model: Annotated[str, _about("a Hugging Face folder, a .gguf file, or smollm2 (packaged)")] = "smollm2"
    served_model_name: Annotated[
        tuple[str, ...], _about("names accepted in requests; empty: the model's own name")
    ] = ()
    tokenizer: Annotated[str, _about("folder with another tokenizer.json; empty: the model's")] = ""
    chat_template: Annotated[str, _about("file with a chat template; empty: the model's")] = ""
    load_format: Annotated[
        Literal["auto", "safetensors", "gguf", "dummy"], _about("dummy: random weights of the model's shape")
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"], _about("weights and activations; auto: bfloat16")
    ] = "auto"
    quantization: Annotated[str, _about("weight quantization made at load; empty: none")] = ""
    kv_cache_dtype: Annotated[
        Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"], _about("KV pages' dtype; fp8 is dequantised on load")
    ] = "auto"
    max_model_len: Annotated[
        int | Literal["auto"], _about("longest prompt + output, tokens; auto: the model's, or what memory allows")
    ] = "auto"
    block_size: Annotated[int, _about("token slots per KV page", ge=1, le=256)] = 16
    max_num_seqs: Annotated[int, _about("most sequences running at once", ge=1, le=4096)] = 256
    max_num_batched_tokens: Annotated[int, _about("token budget of one step", ge=16)] = 2048
    enable_chunked_prefill: Annotated[bool, _about("split prompts over steps")] = True
    long_prefill_token_threshold: Annotated[
        int, _about("most tokens one prompt takes of a step while others decode; 0: a quarter of the budget", ge=0)
    ] = 0
    enable_prefix_caching: Annotated[bool, _about("reuse KV pages of equal prefixes within a tenant")] = True
    max_cached_fraction_per_tenant: Annotated[
        float, _about("largest share of the pages one tenant's cached prefixes may hold", gt=0, le=1)
    ] = 0.5
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"], _about("priority: classes preempt; fcfs: arrival order within fairness")
    ] = "priority"
    max_num_queued_reqs: Annotated[int, _about("waiting requests before new ones are refused", ge=1)] = 2048
    max_n: Annotated[int, _about("most sequences of one request (n, best_of)", ge=1, le=128)] = 128
    max_logprobs: Annotated[int, _about("most top logprobs a request may ask for", ge=0)] = 20
    gpu_memory_utilization: Annotated[
        float, _about("share of the device's memory this engine may take", gt=0, le=1)
    ] = 0.92
    kv_cache_memory_bytes: Annotated[
        int, _about("exact bytes for KV pages; 0: from what is free at start (CPU: 1 GiB)", ge=0)
    ] = 0
    num_gpu_blocks_override: Annotated[int, _about("exact number of KV pages; 0: from memory", ge=0)] = 0
    swap_space: Annotated[float, _about("GiB of host memory for pages of preempted sequences", ge=0)] = 0.0
    device: Annotated[Literal["auto", "cpu", "cuda"], _about("where the model runs")] = "auto"
    num_threads: Annotated[int, _about("torch threads on a CPU; 0: one per core", ge=0)] = 0
    enforce_eager: Annotated[bool, _about("no CUDA graphs")] = False
    deterministic: Annotated[
        bool, _about("a request's tokens do not depend on neighbours, chunking, cache or preemption")
    ] = False
    stream_interval: Annotated[int, _about("tokens a streamed delta gathers after the first", ge=1)] = 1
    seed: Annotated[int, _about("seed for requests that bring none")] = 0
    watchdog_timeout_s: Annotated[float, _about("seconds a step may take before the engine counts as hung", gt=0)] = (
        30.0
    )
