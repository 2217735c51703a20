"""`build_core`: from an `EngineConfig` to a core that can step, with each phase's seconds."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.cpu_runner import CpuRunner
from engine.cuda_runner import CudaRunner
from engine.errors import ModelLoadError
from engine.grammar import GrammarMasks
from engine.invariant import make_invariant
from engine.kv_cache import GIB, CacheLayout, plan_cache
from engine.loader import DTYPES, load_model, num_parameters
from engine.model_config import ModelConfig
from engine.model_info import make_model_info
from engine.model_runner import ModelRunner
from engine.model_source import resolve_model
from engine.models.base import CausalLM
from engine.ngram_proposer import NgramProposer
from engine.queue_gate import QueueGate
from engine.scheduler import Scheduler, SchedulerLimits
from engine.swap_cost import SwapCost
from engine.tokenizer import Tokenizer
from engine.types import ModelInfo
from engine.validation import RequestLimits

logger = logging.getLogger(__name__)

# A step of so many tokens takes an H200 less than 25 ms with an 8B model (docs/performance.md), and a CPU 0.4 s with a
# 135M one: no stream waits longer for its next token. Where nobody streams, larger steps read prompts a sixth faster.
GPU_STEP_TOKENS = 384
CPU_STEP_TOKENS = 512
OFFLINE_GPU_STEP_TOKENS = 8192
CPU_KV_SHARE = 0.25
CPU_KV_MAX_BYTES = 4 * GIB


@dataclass
class StartupReport:
    """Seconds of each phase of a start, in order."""

    phases: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.phases[name] = time.perf_counter() - started
        logger.info("%s %.2f", name, self.phases[name])


@dataclass(frozen=True)
class StepBounds:
    """What `None` in the config became on this device."""

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int
    swap_bytes: int
    max_in_flight: int


def step_bounds(config: EngineConfig, device: torch.device, max_position: int) -> StepBounds:
    """Defaults by device. A CPU's host memory is the device's own, so swapping there gains nothing over more pages."""
    on_gpu = device.type != "cpu"
    seqs = config.max_num_seqs or (256 if on_gpu else 32)
    budget = config.max_num_batched_tokens or (GPU_STEP_TOKENS if on_gpu else CPU_STEP_TOKENS)
    if not config.enable_chunked_prefill:
        budget = max(budget, max_position)  # a prompt must fit into one step
    budget = max(budget, seqs)  # every running sequence gets its token every step
    threshold = config.long_prefill_token_threshold or max(1, budget // 2)
    swap_gib = config.swap_space if config.swap_space >= 0 else (4.0 if on_gpu else 0.0)
    overlap = config.async_scheduling == "on" or (config.async_scheduling == "auto" and on_gpu)
    return StepBounds(seqs, budget, min(threshold, budget), int(swap_gib * GIB), int(overlap))


def build_core(
    config: EngineConfig,
    *,
    report: StartupReport | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> EngineCore:
    """Loads the model, sizes and makes the cache. Raises: ModelLoadError."""
    report = report or StartupReport()
    device = pick_device(config)
    if device.type == "cpu":
        torch.set_num_threads(config.num_threads or default_num_threads())
    with report.phase("find_model_s"):
        folder = resolve_model(config.model, cache_dir=Path(config.download_dir), dtype=config.dtype)
    return build_core_from_folder(config, folder, device=device, report=report, clock=clock)


def build_core_from_folder(
    config: EngineConfig,
    folder: Path,
    *,
    device: torch.device,
    report: StartupReport,
    clock: Callable[[], float],
) -> EngineCore:
    """As `build_core`, from a resolved folder."""
    with report.phase("load_weights_s"):
        model, model_config = load_model(
            folder,
            dtype=config.dtype,
            device=device,
            load_format="auto" if config.load_format == "gguf" else config.load_format,
            quantization=config.quantization,
            max_model_len=wanted_max_model_len(config),
        )
    if config.deterministic:
        make_invariant(model)
    bounds = step_bounds(config, device, model_config.max_position)
    with report.phase("make_cache_s"):
        layout, max_model_len = size_cache(config, model, model_config, device, bounds)
        runner = runner_class(device)(
            model,
            layout,
            device=device,
            max_num_seqs=bounds.max_num_seqs,
            max_model_len=max_model_len,
            logits_width=model_config.vocab_size,
            eos_token_ids=model_config.eos_token_ids,
            grammars=_make_grammars(config, folder, model_config),
            deterministic=config.deterministic,
        )
    if isinstance(runner, CudaRunner):
        with report.phase("capture_graphs_s"):
            runner.warm_up(capture=not config.enforce_eager, max_tokens=bounds.max_num_batched_tokens)
    info = make_model_info(
        config.name,
        folder,
        model_config,
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
        max_model_len=max_model_len,
        num_parameters=num_parameters(model),
        quantization=config.quantization,
        kv_cache_dtype=config.kv_cache_dtype,
    )
    return assemble_core(config, runner, bounds, info, clock)


def _make_grammars(config: EngineConfig, folder: Path, model_config: ModelConfig) -> GrammarMasks:
    """A bare shape to be measured has no tokenizer, and so no grammars."""
    source = Path(config.tokenizer) if config.tokenizer else folder
    tokenizer = Tokenizer.from_folder(source) if config.tokenizer or (folder / "tokenizer.json").is_file() else None
    return GrammarMasks(tokenizer, model_config.vocab_size, model_config.eos_token_ids)


def wanted_max_model_len(config: EngineConfig) -> int | None:
    """The context limit that was asked for; None when the model and the pages are to decide."""
    length = config.max_model_len
    return length if isinstance(length, int) and length > 0 else None


def runner_class(device: torch.device) -> type[ModelRunner]:
    return CudaRunner if device.type == "cuda" else CpuRunner


def assemble_core(
    config: EngineConfig, runner: ModelRunner, bounds: StepBounds, info: ModelInfo, clock: Callable[[], float]
) -> EngineCore:
    """Joins scheduler, memory and runner."""
    blocks = BlockManager(
        runner.cache.layout.group_layouts(),
        block_size=config.block_size,
        max_chunk=bounds.max_num_batched_tokens,
        enable_prefix_caching=config.enable_prefix_caching,
        cap_share=config.max_cached_fraction_per_tenant,
    )
    gate = QueueGate(config.max_num_queued_reqs, config.max_num_queued_tokens or None)
    swap_cost = SwapCost(runner.measure_page_move_s())
    scheduler = Scheduler(
        SchedulerLimits(
            max_num_seqs=bounds.max_num_seqs,
            max_num_batched_tokens=bounds.max_num_batched_tokens,
            long_prefill_token_threshold=bounds.long_prefill_token_threshold,
            enable_chunked_prefill=config.enable_chunked_prefill,
            by_priority=config.scheduling_policy == "priority",
        ),
        blocks,
        gate,
        swap_cost.swap_is_cheaper,
        make_proposer(config, runner.device),
    )
    limits = RequestLimits(
        info.max_model_len, info.logits_width, blocks.max_tokens_alone(), config.max_logprobs, config.max_n
    )
    return EngineCore(
        runner,
        scheduler,
        info=info,
        limits=limits,
        gate=gate,
        swap_cost=swap_cost,
        seed=config.seed,
        max_in_flight=bounds.max_in_flight,
        stream_interval=config.stream_interval,
        clock=clock,
    )


def make_proposer(config: EngineConfig, device: torch.device) -> NgramProposer | None:
    """Drafts where they were asked for, on a CPU: on a GPU steps overlap, and captured steps take no drafts yet."""
    speculation = config.speculation
    if speculation is None:
        return None
    if device.type != "cpu":
        logger.warning("speculative_config is off: this version speculates on a CPU only, the device is %s", device)
        return None
    return NgramProposer(speculation)


def default_num_threads() -> int:
    """One less than the cores this process may use: OpenMP's threads wait for each other by spinning, and when another
    thread holds a core a step waits out whole time slices (2 cores, busy gateway: 3 tok/s with 2 threads, 33 with 1).
    """
    return max(1, len(os.sched_getaffinity(0)) - 1)


def pick_device(config: EngineConfig) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ModelLoadError("device 'cuda' was asked for, but torch sees no CUDA device")
    if config.device != "auto":
        return torch.device(config.device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def size_cache(
    config: EngineConfig, model: CausalLM, model_config: ModelConfig, device: torch.device, bounds: StepBounds
) -> tuple[CacheLayout, int]:
    """The pools and the context limit. Raises: ModelLoadError saying which number to lower and to what."""
    wanted = wanted_max_model_len(config)
    if wanted is not None and wanted > model_config.max_position:
        raise ModelLoadError(
            f"max_model_len {wanted} is more than the model's {model_config.max_position} positions: lower "
            f"--max-model-len to {model_config.max_position}"
        )
    most = wanted or model_config.max_position
    budget_bytes = kv_budget_bytes(config, device)
    layout = plan_cache(
        model.attention_specs,
        block_size=config.block_size,
        dtype=_kv_dtype(config, model),
        budget_bytes=budget_bytes,
        num_blocks=config.num_gpu_blocks_override or None,
        max_num_seqs=bounds.max_num_seqs,
        max_chunk=bounds.max_num_batched_tokens,
        max_model_len=most,
        swap_bytes=bounds.swap_bytes,
    )
    blocks = BlockManager(layout.group_layouts(), block_size=config.block_size, max_chunk=bounds.max_num_batched_tokens)
    longest = blocks.max_tokens_alone()
    if wanted is not None and wanted > longest and not config.num_gpu_blocks_override:
        raise ModelLoadError(
            f"{layout.size_bytes / GIB:.2f} GiB of pages hold {longest} tokens, max_model_len is {wanted}: lower "
            f"--max-model-len to {longest}, or raise --kv-cache-memory-bytes (now {budget_bytes})"
        )
    return layout, min(most, longest)


def kv_budget_bytes(config: EngineConfig, device: torch.device) -> int:
    """Bytes for pages: what was asked for, else what is free now, the weights loaded, under the share."""
    if config.kv_cache_memory_bytes:
        return config.kv_cache_memory_bytes
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        budget = int(free - (1 - config.gpu_memory_utilization) * total)
        if budget <= 0:
            raise ModelLoadError(
                f"{free / GIB:.1f} of {total / GIB:.1f} GiB are free on the device after loading the weights, "
                f"gpu_memory_utilization {config.gpu_memory_utilization} leaves none for pages: raise it, or free "
                "what else uses the device"
            )
        return budget
    return min(CPU_KV_MAX_BYTES, int(_available_memory_bytes() * CPU_KV_SHARE * config.gpu_memory_utilization))


def _available_memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _kv_dtype(config: EngineConfig, model: CausalLM) -> torch.dtype:
    if config.kv_cache_dtype in ("fp8", "fp8_e4m3"):
        return torch.float8_e4m3fn
    parameter = next(model.parameters())
    # Quantised weights are integers; their activations run in bfloat16.
    return parameter.dtype if parameter.dtype in DTYPES.values() else torch.bfloat16
