"""Who has reached a soft budget: their requests go to a route's cheapest model until the budget's window ends."""

from __future__ import annotations

from datetime import datetime

from billing.clock import Clock, utc_now
from billing.limits.admission import LimitEvent
from billing.principal import Principal

MAX_SCOPES = 10_000


class SoftBudgets:
    """Fed by billing's limit events; asked at every request of a route with a choice."""

    def __init__(self, clock: Clock = utc_now) -> None:
        self._clock = clock
        self._until: dict[str, datetime] = {}

    def note(self, event: LimitEvent) -> None:
        """A soft rate is over in seconds and does not count; a soft budget does until its window's end."""
        if event.kind != "soft" or event.window is None:
            return
        if len(self._until) >= MAX_SCOPES:
            now = self._clock()
            self._until = {scope: end for scope, end in self._until.items() if end > now}
        if len(self._until) < MAX_SCOPES:
            known = self._until.get(event.rule.scope_id, event.window.end)
            self._until[event.rule.scope_id] = max(known, event.window.end)

    def reached(self, principal: Principal) -> bool:
        """Whether the key, its project or its tenant is past a soft budget."""
        if not self._until:
            return False
        now = self._clock()
        scopes = (principal.tenant_id, principal.project_id, principal.key_id)
        return any((end := self._until.get(scope)) is not None and end > now for scope in scopes)
