"""`FairQueue`: the waiting sequences of one priority class, fair between tenants by virtual token counters.

The Virtual Token Counter scheduler (Sheng et al., OSDI 2024, arXiv:2401.00588): every tenant has a counter of the
tokens it was served, divided by its weight; the tenant with the smallest is next. A tenant that comes back after a
pause is lifted to the smallest counter of the tenants with work, so that idling earns no credit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine.sequence import Sequence


@dataclass
class _Tenant:
    served: float = 0.0
    weight: float = 1.0
    num_running: int = 0
    waiting: deque[Sequence] = field(default_factory=deque)

    @property
    def active(self) -> bool:
        return bool(self.waiting) or self.num_running > 0


class FairQueue:
    """Charges are made when tokens are given out: a prompt at admission, an output token when it is scheduled.

    `fair` False serves by arrival alone: everyone is one tenant.
    """

    def __init__(self, *, fair: bool = True) -> None:
        self._fair = fair
        self._tenants: dict[str, _Tenant] = {}
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def append(self, sequence: Sequence) -> None:
        self._arrive(sequence).waiting.append(sequence)
        self._num_waiting += 1

    def put_back(self, sequence: Sequence) -> None:
        """A preempted sequence or a late fork waits ahead of its tenant's others that came after it."""
        waiting = self._arrive(sequence).waiting
        place = next((i for i, other in enumerate(waiting) if other.order > sequence.order), len(waiting))
        waiting.insert(place, sequence)
        self._num_waiting += 1

    def remove(self, sequence: Sequence) -> None:
        """Takes out a waiting sequence that ends before it runs. Raises: ValueError if it does not wait here."""
        self._tenants[self._key(sequence)].waiting.remove(sequence)
        self._num_waiting -= 1
        self._forget_idle()

    def next_up(self) -> Sequence | None:
        """The sequence to admit next: the least served tenant's first; ties go to the tenant with less running, then
        to the older request."""
        tenant = self.least_served()
        return None if tenant is None else self._tenants[tenant].waiting[0]

    def least_served(self) -> str | None:
        """The tenant with work waiting that was served least."""
        waiting = [
            (t.served, t.num_running, t.waiting[0].order, name) for name, t in self._tenants.items() if t.waiting
        ]
        return min(waiting)[-1] if waiting else None

    def admit(self, sequence: Sequence) -> None:
        """The sequence leaves the queue and runs."""
        tenant = self._tenants[self._key(sequence)]
        tenant.waiting.remove(sequence)
        tenant.num_running += 1
        self._num_waiting -= 1

    def start_running(self, sequence: Sequence) -> None:
        """A fork runs without having waited."""
        self._arrive(sequence).num_running += 1

    def stop_running(self, sequence: Sequence) -> None:
        self._tenants[self._key(sequence)].num_running -= 1
        self._forget_idle()

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        tenant = self._tenants.get(self._key(sequence))
        if tenant is not None:
            tenant.served += num_tokens / tenant.weight

    def served(self, tenant: str) -> float:
        """Tokens served over weight since the class was last idle; 0 for an unknown tenant."""
        known = self._tenants.get(tenant)
        return known.served if known else 0.0

    def num_running(self, tenant: str) -> float:
        """Running sequences over weight."""
        known = self._tenants.get(tenant)
        return known.num_running / known.weight if known else 0.0

    def most_served_running(self) -> str | None:
        """The tenant with running sequences that was served most."""
        running = [(t.served, name) for name, t in self._tenants.items() if t.num_running]
        return max(running)[-1] if running else None

    def belongs(self, sequence: Sequence, tenant: str) -> bool:
        return self._key(sequence) == tenant

    def _key(self, sequence: Sequence) -> str:
        return sequence.group.request.tenant if self._fair else ""

    def _arrive(self, sequence: Sequence) -> _Tenant:
        name = self._key(sequence)
        tenant = self._tenants.setdefault(name, _Tenant())
        tenant.weight = sequence.group.request.weight
        if not tenant.active:
            floor = min((other.served for other in self._tenants.values() if other.active), default=0.0)
            tenant.served = max(tenant.served, floor)
        return tenant

    def _forget_idle(self) -> None:
        """Idle tenants at or below the floor would be lifted on return anyway; with nobody active all start afresh.
        So the table holds the active tenants and those ahead of the floor."""
        floor = min((t.served for t in self._tenants.values() if t.active), default=None)
        for name in [n for n, t in self._tenants.items() if not t.active and (floor is None or t.served <= floor)]:
            del self._tenants[name]
