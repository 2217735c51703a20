"""How many pages there are, and what a shortage says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.attention import AttentionSpec, group_layers
from engine.errors import ModelLoadError
from engine.kv_cache import KVCache, plan_cache
from engine.step_plan import PageMove, StepPlan
from tests.engine.core_harness import make_core

FULL = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0)
LOCAL = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0, window=64)
COMMON = {"block_size": 16, "dtype": torch.float32, "max_num_seqs": 4, "max_chunk": 64, "max_model_len": 4096}
PAGE = 2 * 2 * 16 * 8 * 4  # bytes of one page of one layer


def test_layers_group_by_kind_full_attention_first() -> None:
    groups = group_layers((LOCAL, FULL, LOCAL, FULL))
    assert [(group.key.window, group.layers) for group in groups] == [(None, (1, 3)), (64, (0, 2))]


def test_pages_fill_the_budget_and_no_more() -> None:
    layout = plan_cache((FULL,) * 3, budget_bytes=100 * 3 * PAGE, **COMMON)  # type: ignore[arg-type]
    assert layout.num_pages == (100,)
    assert layout.size_bytes <= 100 * 3 * PAGE


def test_no_more_pages_are_made_than_all_sequences_could_fill() -> None:
    layout = plan_cache((FULL,), budget_bytes=1 << 40, **COMMON)  # type: ignore[arg-type]
    assert layout.num_pages[0] <= 2 * 4 * 4096 // 16 + 1


def test_a_window_group_gets_what_its_windows_can_fill() -> None:
    layout = plan_cache((FULL, LOCAL), budget_bytes=1 << 24, **COMMON)  # type: ignore[arg-type]
    full, local = layout.num_pages
    assert local < full
    assert local >= 4 * (64 // 16 + 1)


def test_too_little_memory_says_what_to_raise() -> None:
    with pytest.raises(ModelLoadError, match="raise --gpu-memory-utilization or --kv-cache-memory-bytes"):
        plan_cache((FULL,), budget_bytes=PAGE, **COMMON)  # type: ignore[arg-type]


def test_a_context_that_does_not_fit_says_what_to_lower_it_to(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"lower --max-model-len to \d+, or raise --kv-cache-memory-bytes"):
        make_core(tmp_path, num_gpu_blocks_override=0, kv_cache_memory_bytes=1 << 16, max_model_len=2048)
    core = make_core(tmp_path, num_gpu_blocks_override=0, kv_cache_memory_bytes=1 << 16, max_model_len="auto")
    assert 16 <= core.info.max_model_len < 2048
    with pytest.raises(ModelLoadError, match="lower --max-model-len to 2048"):
        make_core(tmp_path, max_model_len=4096)


def test_moves_run_in_the_plans_order() -> None:
    # Given page 1 that is swapped out and, in the same step, overwritten by a page that comes in
    layout = plan_cache((FULL,), budget_bytes=1 << 20, num_blocks=4, swap_bytes=1 << 20, **COMMON)  # type: ignore[arg-type]
    cache = KVCache(layout, torch.device("cpu"))
    pool, host = cache.pools[0], cache.host_pools[0]
    pool[1], pool[3], host[2] = 1.0, 3.0, 2.0
    plan = StepPlan(
        swap_out=[PageMove(0, 1, 0)], zero=[(0, 3)], swap_in=[PageMove(0, 2, 1)], copies=[PageMove(0, 1, 2)]
    )
    cache.apply(plan)
    assert float(host[0].mean()) == 1.0
    assert [float(pool[i].mean()) for i in (1, 2, 3)] == [2.0, 2.0, 0.0]
