"""Ids rise as they are made, so that lists page by them."""

from __future__ import annotations

from billing.ids import new_id


def test_ids_of_one_millisecond_and_of_a_clock_that_went_back_still_rise() -> None:
    far = 4_000_000_000_000  # beyond what other tests made
    made = [new_id("x", now_ms=far) for _ in range(1000)] + [new_id("x", now_ms=far - 5) for _ in range(10)]
    assert made == sorted(made)
    assert len(set(made)) == 1010
    assert all(len(id) == 28 for id in made)
