"""Any order of adding, aborting, preempting, forking and ending: the page invariant holds after every step, and in the
end nothing is held. 2,000 requests a run."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.block_manager import GroupLayout
from engine.sequence import Status
from engine.types import FinishReason, Priority
from tests.engine.scheduler_harness import Driver, make_driver

# Two groups, one with a window, host pages for swap, and far too few pages for the load.
GROUPS = (GroupLayout(None, 48, 24), GroupLayout(40, 40, 16))


def _driver(seed: int, *, caching: bool = True, drafts: int = 0) -> Driver:
    random = Random(seed)
    driver = make_driver(
        groups=GROUPS,
        seqs=6,
        budget=48,
        threshold=24,
        cap_share=0.3,
        enable_prefix_caching=caching,
        swap_is_cheaper=lambda _tokens, _pages: random.random() < 0.5,
        drafts=drafts,
    )
    driver.next_token = lambda: int(random.random() < 0.9)  # drafts mostly hold, and often end in the middle
    return driver


def _add(driver: Driver, name: str, random: Random) -> None:
    """A prompt from a few shared prefixes, so that pages are found, shared, forked and evicted."""
    prefix = [random.randrange(3)] * random.randrange(0, 200)
    tail = [random.randrange(50000) for _ in range(random.randrange(1, 60))]
    driver.add(
        name,
        ids=prefix + tail,
        max_tokens=random.randrange(1, 80),
        tenant=random.choice("abc"),
        priority=Priority(random.randrange(3)),
        weight=random.choice((0.5, 1.0, 2.0)),
        n=random.choice((1, 1, 1, 2, 5)),
        prompt_logprobs=random.choice((None, None, 0)),
    )


def _end_some(driver: Driver, random: Random, reason: FinishReason) -> None:
    """Ends a sequence in whatever state it is, then once more."""
    alive = list(driver.scheduler.sequences())
    if alive:
        victim = random.choice(alive)
        driver.scheduler.finish(victim, reason, condemn=reason is FinishReason.ERROR)
        driver.scheduler.finish(victim, reason)
        driver.scheduler.check()


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1 << 30), caching=st.booleans(), drafts=st.sampled_from([0, 3, 20]))
    def start(self, seed: int, caching: bool, drafts: int) -> None:
        self.driver = _driver(seed, caching=caching, drafts=drafts)
        self.random = Random(seed)
        self.added = 0

    @rule(count=st.integers(1, 60))
    def add(self, count: int) -> None:
        for _ in range(count):
            _add(self.driver, f"r{self.added}", self.random)
            self.added += 1

    @rule(count=st.integers(1, 30))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.driver.step()

    @rule(reason=st.sampled_from([FinishReason.ABORT, FinishReason.STOP, FinishReason.ERROR]))
    def end(self, reason: FinishReason) -> None:
        _end_some(self.driver, self.random, reason)

    @rule()
    def drop_the_cache(self) -> None:
        for pool in self.driver.scheduler.blocks.pools:
            pool.reset_cache()

    @invariant()
    def pages_add_up(self) -> None:
        if hasattr(self, "driver"):
            self.driver.scheduler.check()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.run(20_000)
            _nothing_is_held(self.driver)


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


def _nothing_is_held(driver: Driver) -> None:
    assert not driver.running
    assert driver.scheduler.gate.num_waiting == 0
    assert all(pool.num_referenced == 0 for pool in driver.scheduler.blocks.pools)
    driver.scheduler.blocks.start_step(driver.scheduler.schedule())
    free = driver.scheduler.blocks._host_free
    assert [len(pages) for pages in free] == [group.num_host_pages for group in GROUPS], "host pages leaked"


@pytest.mark.parametrize(("seed", "drafts"), [(1, 0), (2, 4)])
def test_two_thousand_random_requests_leave_nothing_behind(seed: int, drafts: int) -> None:
    # Given 1,000 requests of every kind (2,000 over both seeds), arriving while others run
    driver, random = _driver(seed, drafts=drafts), Random(seed)
    states = set()
    for i in range(1000):
        _add(driver, f"r{i}", random)
        if random.random() < 0.7:
            driver.step()
        if random.random() < 0.25:
            _end_some(driver, random, random.choice([FinishReason.ABORT, FinishReason.STOP, FinishReason.ERROR]))
        states |= {(s.status, s.host_pages is not None) for s in driver.scheduler.sequences()}
    # When all have run
    driver.run(50_000)
    # Then everything that can happen did, and nothing is held
    assert {(Status.WAITING, True), (Status.WAITING, False), (Status.RUNNING, False)} <= states
    assert driver.scheduler.num_preemptions > 50
    assert driver.scheduler.prefix_hits > 1000
    if (proposer := driver.scheduler.proposer) is not None:
        assert 100 < proposer.num_accepted_tokens < proposer.num_draft_tokens - 100
    _nothing_is_held(driver)
