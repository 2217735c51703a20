"""`EngineConfig`: how the engine runs. Field names are vLLM's flag names, so that a start script carries over.

Frozen, torch-free; unknown names are refused, all at once. Each field's `Meta.description` documents it.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.speculative_config import SpeculativeConfig, parse_speculative_config

# Flags of older guides that mean nothing any more: accepted with a warning, so that a command line can be pasted.
DEPRECATED = {
    "use_v2_block_manager": "there is one block manager",
    "num_scheduler_steps": "the loop overlaps by itself",
    "multi_step_stream_outputs": "the loop overlaps by itself",
    "disable_log_requests": "requests are not logged",
    "enable_log_requests": "requests are not logged",
    "worker_use_ray": "there is no Ray",
    "guided_decoding_backend": "grammars are llguidance's",
    "disable_custom_all_reduce": "there is no custom all-reduce",
    "trust_remote_code": "no code of a checkpoint is ever run",
    "preemption_mode": "recompute or swap is chosen by measured cost",
    "max_seq_len_to_capture": "graph sizes follow max_num_seqs",
    "max_context_len_to_capture": "graph sizes follow max_num_seqs",
}


class ConfigError(ValueError):
    """A setting is unknown, of a wrong type or out of bounds. The message names each."""


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
    download_dir: Annotated[str, _about("folder that keeps converted GGUF models")] = "var/models"
    load_format: Annotated[
        Literal["auto", "safetensors", "gguf", "dummy"], _about("dummy: random weights of the model's shape")
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"], _about("weights and activations; auto: bfloat16")
    ] = "auto"
    quantization: Annotated[str, _about("weight quantization made at load; empty: none")] = ""
    kv_cache_dtype: Annotated[
        Literal["auto", "fp8", "fp8_e4m3"], _about("KV pages' dtype; fp8 is dequantised on load")
    ] = "auto"
    max_model_len: Annotated[
        int | Literal["auto"], _about("longest prompt + output, tokens; auto: the model's, or what memory allows")
    ] = "auto"
    block_size: Annotated[int, _about("token slots per KV page", ge=1, le=256)] = 16
    max_num_seqs: Annotated[
        int, _about("most sequences running at once; 0: 256 on a GPU, 32 on a CPU", ge=0, le=4096)
    ] = 0
    max_num_batched_tokens: Annotated[
        int,
        _about(
            "token budget of one step; 0: 384 on a GPU, 512 on a CPU; more is faster with prompts, slower for streams",
            ge=0,
        ),
    ] = 0
    enable_chunked_prefill: Annotated[bool, _about("split prompts over steps")] = True
    long_prefill_token_threshold: Annotated[
        int, _about("most tokens one prompt takes of a step while others decode; 0: half of the budget", ge=0)
    ] = 0
    enable_prefix_caching: Annotated[bool, _about("reuse KV pages of equal prefixes within a tenant")] = True
    max_cached_fraction_per_tenant: Annotated[
        float, _about("largest share of the pages one tenant's cached prefixes may hold", gt=0, le=1)
    ] = 0.5
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"], _about("priority: classes preempt; fcfs: arrival order within fairness")
    ] = "priority"
    max_num_queued_reqs: Annotated[int, _about("waiting requests before new ones are refused", ge=1)] = 2048
    max_num_queued_tokens: Annotated[
        int, _about("waiting prompt tokens before new requests are refused; 0: no limit", ge=0)
    ] = 0
    max_n: Annotated[int, _about("most sequences of one request: its prompts times n or best_of", ge=1, le=128)] = 128
    max_logprobs: Annotated[int, _about("most top logprobs a request may ask for", ge=0)] = 20
    gpu_memory_utilization: Annotated[
        float, _about("share of the device's memory this engine may take", gt=0, le=1)
    ] = 0.92
    kv_cache_memory_bytes: Annotated[
        int, _about("exact bytes for KV pages; 0: from what is free at start (CPU: 1 GiB)", ge=0)
    ] = 0
    num_gpu_blocks_override: Annotated[int, _about("exact number of KV pages; 0: from memory", ge=0)] = 0
    swap_space: Annotated[
        float, _about("GiB of host memory for pages of preempted sequences; -1: 4 on a GPU, 0 on a CPU", ge=-1)
    ] = -1.0
    device: Annotated[Literal["auto", "cpu", "cuda"], _about("where the model runs")] = "auto"
    num_threads: Annotated[int, _about("torch threads on a CPU; 0: one less than the cores", ge=0)] = 0
    tensor_parallel_size: Annotated[
        int, _about("devices a layer is split over; this version runs on one", ge=1, le=1)
    ] = 1
    speculative_config: Annotated[
        str, _about("JSON: method (ngram), num_speculative_tokens, and what else SpeculativeConfig has; empty: off")
    ] = ""
    async_scheduling: Annotated[
        Literal["auto", "on", "off"], _about("make the next step before the last one is read back; auto: on a GPU")
    ] = "auto"
    enforce_eager: Annotated[bool, _about("no CUDA graphs")] = False
    deterministic: Annotated[
        bool, _about("a request's tokens do not depend on neighbours, chunking, cache or preemption")
    ] = False
    stream_interval: Annotated[int, _about("tokens a streamed delta gathers after the first", ge=1)] = 1
    seed: Annotated[int, _about("seed for requests that bring none")] = 0
    watchdog_timeout_s: Annotated[
        float,
        _about("seconds without progress in a step before the engine counts as hung; killed after eight times", gt=0),
    ] = 5.0

    def __post_init__(self) -> None:
        if self.block_size not in (8, 16, 32, 64, 128):
            raise ConfigError(f"block_size must be 8, 16, 32, 64 or 128, got {self.block_size}")
        if isinstance(self.max_model_len, int) and self.max_model_len < 2 and self.max_model_len != -1:
            raise ConfigError(f"max_model_len must be 'auto', -1 or at least 2, got {self.max_model_len}")
        if self.num_gpu_blocks_override == 1:
            raise ConfigError("num_gpu_blocks_override must be at least 2, got 1")
        try:
            speculates = self.speculation is not None
        except ValueError as exc:
            raise ConfigError(str(exc)) from exc
        if speculates and self.async_scheduling == "on":
            raise ConfigError("speculative_config drafts from the tokens read back, so async_scheduling cannot be 'on'")

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> EngineConfig:
        """From keyword arguments: dashes read as underscores, None means the default, deprecated names warn.

        Raises: ConfigError naming every unknown key, or the first value of a wrong type or out of bounds.
        """
        known = set(cls.__struct_fields__)
        values: dict[str, Any] = {}
        unknown = []
        for raw_name, value in settings.items():
            name = raw_name.removeprefix("--").replace("-", "_")
            if name in DEPRECATED:
                warnings.warn(f"{raw_name} is accepted and ignored: {DEPRECATED[name]}", FutureWarning, stacklevel=2)
            elif name not in known:
                close = difflib.get_close_matches(name, sorted(known), n=1)
                unknown.append(f"unknown setting {raw_name!r}" + (f", did you mean {close[0]!r}?" if close else ""))
            elif value is not None:
                values[name] = value
        if unknown:
            raise ConfigError("; ".join(unknown))
        if isinstance(values.get("served_model_name"), str):
            values["served_model_name"] = (values["served_model_name"],)
        if isinstance(values.get("speculative_config"), Mapping):
            values["speculative_config"] = msgspec.json.encode(values["speculative_config"]).decode()
        if isinstance(values.get("async_scheduling"), bool):
            values["async_scheduling"] = "on" if values["async_scheduling"] else "off"
        try:
            return msgspec.convert(values, cls)
        except msgspec.ValidationError as exc:
            raise ConfigError(str(exc)) from exc

    @staticmethod
    def check_shares(configs: Mapping[str, EngineConfig]) -> None:
        """Several engines on one device: their shares of its memory must not pass the whole.

        Raises: ConfigError naming every engine's share.
        """
        on_device = {name: config for name, config in configs.items() if config.device != "cpu"}
        total = sum(config.gpu_memory_utilization for config in on_device.values())
        if len(on_device) > 1 and total > 1 + 1e-9:
            shares = ", ".join(f"{name} {config.gpu_memory_utilization}" for name, config in on_device.items())
            raise ConfigError(f"gpu_memory_utilization of all engines sums to {total:.2f}, at most 1 fits: {shares}")

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """What `speculative_config` says; None when it is off."""
        return parse_speculative_config(self.speculative_config)

    @property
    def name(self) -> str:
        """What callers call the model."""
        return self.served_names[0]

    @property
    def served_names(self) -> tuple[str, ...]:
        """What requests call the model: `served_model_name`, else the folder's or file's own name."""
        if self.served_model_name:
            return self.served_model_name
        name = PurePath(self.model.rstrip("/")).name
        return (name.removesuffix(".gguf"),)
