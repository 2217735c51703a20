"""`StepPlan`: what one step does, in plain integers: the scheduler's output and the runner's input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.sequence import Sequence


@dataclass(slots=True)
class Scheduled:
    """`length` tokens of `sequence` from position `start`; `row` is its state row. `samples`: this chunk reaches the
    last token, so the next one is sampled; forks are siblings sampled from the same logits.

    draft: the token its position is taken to hold, proposed and not sampled; -1: none. A sequence with drafts has one
    item of one token for its last known token and one more for each draft, in order: each samples what comes after it.
    """

    sequence: Sequence
    row: int
    start: int
    length: int
    samples: bool
    forks: list[Sequence] = field(default_factory=list)
    draft: int = -1


class PageMove(NamedTuple):
    """A page copy inside one group's pools; which pools depends on the list it is in."""

    group: int
    source: int
    target: int


class TableUpdate(NamedTuple):
    """Block table columns from `column` on of `row` in `group` become `pages`."""

    group: int
    row: int
    column: int
    pages: tuple[int, ...]


@dataclass(slots=True)
class StepPlan:
    """Applied in this order: swap_out, zero, swap_in, copies, admitted rows and table updates, then the forward pass
    over `scheduled` (decodes first)."""

    scheduled: list[Scheduled] = field(default_factory=list)
    swap_out: list[PageMove] = field(default_factory=list)
    zero: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[PageMove] = field(default_factory=list)
    copies: list[PageMove] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    table_updates: list[TableUpdate] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(item.length for item in self.scheduled)

    @property
    def sampled(self) -> list[Sequence]:
        """The sequence of each of the sampler's rows, in their order; one with drafts stands once more for each."""
        return [s for item in self.scheduled if item.samples for s in (item.sequence, *item.forks)]


class SampledRow(NamedTuple):
    """One row of the sampler: its token is one of `sequence`'s if `draft` is the token before it (-1: it is known)."""

    sequence: Sequence
    draft: int


def sampled_rows(plan: StepPlan) -> Iterator[list[SampledRow]]:
    """The sampler's rows in order, those of one sequence together: its own and one for each draft."""
    rows: list[SampledRow] = []
    for item in plan.scheduled:
        if not item.samples:
            continue
        if item.draft < 0 and rows:
            yield rows
            rows = []
        rows.append(SampledRow(item.sequence, item.draft))
        for fork in item.forks:
            yield rows
            rows = [SampledRow(fork, -1)]
    if rows:
        yield rows
