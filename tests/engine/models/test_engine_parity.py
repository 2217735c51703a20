"""Every architecture through the whole engine: its greedy tokens are transformers' choices, however it ran them."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.startup import StartupReport, build_core_from_folder
from tests.engine.core_harness import request, run
from tests.engine.models.checkpoints import CASES, VOCAB, make_checkpoint
from tests.engine.models.greedy import assert_greedy

NUM_PROMPTS, NUM_GREEDY = 17, 64
# name -> (settings, how many prompts run at once)
RUNS: dict[str, tuple[dict[str, Any], int]] = {
    "whole, cached, 17 at once": ({"max_num_batched_tokens": 2048}, NUM_PROMPTS),
    "chunks of 16, uncached, 17 at once": (
        {"max_num_batched_tokens": 32, "long_prefill_token_threshold": 16, "enable_prefix_caching": False},
        NUM_PROMPTS,
    ),
    "chunks of 16, cached, preempted": (
        {"max_num_batched_tokens": 32, "long_prefill_token_threshold": 16, "num_gpu_blocks_override": 40},
        NUM_PROMPTS,
    ),
    "whole, uncached, alone": ({"max_num_batched_tokens": 2048, "enable_prefix_caching": False}, 1),
}


def _core(folder: Path, settings: dict[str, Any]) -> EngineCore:
    config = EngineConfig.from_mapping(
        {"model": str(folder), "device": "cpu", "dtype": "float32", "num_gpu_blocks_override": 512, **settings}
    )
    return build_core_from_folder(
        config, folder, device=torch.device("cpu"), report=StartupReport(), clock=time.perf_counter
    )


def _prompts() -> list[list[int]]:
    """17 prompts of uneven length; half of them begin alike, so that the prefix cache has something to do."""
    random = Random(7)
    shared = [random.randrange(3, VOCAB) for _ in range(32)]
    lengths = [random.randrange(1, 60) for _ in range(NUM_PROMPTS)]
    return [
        (shared if i % 2 else []) + [random.randrange(3, VOCAB) for _ in range(length)]
        for i, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_are_transformers_choices_however_they_were_run(case: str, tmp_path: Path) -> None:
    # Given a tiny random checkpoint and 17 prompts
    reference = make_checkpoint(case, tmp_path)
    prompts = _prompts()
    for where, (settings, at_once) in RUNS.items():
        core = _core(tmp_path, settings)
        subset = prompts if at_once > 1 else prompts[:3]
        # When they run together or alone
        outputs: dict[str, list[int]] = {}
        for start in range(0, len(subset), at_once):
            batch = subset[start : start + at_once]
            outputs |= run(core, [request(str(start + i), ids, max_tokens=NUM_GREEDY) for i, ids in enumerate(batch)])
        # Then every clear choice is the reference's
        clear = [assert_greedy(reference, ids, outputs[str(i)], where) for i, ids in enumerate(subset)]
        assert [len(outputs[str(i)]) for i in range(len(subset))] == [NUM_GREEDY] * len(subset)
        assert sum(clear) > 0.95 * NUM_GREEDY * len(subset)
        stats = core.stats()
        assert (stats.num_preemptions > 0) == ("preempted" in where)
        assert (stats.prefix_cache_hits > 0) == (", cached" in where)
