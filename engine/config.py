"""`EngineConfig`: how one engine runs. Names are vLLM's flags with underscores; the same names are keys in weir.toml.

Unknown names are refused, all faults at once. `None` (or "auto") means: chosen from the device and the model at start.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from typing import Any

import msgspec

DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = ("auto", "fp8", "fp8_e4m3")
SCHEDULING_POLICIES = ("priority", "fcfs")
LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")
DEVICES = ("auto", "cpu", "cuda")

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
    """A setting is unknown or out of bounds. The message lists every fault."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Args (defaults in the signature):

    model: a Hugging Face folder, a .gguf file or a known alias. download_dir: where converted models are kept.
    served_model_name: the name callers see, else `model`.
    max_model_len: context limit in tokens, None or "auto" = what the model and the pages allow.
    gpu_memory_utilization: share of the device's memory for weights and pages. kv_cache_memory_bytes: exact bytes for
    pages, overrides the share. num_gpu_blocks_override: exact number of pages. block_size: tokens a page.
    max_num_seqs: sequences in one step. max_num_batched_tokens: token budget of a step.
    long_prefill_token_threshold: most prompt tokens of one sequence in a step while others have work.
    scheduling_policy: "priority" (classes, fair between tenants inside a class) or "fcfs" (arrival order alone).
    max_num_queued_reqs, max_num_queued_tokens: beyond them a request is refused with a retry-after.
    max_cached_share_per_tenant: a tenant that holds more of all pages than this as cached prefixes loses pages first.
    swap_space: GiB of host memory for preempted sequences. hung_step_timeout_s: a step longer than this is a hung
    engine. num_threads: torch threads on a CPU, None = torch's own choice. stream_interval: tokens a delta.
    deterministic: a request's tokens do not depend on neighbours, chunking, cache or preemption.
    """

    model: str = ""
    served_model_name: str | None = None
    tokenizer: str | None = None
    download_dir: str = "var/models"
    dtype: str = "auto"
    device: str = "auto"
    load_format: str = "auto"
    quantization: str | None = None
    max_model_len: int | str | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    block_size: int = 16
    kv_cache_dtype: str = "auto"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int | None = None
    enable_prefix_caching: bool = True
    max_cached_share_per_tenant: float = 0.5
    scheduling_policy: str = "priority"
    max_num_queued_reqs: int = 1024
    max_num_queued_tokens: int | None = None
    swap_space: float | None = None
    seed: int = 0
    enforce_eager: bool = False
    async_scheduling: bool | None = None
    tensor_parallel_size: int = 1
    deterministic: bool = False
    max_logprobs: int = 20
    stream_interval: int = 1
    hung_step_timeout_s: float = 120.0
    num_threads: int | None = None

    def __post_init__(self) -> None:
        faults = list(_faults(self))
        if faults:
            raise ConfigError("; ".join(faults))

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> EngineConfig:
        """From flags or a table of weir.toml; dashes read as underscores, deprecated names warn and are dropped.

        Raises: ConfigError naming every unknown key and every value of a wrong type or out of bounds.
        """
        known = set(cls.__struct_fields__)
        values: dict[str, Any] = {}
        unknown = []
        for raw_name, value in settings.items():
            name = raw_name.removeprefix("--").replace("-", "_")
            if name in DEPRECATED:
                warnings.warn(f"{raw_name} is accepted and ignored: {DEPRECATED[name]}", FutureWarning, stacklevel=2)
            elif name in known:
                values[name] = value
            else:
                close = difflib.get_close_matches(name, sorted(known), n=1)
                unknown.append(f"unknown setting {raw_name!r}" + (f", did you mean {close[0]!r}?" if close else ""))
        if unknown:
            raise ConfigError("; ".join(unknown))
        try:
            return msgspec.convert(values, cls)
        except msgspec.ValidationError as exc:
            raise ConfigError(str(exc)) from exc

    @property
    def name(self) -> str:
        return self.served_model_name or self.model


def _faults(config: EngineConfig) -> list[str]:
    faults = []
    for field, allowed in (
        ("dtype", DTYPES),
        ("device", DEVICES),
        ("load_format", LOAD_FORMATS),
        ("kv_cache_dtype", KV_CACHE_DTYPES),
        ("scheduling_policy", SCHEDULING_POLICIES),
    ):
        value = getattr(config, field)
        if value not in allowed:
            faults.append(f"{field} must be one of {', '.join(allowed)}, got {value!r}")
    for field, low in (
        ("kv_cache_memory_bytes", 1),
        ("num_gpu_blocks_override", 2),
        ("max_num_seqs", 1),
        ("max_num_batched_tokens", 1),
        ("long_prefill_token_threshold", 1),
        ("max_num_queued_reqs", 1),
        ("max_num_queued_tokens", 1),
        ("swap_space", 0),
        ("stream_interval", 1),
        ("num_threads", 1),
        ("max_logprobs", 0),
    ):
        value = getattr(config, field)
        if value is not None and value < low:
            faults.append(f"{field} must be at least {low}, got {value}")
    if config.block_size not in (8, 16, 32, 64, 128):
        faults.append(f"block_size must be 8, 16, 32, 64 or 128, got {config.block_size}")
    for field in ("gpu_memory_utilization", "max_cached_share_per_tenant"):
        value = getattr(config, field)
        if not 0 < value <= 1:
            faults.append(f"{field} must be above 0 and at most 1, got {value}")
    length = config.max_model_len
    if length is not None and length not in ("auto", -1) and (isinstance(length, str) or length < 2):
        faults.append(f"max_model_len must be 'auto' or at least 2, got {length!r}")
    if config.hung_step_timeout_s <= 0:
        faults.append(f"hung_step_timeout_s must be above 0, got {config.hung_step_timeout_s}")
    if config.tensor_parallel_size != 1:
        faults.append(f"tensor_parallel_size must be 1 in this version, got {config.tensor_parallel_size}")
    return faults
