"""GET /v1/usage: what a key's owner has spent, what is left and when it resets."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from billing.limits.status import LimitStatus
from billing.quotas.quota import Unit
from billing.quotas.registry import QUOTAS
from gateway.schemas.admin.limits import show_amount


class Spent(msgspec.Struct, kw_only=True):
    """What one scope has spent in the running day, week or month of the tenant's time zone."""

    scope: Literal["tenant", "project", "key"]
    period: Literal["day", "week", "month"]
    amount_usd: str
    amount_nano_usd: int
    since: datetime
    resets_at: datetime


class Left(msgspec.Struct, kw_only=True):
    """A limit now. Budgets in USD as text. `used` includes what running requests hold; null `left`: soft only."""

    scope: str
    scope_id: str
    model: str | None
    quota: str
    unit: Literal["requests", "tokens", "usd"]
    hard: int | str | None
    soft: int | str | None
    used: int | str | None
    held: int | str | None
    left: int | str | None
    resets_at: datetime | None

    @classmethod
    def of(cls, status: LimitStatus) -> Left:
        """From the live state."""
        unit = QUOTAS[status.quota].unit
        amounts = {
            name: show_amount(status.quota, getattr(status, name)) for name in ("hard", "soft", "used", "held", "left")
        }
        return cls(
            scope=status.scope,
            scope_id=status.scope_id,
            model=status.model,
            quota=status.quota,
            unit="usd" if unit is Unit.NANO_USD else "tokens" if unit is Unit.TOKENS else "requests",
            resets_at=status.resets_at,
            **amounts,
        )


class OwnUsage(msgspec.Struct, kw_only=True):
    tenant: str
    project: str
    key_id: str
    key_name: str
    time_zone: str
    spent: list[Spent]
    limits: list[Left]
    object: Literal["usage"] = "usage"
