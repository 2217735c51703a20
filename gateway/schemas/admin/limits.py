"""Limits of a tenant, a project or a key."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from billing.errors import Invalid
from billing.money import format_usd, parse_usd
from billing.quotas.quota import Unit
from billing.quotas.registry import QUOTAS, quota_named
from billing.tables import LimitRule
from gateway.schemas.admin.common import Ref

Amount = Annotated[int, Meta(ge=0)] | Annotated[str, Meta(max_length=40)]
ScopeKind = Literal["tenant", "project", "key"]


class LimitSet(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Replaces one quota of one scope. Budgets are USD as text ("250.50"), everything else a whole number.

    `scope_id` is an id; a tenant's may be its slug.
    """

    scope: ScopeKind
    scope_id: Ref
    quota: str
    hard: Amount | None = None
    soft: Amount | None = None
    model: Annotated[str, Meta(max_length=200)] = ""


class LimitQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    tenant: Ref | None = None
    scope: ScopeKind | None = None
    scope_id: Ref | None = None


class LimitStatusQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The caller's own tenant where none is named."""

    tenant: Ref | None = None


class LimitKey(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which rule to lift."""

    scope: ScopeKind
    scope_id: Ref
    quota: str
    model: str = ""


class LimitView(msgspec.Struct, kw_only=True):
    id: str
    tenant_id: str
    scope: str
    scope_id: str
    quota: str
    model: str | None
    hard: int | str | None
    soft: int | str | None
    unit: Literal["requests", "tokens", "usd"]
    updated_at: datetime

    @classmethod
    def of(cls, rule: LimitRule) -> LimitView:
        """From its row; budgets in USD."""
        unit = QUOTAS[rule.quota].unit
        return cls(
            id=rule.id,
            tenant_id=rule.tenant_id,
            scope=rule.scope_kind,
            scope_id=rule.scope_id,
            quota=rule.quota,
            model=rule.model or None,
            hard=show_amount(rule.quota, rule.hard),
            soft=show_amount(rule.quota, rule.soft),
            unit="usd" if unit is Unit.NANO_USD else "tokens" if unit is Unit.TOKENS else "requests",
            updated_at=rule.updated_at,
        )


def show_amount(quota: str, value: int | None) -> int | str | None:
    """A limit's value as it is shown: USD for budgets."""
    return format_usd(value) if value is not None and QUOTAS[quota].unit is Unit.NANO_USD else value


def parse_amount(quota: str, value: int | str | None, *, param: str) -> int | None:
    """A limit's value as it is stored. Raises: Invalid for a float of money or a text that is no whole number."""
    if value is None:
        return None
    if quota_named(quota).unit is Unit.NANO_USD:
        return parse_usd(str(value), param=param)
    if isinstance(value, str) and not (value.isascii() and value.isdigit()):
        raise Invalid(f"{param}: {value[:40]!r} is not a whole number", param=param)
    return int(value)
