"""`PrefixGroups`: which decodes of a step begin in the same pages, so that attention can read those once for all.

Sequences of one tenant with the same system prompt share its pages through the prefix cache. Read by each of them,
those pages are most of what a step of many such sequences reads.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from engine.step_plan import Scheduled, StepPlan
from kernels.paged_attention import PREFIX_TILE

MAX_GROUPS = 16
MIN_MEMBERS = 4
MIN_TOKENS = 256
# Keys that need not be read again before a step of its own kind pays: 4 GB of an 8B model, a millisecond.
MIN_SAVED_TOKENS = 32768


@dataclass(frozen=True)
class SharedDecodes:
    """order: the step's items, those of a group together and those without one last; bounds [groups + 1] and lens
    [groups] (tokens, multiples of PREFIX_TILE) of the groups in that order."""

    order: list[int]
    bounds: list[int]
    lens: list[int]

    @property
    def starts(self) -> list[int]:
        """The shared tokens of each item in `order`, 0 without a group."""
        ends = zip(self.bounds, self.bounds[1:], self.lens, strict=False)
        inside = [length for first, end, length in ends for _ in range(first, end)]
        return inside + [0] * (len(self.order) - len(inside))


class PrefixGroups:
    """Remembers the last step's groups: while the same rows decode, and nothing was admitted, they hold."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._rows: list[int] = []
        self._found: SharedDecodes | None = None

    def find(self, plan: StepPlan) -> SharedDecodes | None:
        """The groups of a plan of decodes alone; None where reading each context by itself is as good."""
        rows = [item.row for item in plan.scheduled]
        if plan.admitted or rows != self._rows:
            self._rows = rows
            self._found = self._group(plan.scheduled)
        return self._found

    def forget(self) -> None:
        """A step of another kind came between: rows may have changed hands."""
        self._rows = []

    def _group(self, items: Seq[Scheduled]) -> SharedDecodes | None:
        if len(items) < MIN_MEMBERS:
            return None
        by_first_page: dict[int, list[int]] = {}
        for i, item in enumerate(items):
            by_first_page.setdefault(item.sequence.block_tables[0][0], []).append(i)
        found = []
        for members in by_first_page.values():
            if len(members) >= MIN_MEMBERS:
                length = self._shared_tokens([items[i] for i in members])
                if length >= MIN_TOKENS:
                    found.append(((len(members) - 1) * length, length, members))
        found = sorted(found, key=lambda group: -group[0])[:MAX_GROUPS]
        if sum(saved for saved, _, _ in found) < MIN_SAVED_TOKENS:
            return None
        order, bounds = [], [0]
        for _, _, members in found:
            order += members
            bounds.append(len(order))
        taken = set(order)
        order += [i for i in range(len(items)) if i not in taken]
        return SharedDecodes(order, bounds, [length for _, length, _ in found])

    def _shared_tokens(self, items: Seq[Scheduled]) -> int:
        """Whole tiles of whole pages that all have in common and have filled."""
        common = items[0].sequence.block_tables[0]
        count = min(item.start for item in items) // self._block_size
        for item in items[1:]:
            pages = item.sequence.block_tables[0]
            if pages[:count] != common[:count]:
                count = next(i for i in range(count) if pages[i] != common[i])
        return count * self._block_size // PREFIX_TILE * PREFIX_TILE
