"""Ledger, reports, reconciliation, audit log: what the books say."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from billing.errors import Invalid
from billing.money import parse_usd
from billing.reconcile import Findings, Repairs
from billing.reports.report import Report
from billing.tables import AuditEvent
from gateway.schemas.admin.common import PageQuery, Ref, Usd

Words = tuple[str, ...]
Time = Annotated[str, Meta(max_length=40, description="ISO 8601; a day or a moment without offset is local")]


class ReportView(msgspec.Struct, kw_only=True):
    """One report there is. `dimensions` may stand in `by` and `filter`."""

    name: str
    title: str
    dimensions: tuple[str, ...]
    default_by: tuple[str, ...]

    @classmethod
    def of(cls, report: Report) -> ReportView:
        """From the registry's entry."""
        return cls(name=report.name, title=report.title, dimensions=report.dimensions, default_by=report.default_by)


class ReportParams(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`by` repeats or separates by commas; `filter[model]=a&filter[model]=b`; days are cut in `time_zone`.

    `time_zone` is the tenant's where one is named, else UTC.
    """

    by: Words = ()
    start: Time | None = msgspec.field(name="from", default=None)
    end: Time | None = msgspec.field(name="to", default=None)
    time_zone: str | None = None
    tenant: Ref | None = None
    filter: dict[str, tuple[str, ...]] = {}
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    after: str | None = None


class ColumnView(msgspec.Struct, kw_only=True):
    key: str
    title: str
    kind: str


class ReportResult(msgspec.Struct, kw_only=True):
    """Rows with names beside ids and exact USD beside nano-USD; `total` sums them; `next_after` asks for more."""

    name: str
    title: str
    time_zone: str
    columns: list[ColumnView]
    rows: list[dict[str, Any]]
    total: dict[str, Any] | None
    next_after: str | None
    object: Literal["report"] = "report"


class LedgerParams(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Newest first; every filter takes several values. `after` is the `last_id` of the page before."""

    tenant: Ref | None = None
    project: Words = ()
    key: Words = ()
    model: Words = ()
    endpoint: Words = ()
    upstream: Words = ()
    cache: Words = ()
    status: Words = ()
    kind: Words = ()
    request: Words = ()
    conversation: Words = ()
    end_user: Words = ()
    error: Words = ()
    start: Time | None = msgspec.field(name="from", default=None)
    end: Time | None = msgspec.field(name="to", default=None)
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


LEDGER_FILTERS = (
    *("project", "key", "model", "endpoint", "upstream", "cache", "status", "kind"),
    *("request", "conversation", "end_user", "error"),
)


class AdjustmentCreate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of `credit_usd` and `debit_usd`. `id` makes it idempotent: the same value on every retry."""

    tenant: Ref
    note: Annotated[str, Meta(min_length=1, max_length=500)]
    credit_usd: Usd | None = None
    debit_usd: Usd | None = None
    id: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    project: Ref | None = None


def signed_amount(credit_usd: str | None, debit_usd: str | None) -> int:
    """Nano-USD from exactly one of the two; a credit is negative. Raises: Invalid."""
    if (credit_usd is None) == (debit_usd is None):
        raise Invalid("amount: give a credit or a debit, one of the two", param="credit_usd")
    amount = parse_usd(str(credit_usd if credit_usd is not None else debit_usd), param="amount")
    if amount <= 0:
        raise Invalid("amount: a credit or a debit is above 0", param="amount")
    return -amount if credit_usd is not None else amount


class ReconcileResult(msgspec.Struct, kw_only=True):
    """`clean`: everything agrees and nothing waits. `repairs` is what was done, null for a check."""

    clean: bool
    findings: Findings
    repairs: Repairs | None = None


class AuditParams(PageQuery, kw_only=True, forbid_unknown_fields=True):
    """Newest first."""

    tenant: Ref | None = None
    action: Words = ()
    actor: Words = ()
    resource: Words = ()
    project: Words = ()
    start: Time | None = msgspec.field(name="from", default=None)
    end: Time | None = msgspec.field(name="to", default=None)


class AuditView(msgspec.Struct, kw_only=True):
    id: str
    effective_at: datetime
    action: str
    resource_id: str
    actor_kind: str
    actor_id: str
    actor_role: str
    tenant_id: str | None
    project_id: str | None
    request_id: str | None
    ip: str | None
    detail: dict[str, Any]

    @classmethod
    def of(cls, event: AuditEvent) -> AuditView:
        """From its row."""
        return cls(**{name: getattr(event, name) for name in cls.__struct_fields__})
