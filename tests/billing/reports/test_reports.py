"""Reports equal the ledger, whether rolled up or not, in any time zone."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from billing import rollups
from billing.db import Database
from billing.entry import TOKEN_FIELDS, Entry
from billing.errors import Invalid, NotFound
from billing.journal import Journal
from billing.ledger import LedgerWriter
from billing.prices import Rates, TokenCounts
from billing.principal import Actor, Principal, Role
from billing.reports.registry import report_named
from billing.reports.report import ReportQuery
from billing.reports.usage import UsageQuery, costs, usage
from billing.spend import Scope, spent_nano_usd
from billing.tables import RollupDay, RollupMark, UsageByDay, UsageByModel, UsageBySpan, UsageRollup
from tests.billing.support import OPERATOR, START, rows_of

Write = Callable[[list[Entry]], Awaitable[None]]
RATES = Rates(
    price_id="price_1", model="m", input=37_500_000, cached_input=3_750_000, output=150_000_000, batch_input=18_750_000,
    batch_output=75_000_000, discount_ppm=150_000,
)  # fmt: skip


def principal(tenant: str, project: str, key: str) -> Principal:
    return Principal(
        tenant_id=tenant,
        tenant_slug=tenant,
        project_id=project,
        project_slug=project,
        key_id=key,
        key_name=key,
        scopes=frozenset(),
    )


def some_rows(count: int, seed: int = 1) -> list[Entry]:
    chance = random.Random(seed)
    entries = []
    for i in range(count):
        tenant = chance.choice(["ten_a", "ten_b"])
        who = principal(tenant, f"{tenant}-p{chance.randrange(2)}", f"{tenant}-k{chance.randrange(3)}")
        common = {
            "request_id": f"r{i}",
            "principal": who,
            "endpoint": chance.choice(["chat", "chat", "embeddings"]),
            "model": chance.choice(["m", "n"]),
            "accepted_at": START - timedelta(seconds=chance.randrange(5 * 86_400)),
            "latency_us": chance.randrange(10**6),
        }
        if chance.random() < 0.2:
            saved = TokenCounts.of(prompt_tokens=chance.randrange(500), completion_tokens=chance.randrange(100))
            outcome = chance.choice(["exact", "semantic"])
            entries.append(Entry.cache_hit(saved=saved, rates=RATES.shared(0), cache_outcome=outcome, **common))
            continue
        prompt = chance.randrange(1, 1000)
        tokens = TokenCounts.of(
            prompt_tokens=prompt,
            cached_tokens=chance.randrange(prompt),
            completion_tokens=chance.randrange(300),
            batch=chance.random() < 0.1,
        )
        more = {"engine_us": chance.randrange(10**6), "cost_nano_usd": chance.randrange(10**6), "upstream": "local"}
        entries.append(Entry.priced(tokens=tokens, rates=RATES, cache_outcome="miss", **more, **common))
    return entries


@pytest.fixture
async def write(db: Database, tmp_path: Path) -> AsyncIterator[Write]:
    writer = LedgerWriter(db, Journal(tmp_path / "j"))

    async def write_all(entries: list[Entry]) -> None:
        for first in range(0, len(entries), 100):
            await writer.write(entries[first : first + 100])

    yield write_all
    await writer.stop()


async def spend(db: Database, **query: object) -> list[dict[str, object]]:
    async with db.read() as session:
        table = await report_named("spend").run(session, OPERATOR, ReportQuery(**query))  # type: ignore[arg-type]
    return table.rows


async def dump(db: Database) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    async with db.read() as session:
        for table in (UsageRollup, UsageByModel, UsageBySpan, UsageByDay):
            rows = await session.execute(sa.select(*table.__table__.columns))
            found += sorted((table.__tablename__, *row) for row in rows)
    return found


async def test_spend_equals_the_ledger_which_equals_tokens_times_prices(db: Database, write: Write) -> None:
    await write(some_rows(300))
    by_hand: dict[tuple[str, str], int] = {}
    for row in await rows_of(db):
        amount = 0
        for field, rate in zip(TOKEN_FIELDS, (37.5, 3.75, 150, 18.75, 75), strict=True):
            # x rate nano-USD a token x 0.85, in units of 1e-4 nano-USD to stay whole, rounded half-even
            units, rest = divmod(getattr(row, field) * int(rate * 100) * 85, 10_000)
            amount += units + (rest > 5_000 or (rest == 5_000 and units % 2 == 1))
        assert amount == row.amount_nano_usd
        key = (row.tenant_id, row.model)
        by_hand[key] = by_hand.get(key, 0) + amount
    for refreshed in (False, True):
        if refreshed:
            assert await rollups.refresh(db) > 0
        rows = await spend(db, by=("tenant", "model"))
        assert {(r["tenant"], r["model"]): r["amount_nano_usd"] for r in rows} == by_hand


async def test_rollups_deleted_and_rebuilt_are_the_same_bytes(db: Database, write: Write) -> None:
    await write(some_rows(200))
    for _ in range(4):  # a pass sums up three days at most
        await rollups.refresh(db)
    before = await dump(db)
    await rollups.rebuild(db)
    assert await dump(db) == before
    assert len(before) > 50


@pytest.mark.parametrize("late", [0, 10])
async def test_every_way_of_asking_gives_the_same_sums_whatever_is_summed_up(
    db: Database, write: Write, late: int
) -> None:
    """By day tables, by model, by 15 minutes or by rows: each question is checked against the rows themselves."""
    entries = some_rows(300)
    await write(entries[: 300 - late])
    await rollups.refresh(db, clock=lambda: START - timedelta(days=2))  # some days are summed up, some are not
    await rollups.refresh(db, clock=lambda: START - timedelta(days=2))
    await write(entries[300 - late :])
    async with db.read() as session:
        assert await session.scalar(sa.select(sa.func.count()).select_from(RollupDay)) == 3
    rows = await rows_of(db)
    window = {"start": START - timedelta(days=4, hours=5), "end": START - timedelta(hours=3)}
    names = {"tenant": "tenant_id", "key": "key_id", "model": "model", "status": "status", "cache": "cache_outcome"}
    inside = [
        r for r in rows if window["start"].timestamp() // 900 * 900 <= r.bucket < window["end"].timestamp() // 900 * 900
    ]
    for by in [(), ("model",), ("key",), ("tenant", "cache"), ("status", "key")]:
        for chosen, query in ((rows, {}), (inside, window)):
            expected: dict[tuple[object, ...], int] = {}
            for row in chosen:
                group = tuple(str(getattr(row, names[name])) for name in by)
                expected[group] = expected.get(group, 0) + row.amount_nano_usd
            got = await spend(db, by=by or ("tenant",), **query)
            if not by:
                assert sum(r["amount_nano_usd"] for r in got) == sum(expected.values())  # type: ignore[misc]
            else:
                assert {tuple(r[name] for name in by): r["amount_nano_usd"] for r in got} == expected


async def test_a_row_that_comes_late_is_seen_at_once_and_rolled_up_into_its_own_bucket(
    db: Database, write: Write
) -> None:
    entries = some_rows(100)
    await write(entries[:90])
    await rollups.refresh(db)
    await write(entries[90:])  # their buckets are rolled up already
    total = sum(e.amount_nano_usd for e in entries)
    assert sum(r["amount_nano_usd"] for r in await spend(db)) == total  # type: ignore[misc]
    await rollups.refresh(db)
    assert sum(row.amount_nano_usd for row in await rows_of(db)) == total
    async with db.read() as session:
        assert await session.scalar(sa.select(sa.func.sum(UsageRollup.amount_nano_usd))) == total
        assert await session.scalar(sa.select(sa.func.count(RollupMark.id))) == 0


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "Asia/Kathmandu", "Australia/Adelaide", "America/New_York", "UTC"])
async def test_days_are_cut_where_the_tenant_lives(db: Database, write: Write, zone: str) -> None:
    await write(some_rows(200))
    await rollups.refresh(db)
    expected: dict[str, int] = {}
    for row in await rows_of(db):
        day = row.accepted_at.astimezone(ZoneInfo(zone)).date().isoformat()
        expected[day] = expected.get(day, 0) + row.amount_nano_usd
    rows = await spend(db, by=("day",), time_zone=zone)
    assert {r["day"]: r["amount_nano_usd"] for r in rows} == expected


PERIODS = {"day": "%Y-%m-%d", "week": "%G-%V", "month": "%Y-%m", "hour": "%Y-%m-%dT%H:00%z"}
ZONES = ["Asia/Kolkata", "Asia/Kathmandu", "Asia/Tokyo", "America/New_York", "UTC"]


async def test_periods_by_model_are_exact_however_they_cut_the_spans_and_whatever_is_late(
    db: Database, write: Write
) -> None:
    """Whole spans, the quarters of those that a period or the range cuts, and rows of buckets not yet rolled up."""
    entries = some_rows(400)
    await write(entries[:380])
    await rollups.refresh(db)
    await write(entries[380:])  # into spans that are summed up
    window = {"start": START - timedelta(days=4, hours=5, minutes=15), "end": START - timedelta(hours=1, minutes=45)}
    first, last = (int(window[name].timestamp()) for name in ("start", "end"))
    rows = [row for row in await rows_of(db) if row.tenant_id == "ten_a" and first <= row.bucket < last]
    for zone, (period, label) in itertools.product(ZONES, PERIODS.items()):
        expected: dict[tuple[str, str], int] = {}
        for row in rows:
            group = (row.accepted_at.astimezone(ZoneInfo(zone)).strftime(label), row.model)
            expected[group] = expected.get(group, 0) + row.amount_nano_usd
        found = await spend(db, by=(period, "model"), tenant_id="ten_a", time_zone=zone, **window)
        for line in found:
            if period == "week":
                line["week"] = datetime.fromisoformat(str(line["week"])).strftime(label)
        assert {(line[period], line["model"]): line["amount_nano_usd"] for line in found} == expected, (zone, period)
        assert len(expected) >= 2


async def test_reading_whole_spans_gives_the_sums_that_their_quarters_have(db: Database, write: Write) -> None:
    await write(some_rows(200))
    await rollups.refresh(db)
    asked = {"by": ("day", "model"), "time_zone": "Asia/Kolkata"}
    before = await spend(db, **asked)
    # when the quarters of whole spans are gone, nobody looks for them
    async with db.begin() as session:
        of_day = UsageByModel.bucket % sa.literal_column("86400")  # a day begins at 18:30 UTC, in the span from 18:00
        gone = await session.execute(sa.delete(UsageByModel).where(sa.not_(of_day.between(64_800, 75_599))))
        assert gone.rowcount > 50
    assert await spend(db, **asked) == before


async def test_sqlite_finds_a_tenants_rows_of_a_marked_bucket_by_the_bucket(
    sqlite_db: Database, tmp_path: Path
) -> None:
    writer = LedgerWriter(sqlite_db, Journal(tmp_path / "j"))
    await writer.write(some_rows(300))
    for _ in range(2):  # the first pass finds the days, the second sums them up
        await rollups.refresh(sqlite_db)
    plans: list[str] = []

    def explain(connection: Any, _cursor: object, statement: str, parameters: Any, *_rest: object) -> None:
        if not statement.startswith("EXPLAIN"):
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(row[3] for row in plan if "ledger_entry" in row[3])

    event.listen(sqlite_db.engine.sync_engine, "before_cursor_execute", explain)
    async with sqlite_db.read() as session:
        await spent_nano_usd(session, [Scope("tenant", "ten_a", None, START - timedelta(days=9), START)])
    await writer.stop()
    assert len(plans) == 1
    assert plans[0].startswith("SEARCH ledger_entry USING INDEX ix_ledger_entry_bucket ")


@pytest.mark.parametrize("report", ["spend", "requests"])
async def test_reports_are_planned_for_what_they_ask_and_the_connection_is_as_before(
    postgres_url: str, report: str
) -> None:
    db = Database(postgres_url)
    names = ("plan_cache_mode", "jit", "work_mem")
    shown = [sa.func.current_setting(name) for name in names]
    async with db.read() as session:
        usual = (await session.execute(sa.select(*shown))).one()
        await report_named(report).run(session, OPERATOR, ReportQuery())
        assert (await session.execute(sa.select(*shown))).one() == ("force_custom_plan", "off", "128MB")
    async with db.read() as session:
        assert (await session.execute(sa.select(*shown))).one() == usual
    await db.close()


async def test_an_admin_sees_his_tenant_and_a_member_his_project(db: Database, write: Write) -> None:
    await write(some_rows(200))
    admin = Actor(kind="key", id="k", role=Role.ADMIN, tenant_id="ten_a", project_id="ten_a-p0")
    member = Actor(kind="key", id="k", role=Role.MEMBER, tenant_id="ten_a", project_id="ten_a-p0")
    report = report_named("spend")
    async with db.read() as session:
        seen = await report.run(session, admin, ReportQuery(by=("tenant", "project")))
        assert {r["tenant"] for r in seen.rows} == {"ten_a"}
        seen = await report.run(session, member, ReportQuery(by=("tenant", "project")))
        assert {r["project"] for r in seen.rows} == {"ten_a-p0"}
        for query in (ReportQuery(tenant_id="ten_b"), ReportQuery(filters={"project": ("ten_a-p1",)})):
            with pytest.raises(NotFound):
                await report.run(session, member, query)
        page = await usage(
            session, member, UsageQuery(start=START - timedelta(days=6), end=START, group_by=("project_id",))
        )
        assert {r["project_id"] for b in page.buckets for r in b.results} == {"ten_a-p0"}


@pytest.mark.parametrize("width", ["1m", "1h", "1d"])
async def test_usage_by_buckets_sums_to_the_ledger_page_by_page(db: Database, write: Write, width: str) -> None:
    await write(some_rows(200))
    await rollups.refresh(db)
    seconds = {"1m": 60, "1h": 3600, "1d": 86_400}[width]
    start, end = START - timedelta(days=2, minutes=7), START - timedelta(days=1, minutes=50)
    floor = int(start.timestamp()) // seconds * seconds
    ceiling = -(-int(end.timestamp()) // seconds) * seconds
    expected: dict[tuple[int, str], tuple[int, int]] = {}
    for row in await rows_of(db):
        at = int(row.accepted_at.timestamp())
        if floor <= at < ceiling:
            key = (at // seconds * seconds, row.model)
            requests, output = expected.get(key, (0, 0))
            expected[key] = (requests + 1, output + row.output_tokens)
    found: dict[tuple[int, str], tuple[int, int]] = {}
    query = UsageQuery(start=start, end=end, width=width, group_by=("model",))
    pages = 0
    async with db.read() as session:
        while True:
            page = await usage(session, OPERATOR, query)
            pages += 1
            for bucket in page.buckets:
                assert bucket.end_time - bucket.start_time == seconds
                for result in bucket.results:
                    found[bucket.start_time, result["model"]] = (result["requests"], result["output_tokens"])
            if page.next_page is None:
                break
            query = UsageQuery(start=start, end=end, width=width, group_by=("model",), page=page.next_page)
    assert found == expected
    assert (pages > 1) == (width != "1d")


async def test_costs_by_line_item_add_up_to_the_costs(db: Database, write: Write) -> None:
    await write(some_rows(200))
    query = UsageQuery(start=START - timedelta(days=6), end=START)
    async with db.read() as session:
        plain = await costs(session, OPERATOR, query)
        lines = await costs(
            session, OPERATOR, UsageQuery(start=query.start, end=query.end, group_by=("line_item", "project_id"))
        )
    total = sum(row.amount_nano_usd for row in await rows_of(db))
    assert sum(r["amount_nano_usd"] for b in plain.buckets for r in b.results) == total
    assert sum(r["amount_nano_usd"] for b in lines.buckets for r in b.results) == total
    names = {r["line_item"] for b in lines.buckets for r in b.results}
    assert {"m, input", "m, cached input", "n, output", "m, batch input"} <= names


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"width": "2d"}, "bucket_width"),
        ({"group_by": ("tenant_id",)}, "group_by"),
        ({"limit": 32}, "limit"),
        ({"limit": 0}, "limit"),
        ({"page": "x"}, "page"),
        ({"end": START - timedelta(days=30)}, "end_time"),
    ],
)
async def test_a_usage_query_out_of_bounds_names_its_parameter(
    sqlite_db: Database, change: dict[str, object], param: str
) -> None:
    query = UsageQuery(**{"start": START - timedelta(days=2), "end": START, **change})  # type: ignore[arg-type]
    async with sqlite_db.read() as session:
        with pytest.raises(Invalid) as refusal:
            await usage(session, OPERATOR, query)
    assert refusal.value.param == param


async def test_requests_are_paged_newest_first_without_gaps_or_repeats(db: Database, write: Write) -> None:
    await write(some_rows(50))
    report = report_named("requests")
    seen: list[int] = []
    after = None
    async with db.read() as session:
        while True:
            table = await report.run(session, OPERATOR, ReportQuery(limit=7, after=after, tenant_id="ten_a"))
            seen += [row["id"] for row in table.rows]
            after = table.next_after
            if after is None:
                break
            await write(some_rows(55)[50:])  # rows that come in meanwhile shift nothing
    expected = [row.id for row in await rows_of(db) if row.tenant_id == "ten_a" and int(row.request_id[1:]) < 50]
    assert seen == sorted(expected, reverse=True)


async def test_cache_savings_count_hits_by_kind_and_what_they_saved(db: Database, write: Write) -> None:
    await write(some_rows(200))
    rows = await rows_of(db)
    async with db.read() as session:
        table = await report_named("cache_savings").run(session, OPERATOR, ReportQuery(by=("tenant",)))
    assert table.total is not None
    hits = [row for row in rows if row.cache_outcome in ("exact", "semantic")]
    assert table.total["exact_hits"] + table.total["semantic_hits"] == len(hits)
    assert table.total["saved_nano_usd"] == sum(row.saved_nano_usd for row in rows)
    assert table.total["hit_ratio_ppm"] == len(hits) * 1_000_000 // len(rows)


async def test_margin_is_what_was_charged_less_what_it_cost(db: Database, write: Write) -> None:
    await write(some_rows(100))
    async with db.read() as session:
        table = await report_named("margin").run(session, OPERATOR, ReportQuery())
    rows = await rows_of(db)
    assert table.total is not None
    assert table.total["margin_nano_usd"] == sum(r.amount_nano_usd - r.cost_nano_usd for r in rows)


async def test_an_unknown_dimension_is_refused(sqlite_db: Database) -> None:
    async with sqlite_db.read() as session:
        with pytest.raises(Invalid, match="by"):
            await report_named("spend").run(session, OPERATOR, ReportQuery(by=("password",)))
    with pytest.raises(NotFound):
        report_named("nothing")


async def test_start_and_end_are_whole_moments(sqlite_db: Database) -> None:
    query = ReportQuery(start=datetime(2026, 1, 2, tzinfo=UTC), end=datetime(2026, 1, 1, tzinfo=UTC))
    async with sqlite_db.read() as session:
        with pytest.raises(Invalid, match="end"):
            await report_named("spend").run(session, OPERATOR, query)


@pytest.mark.parametrize("report", ["spend", "cache_savings", "margin", "requests"])
async def test_no_report_counts_the_ledgers_rows(db: Database, write: Write, report: str) -> None:
    await write(some_rows(50))
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        statements.append(statement.lower())

    event.listen(db.engine.sync_engine, "before_cursor_execute", note)
    async with db.read() as session:
        await report_named(report).run(session, OPERATOR, ReportQuery(limit=5))
    event.remove(db.engine.sync_engine, "before_cursor_execute", note)
    assert any("ledger_entry" in each or "usage" in each for each in statements)
    assert not [each for each in statements if re.search(r"\bcount\s*\(", each)]
