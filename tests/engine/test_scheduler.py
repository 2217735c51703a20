"""Who runs next, who yields, and for how long anybody can be kept waiting."""

from __future__ import annotations

from random import Random

import pytest

from engine.block_manager import GroupLayout
from engine.errors import QueueFull
from engine.scheduler import MAX_PREEMPTIONS
from engine.sequence import Status
from engine.types import FinishReason, Priority
from tests.engine.scheduler_harness import make_driver

LONGEST = 60


def test_a_step_never_passes_its_budget_or_its_slots() -> None:
    driver = make_driver(seqs=5, budget=40, threshold=40)
    random = Random(1)
    for i in range(60):
        driver.add(f"r{i}", random.randrange(1, 150), max_tokens=random.randrange(1, 20))
    while driver.scheduler.has_work:
        plan = driver.step()
        assert 0 < plan.num_tokens <= 40
        assert len(driver.running) <= 5
        lengths = [item.length for item in plan.scheduled]
        assert lengths == sorted(lengths, key=lambda n: n > 1)  # decodes first


def test_a_long_prompt_starves_neither_decodes_nor_a_short_prompt() -> None:
    # Given a stream decoding
    driver = make_driver(num_pages=6000, seqs=8, budget=64, threshold=32)
    driver.add("stream", 5, max_tokens=5000)
    driver.step()
    # When a prompt of 64k tokens arrives, then one of 100
    driver.add("long", 65_536, max_tokens=1)
    driver.step()
    driver.add("short", 100, max_tokens=1)
    # Then the stream gets a token every step, and the short prompt is done in a few
    for _ in range(5):
        plan = driver.step()
        assert "stream" in {item.sequence.group.request.request_id for item in plan.scheduled}
    assert driver.finished == ["short"]


def test_an_urgent_request_takes_a_slot_from_a_lower_class() -> None:
    # Given every slot held by batch requests
    driver = make_driver(seqs=4)
    for i in range(6):
        driver.add(f"batch{i}", priority=Priority.BATCH, max_tokens=50)
    driver.step()
    assert driver.running == ["batch0", "batch1", "batch2", "batch3"]
    # When an interactive one comes
    driver.add("urgent", priority=Priority.INTERACTIVE)
    plan = driver.step()
    # Then it runs in the next step, the latest batch request yields, and all end
    assert driver.running == ["urgent", "batch0", "batch1", "batch2"]
    assert [s.group.request.request_id for s in plan.preempted] == ["batch3"]
    driver.run()
    assert sorted(driver.finished) == sorted(["urgent", *(f"batch{i}" for i in range(6))])


def test_an_urgent_request_takes_pages_from_a_lower_class() -> None:
    driver = make_driver(num_pages=41, seqs=8, budget=256, threshold=256)
    for i in range(4):
        driver.add(f"batch{i}", 150, priority=Priority.BATCH, max_tokens=9)
    for _ in range(3):
        driver.step()
    assert len(driver.running) == 4
    driver.add("urgent", 300, priority=Priority.INTERACTIVE)
    driver.step()
    assert "urgent" in driver.running
    driver.run()
    assert len(driver.finished) == 5


def test_classes_are_served_in_order_and_equals_by_arrival() -> None:
    driver = make_driver(seqs=1)
    for name, priority in (("b", 2), ("s1", 1), ("s2", 1), ("i", 0)):
        driver.add(name, priority=Priority(priority))
    driver.run()
    assert driver.finished == ["i", "s1", "s2", "b"]


def test_fcfs_knows_neither_classes_nor_tenants() -> None:
    driver = make_driver(seqs=1, by_priority=False)
    for i, priority in enumerate((2, 1, 0)):
        driver.add(f"r{i}", priority=Priority(priority), tenant=f"t{i}")
    driver.run()
    assert driver.finished == ["r0", "r1", "r2"]


def test_another_tenants_single_request_is_the_next_one_admitted() -> None:
    # Given one tenant with a thousand requests queued
    driver = make_driver(seqs=4)
    for i in range(1000):
        driver.add(f"flood{i}", tenant="flood", max_tokens=20)
    for _ in range(30):
        driver.step()
    running = set(driver.running)
    # When another tenant sends one
    driver.add("single", tenant="quiet")
    # Then the next request that starts is that one
    while set(driver.running) <= running:
        driver.step()
    assert set(driver.running) - running == {"single"}


@pytest.mark.parametrize("lengths", [(1, 60), (60, 1), (30, 30), (60, 60)])
@pytest.mark.parametrize("outputs", [(2, 120), (120, 2), (40, 40)])
def test_two_tenants_with_work_waiting_are_served_alike(lengths: tuple[int, int], outputs: tuple[int, int]) -> None:
    # Given two tenants with more work queued than can run, of very different shapes, one of them there first
    driver = make_driver(seqs=8, budget=64, threshold=64)
    for i in range(300):
        driver.add(f"a{i}", lengths[0], tenant="a", max_tokens=outputs[0])
    for _ in range(40):
        driver.step()
    for i in range(300):
        driver.add(f"b{i}", lengths[1], tenant="b", max_tokens=outputs[1])
    scheduler = driver.scheduler
    # Then neither counters nor tokens really served differ by more than one longest prompt and one step's budget
    worst = worst_real = 0.0
    start = {tenant: driver.served[tenant] for tenant in "ab"}
    for _ in range(600):
        driver.step()
        waiting = {s.group.request.tenant for s in scheduler.sequences() if s.status is Status.WAITING}
        if waiting != {"a", "b"}:
            break
        counters = [scheduler.served_tokens(Priority.STANDARD, tenant) for tenant in "ab"]
        worst = max(worst, abs(counters[0] - counters[1]))
        a, b = (driver.served[tenant] - start[tenant] for tenant in "ab")
        worst_real = max(worst_real, abs(a - b))
    assert 0 < worst <= LONGEST + 64
    assert 0 < worst_real <= LONGEST + 64


def test_a_tenant_of_twice_the_weight_is_served_twice_as_much() -> None:
    driver = make_driver(seqs=6)
    for i in range(400):
        driver.add(f"a{i}", tenant="a", weight=2.0, max_tokens=30)
        driver.add(f"b{i}", tenant="b", weight=1.0, max_tokens=30)
    for _ in range(400):
        driver.step()
    assert driver.served["a"] / driver.served["b"] == pytest.approx(2.0, rel=0.06)


def test_idling_earns_no_credit() -> None:
    # Given a tenant that works for long while another idles
    driver = make_driver(seqs=2)
    driver.add("seed", tenant="idler", max_tokens=1)
    for i in range(50):
        driver.add(f"w{i}", tenant="worker", max_tokens=40)
    for _ in range(500):
        driver.step()
    # When the idler comes back with much work
    for i in range(50):
        driver.add(f"i{i}", tenant="idler", max_tokens=40)
    before = dict(driver.served)
    for _ in range(300):
        driver.step()
    # Then it gets its share from now on, not what it might have had
    gained = {t: driver.served[t] - before[t] for t in before}
    assert gained["worker"] / gained["idler"] == pytest.approx(1.0, rel=0.25)


def test_pages_run_out_and_everyone_still_ends_within_bounded_preemptions() -> None:
    # Given 64 pages and 32 requests that need 20 each
    driver = make_driver(num_pages=65, seqs=32, budget=128)
    groups = [driver.add(f"r{i}", 20 + i, max_tokens=300) for i in range(32)]
    driver.run()
    assert len(driver.finished) == 32
    assert driver.scheduler.num_preemptions > 0
    assert max(s.num_preemptions for g in groups for s in g.sequences) <= MAX_PREEMPTIONS


def test_the_oldest_request_is_never_preempted_by_its_equals() -> None:
    driver = make_driver(num_pages=33, seqs=8)
    first = driver.add("first", 40, max_tokens=300)
    for i in range(7):
        driver.add(f"r{i}", 40, max_tokens=300)
    driver.run()
    assert first.sequences[0].num_preemptions == 0
    assert driver.finished[0] == "first"


@pytest.mark.parametrize("swap", [False, True])
def test_a_preempted_request_computes_again_or_swaps_as_the_cost_says(swap: bool) -> None:
    groups = (GroupLayout(None, 20, 40),)
    driver = make_driver(groups=groups, seqs=4, swap_is_cheaper=lambda _t, _p: swap, enable_prefix_caching=False)
    for i in range(4):
        driver.add(f"r{i}", 60, max_tokens=60)
    moved = {"out": 0, "in": 0}
    while driver.scheduler.has_work:
        plan = driver.step()
        moved["out"] += len(plan.swap_out)
        moved["in"] += len(plan.swap_in)
    assert driver.scheduler.num_preemptions > 0
    assert (moved["out"] > 0) is swap
    assert moved["in"] == moved["out"]
    # Swapping computes nothing again
    assert (driver.computed == 4 * 119) is swap


def test_swap_falls_back_to_recompute_when_host_memory_is_full() -> None:
    driver = make_driver(groups=(GroupLayout(None, 20, 3),), seqs=4, swap_is_cheaper=lambda _t, _p: True)
    for i in range(4):
        driver.add(f"r{i}", 60, max_tokens=60)
    driver.run()
    assert len(driver.finished) == 4


def test_siblings_share_the_prompts_pages_until_they_write() -> None:
    driver = make_driver(seqs=8, budget=128)
    driver.add("r", 40, max_tokens=3, n=4)
    plan = driver.step()
    # The prompt's three pages serve all four
    assert len(plan.sampled) == 4
    assert driver.scheduler.blocks.pools[0].num_referenced == 3
    plan = driver.step()
    # Each writes its own copy of the last page; the last one left keeps the original
    assert len(plan.copies) == 3
    assert driver.scheduler.blocks.pools[0].num_referenced == 2 + 4
    driver.run()
    assert driver.finished == ["r"] * 4


def test_siblings_without_a_slot_wait_and_find_the_prompt_in_the_cache() -> None:
    driver = make_driver(seqs=2, budget=128)
    group = driver.add("r", 40, max_tokens=3, n=5)
    driver.run()
    assert driver.finished == ["r"] * 5
    assert len(group.sequences) == 5
    assert driver.scheduler.num_preemptions == 0


def test_without_chunking_a_prompt_runs_whole() -> None:
    driver = make_driver(budget=100, threshold=100, enable_chunked_prefill=False)
    for i in range(5):
        driver.add(f"r{i}", 70, max_tokens=3)
    while driver.scheduler.has_work:
        assert all(item.length in (1, 70) for item in driver.step().scheduled)


def test_the_queue_refuses_early_and_says_when_to_come_back() -> None:
    driver = make_driver(seqs=2, max_queued=200)
    refused = []
    driver.scheduler.gate.note_rate(1000, 1.0)
    for i in range(2000):
        try:
            driver.add(f"r{i}", 40)
        except QueueFull as exc:
            refused.append(exc)
    assert len(refused) == 1800
    assert refused[0].retry_after_s == pytest.approx(200 * 40 / 1000)
    # A place is free again as soon as one runs
    driver.step()
    driver.add("late")
    driver.run()
    assert len(driver.finished) == 201
    assert driver.scheduler.gate.num_waiting == 0


def test_ending_twice_from_any_state_is_harmless() -> None:
    driver = make_driver(seqs=1)
    running, waiting = driver.add("running", 40), driver.add("waiting", 40)
    driver.step()
    for group in (running, waiting):
        for _ in range(3):
            driver.scheduler.finish(group.sequences[0], FinishReason.ABORT)
            driver.scheduler.check()
    assert not driver.scheduler.has_work
    assert driver.scheduler.gate.num_waiting == 0
    assert driver.scheduler.blocks.pools[0].num_referenced == 0


def test_a_window_group_holds_no_page_outside_its_window() -> None:
    # Given one full group and one that sees 40 tokens
    groups = (GroupLayout(None, 200), GroupLayout(40, 200))
    driver = make_driver(groups=groups, seqs=2, budget=32, threshold=32, enable_prefix_caching=False)
    driver.add("r", 500, max_tokens=500)
    most = 0
    while driver.scheduler.has_work:
        driver.step()
        most = max(most, driver.scheduler.blocks.pools[1].num_referenced)
    # Then it never held more than the window and a step's chunk
    assert most <= (40 + 32) // 16 + 2
    assert driver.scheduler.blocks.pools[0].num_free == 199


def test_a_sequence_as_large_as_the_pool_comes_back_from_host_memory() -> None:
    # Given a batch request that fills every page, swapped out for an urgent one
    driver = make_driver(
        groups=(GroupLayout(None, 11, 20),), budget=256, threshold=256, swap_is_cheaper=lambda *_: True
    )
    driver.add("large", 155, max_tokens=6, priority=Priority.BATCH)
    driver.step()
    driver.add("urgent", 40, priority=Priority.INTERACTIVE)
    plan = driver.step()
    assert len(plan.swap_out) == 10
    driver.run(100)
    assert driver.finished == ["urgent", "large"]


def test_a_pool_smaller_than_a_window_bounds_the_sequence() -> None:
    def longest(*groups: GroupLayout) -> int:
        return make_driver(groups=groups, budget=32).scheduler.blocks.max_tokens_alone()

    assert longest(GroupLayout(None, 11)) == 160
    assert longest(GroupLayout(40, 5)) == 64
    assert longest(GroupLayout(40, 11)) > 1 << 20
    assert longest(GroupLayout(None, 11), GroupLayout(40, 5)) == 64
