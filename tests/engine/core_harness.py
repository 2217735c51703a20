"""A tiny random Llama behind a real `EngineCore`: fp32, weights with a wide spread, so greedy choices are clear."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import torch

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.core_output import CoreOutput
from engine.startup import StartupReport, build_core_from_folder
from engine.types import EngineRequest, Priority, SamplingParams

VOCAB = 300
SALT = b"tenant-a-project-1-salt"
SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "eos_token_id": VOCAB - 1,
    "torch_dtype": "float32",
}
# Drafts from the first repeated token on, so that even short texts have some.
SPECULATIVE: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}
# Two layers over everything, one over the last 24 tokens: two page groups.
WINDOWED: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_hidden_layers": 3,
    "sliding_window": 24,
    "use_sliding_window": True,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}


def make_core(
    folder: Path, *, shape: dict[str, Any] | None = None, seed: int = 0, circling: bool = False, **settings: Any
) -> EngineCore:
    """A core over a dummy checkpoint in `folder`, its weights redrawn from N(0, 0.25). `circling`: its model hardly
    looks back, so that its text goes round in circles."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SHAPE, **(shape or {})}))
    clock = settings.pop("clock", time.perf_counter)
    config = EngineConfig.from_mapping(
        {"model": str(folder), "load_format": "dummy", "device": "cpu", "num_gpu_blocks_override": 512, **settings}
    )
    core = build_core_from_folder(config, folder, device=torch.device("cpu"), report=StartupReport(), clock=clock)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in core.runner.model.named_parameters():
        if not name.endswith("norm.weight"):
            parameter.data.normal_(0, 0.25, generator=generator)
        if circling and "o_proj" in name:
            parameter.data.mul_(0.05)
    return core


def prompt(length: int, seed: int = 0) -> list[int]:
    """`length` ids; a longer prompt of the same seed begins with a shorter one's."""
    random = Random(seed)
    return [random.randrange(VOCAB - 1) for _ in range(length)]


def request(
    name: str,
    ids: list[int],
    *,
    tenant: str = "a",
    priority: Priority = Priority.STANDARD,
    salt: bytes = SALT,
    weight: float = 1.0,
    **sampling: Any,
) -> EngineRequest:
    """Greedy and to full length unless told otherwise."""
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **sampling})
    return EngineRequest(
        request_id=name,
        prompt_token_ids=ids,
        sampling=params,
        cache_salt=salt,
        tenant=tenant,
        priority=priority,
        weight=weight,
    )


def add(core: EngineCore, *requests: EngineRequest) -> None:
    for item in requests:
        core.add(core.accept(item))


def step(core: EngineCore) -> list[CoreOutput]:
    """One step, every invariant checked after it."""
    outputs = core.step()
    core.scheduler.check()
    return outputs


def run(core: EngineCore, requests: Iterable[EngineRequest] = (), *, max_steps: int = 5000) -> dict[str, list[int]]:
    """Runs everything to the end. Returns tokens by request id; for n > 1 by "id/index" from index 1 on."""
    add(core, *requests)
    tokens: dict[str, list[int]] = {}
    for _ in range(max_steps):
        if not core.has_work:
            return tokens
        for output in step(core):
            name = output.request_id if output.index == 0 else f"{output.request_id}/{output.index}"
            tokens.setdefault(name, []).extend(output.token_ids)
    raise AssertionError(f"still running after {max_steps} steps")


def leaked_pages(core: EngineCore) -> int:
    return core.stats().kv_blocks_referenced
