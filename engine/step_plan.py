"""`StepPlan`: what one step does, in plain integers: the scheduler's output and the runner's input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from engine.sequence import Sequence


@dataclass(slots=True)
class Scheduled:
    """`length` tokens of `sequence` from position `start`; `row` is its state row. `samples`: this chunk reaches the
    last token, so the next one is sampled; forks are siblings sampled from the same logits."""

    sequence: Sequence
    row: int
    start: int
    length: int
    samples: bool
    forks: list[Sequence] = field(default_factory=list)


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
        """Every sequence that gets a token, in the order of the sampler's rows."""
        return [s for item in self.scheduled if item.samples for s in (item.sequence, *item.forks)]
