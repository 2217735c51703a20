"""/admin/v1/reports, /ledger, /reconcile, /audit: what the books say, and whether they agree."""

from __future__ import annotations

from typing import Any

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from billing import audit, tenants
from billing.adjustments import adjust
from billing.ids import new_id
from billing.principal import Role
from billing.reports.entries import entries_of
from billing.reports.registry import REPORTS, report_named
from billing.reports.report import ReportQuery
from billing.reports.requests import REPORT as REQUESTS
from billing.service import Billing
from billing.tables import EntryKind
from gateway.admin_auth import administers, operates, reads_books
from gateway.controllers.admin.base import AdminController, By, Db, page_of
from gateway.decoding import BodyDTO
from gateway.periods import parse_moment
from gateway.presenters.reports import for_eyes_of, is_ours, shown_entries, shown_row, shown_rows
from gateway.queries import takes_query
from gateway.schemas.admin.books import (
    LEDGER_FILTERS,
    AdjustmentCreate,
    AuditParams,
    AuditView,
    ColumnView,
    LedgerParams,
    ReconcileResult,
    ReportParams,
    ReportResult,
    ReportView,
    signed_amount,
)
from gateway.schemas.admin.common import Page


class ReportController(AdminController):
    """Every report of billing's registry, by any of its dimensions."""

    path = "/admin/v1/reports"
    tags = ("Admin: books",)

    @get(guards=[reads_books], operation_id="ListReports", summary="List reports")
    async def list_reports(self, actor: By) -> list[ReportView]:
        """Those that the caller may run."""
        is_operator = actor.role is Role.OPERATOR
        return [ReportView.of(report) for report in REPORTS.values() if is_operator or not report.operators_only]

    @get(
        "/{name:str}",
        guards=[reads_books],
        operation_id="GetReport",
        summary="Run a report",
        **takes_query(ReportParams),
    )
    async def get_report(
        self, actor: By, name: FromPath[str], db: Db, params: NamedDependency[ReportParams]
    ) -> ReportResult:
        """A member sees his project only; what tokens cost us is for operators.

        Raises: NotFound (404) for a report or a tenant, PermissionDenied (403), InvalidRequest (400).
        """
        report = report_named(name.replace("-", "_"))
        async with db.read() as session:
            owner = await tenants.get_tenant(session, actor, params.tenant) if params.tenant else None
            zone = params.time_zone or (owner.time_zone if owner else "UTC")
            query = ReportQuery(
                by=tuple(word for words in params.by for word in words.split(",") if word),
                start=parse_moment(params.start, zone, param="from") if params.start else None,
                end=parse_moment(params.end, zone, param="to") if params.end else None,
                tenant_id=owner.id if owner else None,
                filters=params.filter,
                time_zone=zone,
                limit=params.limit,
                after=params.after,
            )
            table = await report.run(session, actor, query)
            rows = await shown_rows(session, actor, table)
        return ReportResult(
            name=report.name,
            title=report.title,
            time_zone=zone,
            columns=[
                ColumnView(key=column.key, title=column.title, kind=str(column.kind))
                for column in table.columns
                if actor.role is Role.OPERATOR or not is_ours(column.key)
            ],
            rows=rows,
            total=for_eyes_of(actor, shown_row(table.total, {})) if table.total else None,
            next_after=table.next_after,
        )


class LedgerController(AdminController):
    """Rows of the books by keyset: no page is slower than the first, and none is counted."""

    path = "/admin/v1/ledger"
    tags = ("Admin: books",)

    @get(guards=[reads_books], operation_id="ListLedger", summary="List ledger rows", **takes_query(LedgerParams))
    async def list_ledger(self, actor: By, db: Db, params: NamedDependency[LedgerParams]) -> Page[dict[str, Any]]:
        """A member sees his project's. Raises: NotFound (404) for a foreign tenant, InvalidRequest (400)."""
        async with db.read() as session:
            owner = await tenants.get_tenant(session, actor, params.tenant) if params.tenant else None
            zone = owner.time_zone if owner else "UTC"
            filters = {name: values for name in LEDGER_FILTERS if (values := getattr(params, name))}
            query = ReportQuery(
                start=parse_moment(params.start, zone, param="from") if params.start else None,
                end=parse_moment(params.end, zone, param="to") if params.end else None,
                tenant_id=owner.id if owner else None,
                filters=filters,
                limit=params.limit,
                after=params.after,
            )
            table = await REQUESTS.run(session, actor, query)
            rows = await shown_rows(session, actor, table)
        ids = [str(row["id"]) for row in rows]
        return Page(
            data=rows,
            has_more=table.next_after is not None,
            first_id=ids[0] if ids else None,
            last_id=ids[-1] if ids else None,
        )

    @get("/{request_id:str}", guards=[reads_books], operation_id="GetLedger", summary="Get a request's rows")
    async def get_ledger(self, actor: By, request_id: FromPath[str], db: Db) -> list[dict[str, Any]]:
        """Every column of every row: attempts and corrections. Raises: NotFound (404), for a foreign one too."""
        async with db.read() as session:
            return await shown_entries(session, actor, await entries_of(session, actor, request_id))

    @post(
        "/adjustments",
        guards=[operates],
        operation_id="CreateAdjustment",
        summary="Book a credit or a debit",
        dto=BodyDTO[AdjustmentCreate],
        return_dto=None,
        status_code=200,
    )
    async def create_adjustment(
        self, actor: By, data: JSONBody[AdjustmentCreate], billing: NamedDependency[Billing]
    ) -> dict[str, Any]:
        """The ledger's new row. Raises: InvalidRequest (400), NotFound (404), Conflict (409) for an `id` used twice."""
        id = data.id or new_id("adj")
        await adjust(
            billing.db,
            billing.redis,
            actor,
            id=id,
            tenant=data.tenant,
            amount_nano=signed_amount(data.credit_usd, data.debit_usd),
            note=data.note,
            project=data.project,
        )
        async with billing.db.read() as session:
            rows = await shown_entries(session, actor, await entries_of(session, actor, id))
        # A request may have the same id: its rows are of other kinds.
        return next(row for row in rows if row["kind"] == EntryKind.ADJUSTMENT)


class ReconcileController(AdminController):
    """Do ledger, roll-ups, counters and journal agree? The ledger is the truth and is never touched."""

    path = "/admin/v1/reconcile"
    tags = ("Admin: books",)

    @get(guards=[operates], operation_id="CheckBooks", summary="Compare the books")
    async def check_books(self, billing: NamedDependency[Billing]) -> ReconcileResult:
        """Changes nothing. Takes seconds where something disagrees: a drift counts when it stays."""
        found = await billing.reconciler.check()
        return ReconcileResult(clean=found.clean, findings=found)

    @post(guards=[operates], operation_id="RepairBooks", summary="Repair what is derived", status_code=200)
    async def repair_books(self, actor: By, db: Db, billing: NamedDependency[Billing]) -> ReconcileResult:
        """Replays the journal, reaps overdue holds, rewrites wrong roll-ups, moves wrong counters to the ledger."""
        async with db.begin() as session:
            audit.record(session, actor, "books.repaired", "books")
        repairs = await billing.reconciler.repair(billing.ledger, billing.reaper)
        found = await billing.reconciler.check()
        return ReconcileResult(clean=found.clean, findings=found, repairs=repairs)


class AuditController(AdminController):
    """Who changed what."""

    path = "/admin/v1/audit"
    tags = ("Admin: books",)

    @get(guards=[administers], operation_id="ListAudit", summary="List administrative acts", **takes_query(AuditParams))
    async def list_audit(self, actor: By, db: Db, params: NamedDependency[AuditParams]) -> Page[AuditView]:
        """An admin sees his tenant's. Raises: NotFound (404) for a foreign tenant, InvalidRequest (400)."""
        async with db.read() as session:
            owner = (await tenants.get_tenant(session, actor, params.tenant)).id if params.tenant else None
            rows = await audit.list_events(
                session,
                actor,
                tenant_id=owner,
                project_ids=params.project,
                actions=params.action,
                actor_ids=params.actor,
                resource_ids=params.resource,
                since=parse_moment(params.start, "UTC", param="from") if params.start else None,
                until=parse_moment(params.end, "UTC", param="to") if params.end else None,
                after=params.after,
                limit=params.limit + 1,
            )
        return page_of(rows, params.limit, AuditView.of, next_after=lambda row: row.id)
