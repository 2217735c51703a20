"""A start says what it did and how long each part took."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.startup import StartupReport, build_core, step_bounds


def test_a_start_reports_its_phases_cold_and_warm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Given a host that has never converted the packaged model, and the same one later
    config = EngineConfig(download_dir=str(tmp_path), device="cpu", num_threads=1, num_gpu_blocks_override=16)
    cold, warm = StartupReport(), StartupReport()
    with caplog.at_level(logging.INFO, logger="engine.startup"):
        build_core(config, report=cold)
        build_core(config, report=warm)
    # Then both name their phases in order, with seconds, and log them
    assert list(cold.phases) == list(warm.phases) == ["find_model_s", "load_weights_s", "make_cache_s"]
    assert all(seconds > 0 for seconds in (*cold.phases.values(), *warm.phases.values()))
    assert [record.getMessage().split()[0] for record in caplog.records] == [*cold.phases, *warm.phases]
    # And what a cold start converts, a warm one finds
    assert warm.phases["find_model_s"] < cold.phases["find_model_s"]


@pytest.mark.parametrize(("device", "budget"), [("cuda", 384), ("cpu", 512)])
def test_a_step_is_short_enough_for_streams_and_one_prompt_takes_half_of_it(device: str, budget: int) -> None:
    bounds = step_bounds(EngineConfig(), torch.device(device), 8192)
    assert (bounds.max_num_batched_tokens, bounds.long_prefill_token_threshold) == (budget, budget // 2)
    asked = step_bounds(EngineConfig(max_num_batched_tokens=8192), torch.device(device), 8192)
    assert (asked.max_num_batched_tokens, asked.long_prefill_token_threshold) == (8192, 4096)
