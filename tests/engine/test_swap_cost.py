"""Recompute or swap: whichever the measured figures say."""

from __future__ import annotations

from pathlib import Path

from engine.swap_cost import SwapCost
from tests.engine.core_harness import make_core


def test_the_cheaper_way_is_chosen_from_what_was_measured() -> None:
    cost = SwapCost(page_move_s=0.001)
    cost.note_step(prefill_tokens=100, num_tokens=100, seconds=0.1)  # 1 ms a token
    assert cost.swap_is_cheaper(num_tokens=160, num_pages=10)  # 10 ms against 160 ms
    assert not cost.swap_is_cheaper(num_tokens=8, num_pages=10)  # 10 ms against 8 ms


def test_steps_of_decodes_say_nothing_about_prefill() -> None:
    cost = SwapCost(page_move_s=0.001)
    cost.note_step(prefill_tokens=100, num_tokens=100, seconds=0.1)
    for _ in range(100):
        cost.note_step(prefill_tokens=0, num_tokens=8, seconds=10.0)
    assert not cost.swap_is_cheaper(num_tokens=8, num_pages=10)


def test_without_host_pages_nothing_is_swapped() -> None:
    assert not SwapCost(page_move_s=0.0).swap_is_cheaper(1000, 1)


def test_the_move_is_measured_on_this_machine(tmp_path: Path) -> None:
    assert make_core(tmp_path, swap_space=0.01).runner.measure_page_move_s() > 0
    assert make_core(tmp_path, swap_space=0).runner.measure_page_move_s() == 0
