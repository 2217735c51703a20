"""Which decodes of a step are taken together."""

from __future__ import annotations

from typing import Any, cast

import pytest

from engine import shared_prefix
from engine.sequence import Sequence
from engine.shared_prefix import PrefixGroups
from engine.step_plan import Scheduled, StepPlan

BLOCK = 16
COMMON, OTHER = list(range(1, 41)), list(range(101, 141))


def _plan(*tables: list[int], start: int = 700, admitted: int = 0) -> StepPlan:
    items = []
    for row, pages in enumerate(tables):
        sequence = Sequence(cast("Any", None), 0, [], 0, 0, block_tables=[pages])
        items.append(Scheduled(sequence, row, start, 1, True))
    return StepPlan(scheduled=items, admitted=[item.sequence for item in items[:admitted]])


@pytest.fixture(autouse=True)
def _small_savings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prefix, "MIN_SAVED_TOKENS", 1000)


def test_decodes_that_begin_in_the_same_pages_are_put_together_the_largest_group_first() -> None:
    # Given four of one prefix, five of another and one alone, in mixed order
    tables = [[*COMMON, 200 + i] if i % 2 else [*OTHER, 300 + i] for i in range(9)]
    found = PrefixGroups(BLOCK).find(_plan(*tables, [999, 2, 3]))
    # Then each group shares whole tiles of whole pages: 40 pages of 16 tokens
    assert found is not None
    assert found.order == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
    assert (found.bounds, found.lens) == ([0, 5, 9], [640, 640])
    assert found.starts == [640] * 9 + [0]


def test_what_is_shared_ends_where_one_differs_and_below_every_context() -> None:
    tables = [[*COMMON, 200 + i] for i in range(5)]
    tables[3] = [*COMMON[:30], 500, 501]
    found = PrefixGroups(BLOCK).find(_plan(*tables))
    assert found is not None
    assert found.lens == [30 * BLOCK // 64 * 64]
    below = PrefixGroups(BLOCK).find(_plan(*tables, start=330))
    assert below is not None
    assert below.lens == [320]


def test_few_members_short_prefixes_and_small_savings_are_left_alone() -> None:
    few = [[*COMMON, 200 + i] for i in range(3)]
    short = [[*COMMON[:15], 200 + i] for i in range(20)]
    barely = [[*COMMON[:16], 200 + i] for i in range(4)]  # 3 * 256 tokens
    for tables in (few, short, barely):
        assert PrefixGroups(BLOCK).find(_plan(*tables)) is None


def test_groups_are_made_anew_when_somebody_came_or_went() -> None:
    groups = PrefixGroups(BLOCK)
    first = groups.find(_plan(*[[*COMMON, 200 + i] for i in range(6)]))
    # The same rows: remembered, whatever pages were added since
    assert groups.find(_plan(*[[*COMMON, 200 + i, 300 + i] for i in range(6)])) is first
    alone = [[1000 * (i + 1), 200 + i] for i in range(6)]
    assert groups.find(_plan(*alone, admitted=1)) is None
    assert groups.find(_plan(*[[*COMMON, 200 + i] for i in range(5)])) is not None
    groups.forget()
    assert groups.find(_plan(*alone[:5])) is None
