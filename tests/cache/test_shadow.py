"""The false-hit estimate: its interval is exact, its sample is what it says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom

from cache.shadow import (
    ShadowLog,
    binomial_cdf,
    clopper_pearson,
    estimate,
    is_sampled,
    same_answer,
    upper_bound,
)
from cache.store import RedisStore
from tests.cache.support import WordEmbedder, answer


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 3000), st.data())
def test_the_interval_is_clopper_and_pearsons(trials: int, data: st.DataObject) -> None:
    wrong = data.draw(st.integers(0, trials))
    low, high = clopper_pearson(wrong, trials)
    assert low == pytest.approx(0 if wrong == 0 else beta.ppf(0.025, wrong, trials - wrong + 1), abs=1e-7)
    assert high == pytest.approx(1 if wrong == trials else beta.ppf(0.975, wrong + 1, trials - wrong), abs=1e-7)


@given(st.integers(0, 500), st.integers(1, 500), st.floats(0, 1))
def test_the_binomial_sum_agrees_with_a_reference(successes: int, trials: int, p: float) -> None:
    successes = min(successes, trials)
    assert binomial_cdf(successes, trials, p) == pytest.approx(binom.cdf(successes, trials, p), abs=1e-9)


def test_no_wrong_of_three_hundred_is_at_most_one_per_cent_by_the_rule_of_three() -> None:
    assert upper_bound(0, 300) == pytest.approx(3 / 300, rel=0.01)


def test_without_checks_nothing_is_known() -> None:
    assert (estimate(0, 0).low, estimate(0, 0).high) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 wrong of 2"):
        estimate(3, 2)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_the_sample_is_the_share_asked_for_and_the_same_each_time(share: float) -> None:
    ids = [f"req-{number}" for number in range(20_000)]
    picked = [is_sampled(request_id, share) for request_id in ids]
    assert picked == [is_sampled(request_id, share) for request_id in ids]
    assert sum(picked) / len(ids) == pytest.approx(share, abs=0.01)


async def test_verdicts_are_counted_per_tenant(store: RedisStore) -> None:
    log = ShadowLog(store)
    for number in range(10):
        await log.record("acme", wrong=number == 0)
    await log.record("globex", wrong=False)
    ours = await log.estimate("acme")
    assert (ours.checked, ours.wrong, ours.rate) == (10, 1, 0.1)
    assert ours.low < 0.1 < ours.high
    assert (await log.estimate("globex")).wrong == 0
    await log.reset("acme")
    assert (await log.estimate("acme")).checked == 0


@pytest.mark.parametrize(
    ("served", "fresh", "same"),
    [
        ("Paris.", " Paris. ", True),
        ("The capital is Paris.", "Paris is the capital.", True),
        ("The fee is 5 euros.", "The fee is 6 euros.", False),
        ("Returns are accepted.", "Returns are not accepted.", False),
        ("The capital is Paris.", "Bananas are yellow and sweet.", False),
    ],
)
async def test_answers_are_compared_by_meaning_numbers_and_negations(served: str, fresh: str, same: bool) -> None:
    assert await same_answer(WordEmbedder(), answer(served), answer(fresh)) is same
