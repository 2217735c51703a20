"""Durable before it is told, once and only once, whatever path it takes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError

from billing.db import Database
from billing.deadline import REDIS_GIVEN_UP
from billing.entry import Entry
from billing.errors import LedgerConflict, LedgerUnavailable
from billing.journal import Journal
from billing.ledger import LedgerWriter
from billing.prices import Rates, TokenCounts
from billing.principal import Principal
from billing.sinks import Sink
from billing.tables import EntryKind, EntryStatus, LedgerEntry, RollupMark
from tests.billing.support import START, FakeClock, rows_of

RATES = Rates(
    price_id="price_1", model="m", input=10**9, cached_input=10**8, output=2 * 10**9, batch_input=5 * 10**8,
    batch_output=10**9,
)  # fmt: skip
PRINCIPAL = Principal(
    tenant_id="ten_1",
    tenant_slug="acme",
    project_id="proj_1",
    project_slug="web",
    key_id="key_1",
    key_name="k",
    scopes=frozenset({"inference"}),
)


def row(
    request_id: str, *, prompt: int = 10, output: int = 5, cached: int = 0, batch: bool = False, **more: object
) -> Entry:
    return Entry.priced(
        request_id=request_id,
        principal=PRINCIPAL,
        endpoint="chat",
        model="m",
        accepted_at=START,
        tokens=TokenCounts.of(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=output, batch=batch),
        rates=RATES,
        **more,
    )


class Switch(Database):
    """The real database; `away` makes writing fail as a stopped server does, `hangs` as a frozen one."""

    away = False
    hangs = False


class SwitchedSink:
    """The real sink behind the database's switch."""

    def __init__(self, database: Switch, sink: Sink) -> None:
        self._database, self._sink = database, sink

    async def insert(self, rows: Sequence[dict[str, Any]]) -> list[bool]:
        if self._database.away:
            raise OperationalError("INSERT", {}, OSError("connection refused"))
        if self._database.hangs:
            await asyncio.Event().wait()
        return await self._sink.insert(rows)

    async def close(self) -> None:
        await self._sink.close()


def writer_for(database: Switch, journal: Journal, **options: Any) -> LedgerWriter:
    made = LedgerWriter(database, journal, **options)
    made._sink = SwitchedSink(database, made._sink)
    return made


@pytest.fixture
async def switch(database_url: str) -> AsyncIterator[Switch]:
    database = Switch(database_url)
    yield database
    await database.close()


@pytest.fixture
async def writer(switch: Switch, tmp_path: Path, clock: FakeClock) -> AsyncIterator[LedgerWriter]:
    """Started, with a second for SQL: a slow machine must not choose the path."""
    made = writer_for(switch, Journal(tmp_path / "journal"), deadline_s=60.0, clock=clock)
    made.start()
    yield made
    await made.stop()
    await made._journal.close()


async def test_a_booked_row_is_in_sql_with_every_class_priced_apart(writer: LedgerWriter, switch: Switch) -> None:
    entry = row("r1", prompt=1000, cached=900, output=7, end_user="u", tags={"team": "blue"}, ttft_us=1500)
    assert (await writer.book(entry)).path == "sql"
    (booked,) = await rows_of(switch)
    # 100 x $1/M + 900 x $0.1/M + 7 x $2/M
    amounts = (booked.input_amount_nano, booked.cached_input_amount_nano, booked.output_amount_nano)
    assert amounts == (100_000, 90_000, 14_000)
    assert booked.amount_nano_usd == 204_000
    assert (booked.tags, booked.end_user, booked.ttft_us, booked.price_id) == ({"team": "blue"}, "u", 1500, "price_1")


async def test_a_batch_request_fills_only_the_batch_classes(writer: LedgerWriter, switch: Switch) -> None:
    await writer.book(row("r1", prompt=100, output=10, batch=True))
    (booked,) = await rows_of(switch)
    assert (booked.input_tokens, booked.output_tokens) == (0, 0)
    assert (booked.batch_input_tokens, booked.batch_output_tokens, booked.amount_nano_usd) == (100, 10, 60_000)


async def test_the_same_row_again_is_a_no_op_and_another_amount_an_alarm(
    switch: Switch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alarms: list[Entry] = []
    writer = writer_for(switch, Journal(tmp_path / "j"), deadline_s=60.0, on_conflict=alarms.append)
    writer.start()
    await writer.book(row("r1"))
    assert (await writer.book(row("r1"))).duplicate
    with pytest.raises(LedgerConflict):
        await writer.book(row("r1", output=6))
    assert len(await rows_of(switch)) == 1
    assert [a.request_id for a in alarms] == ["r1"]
    assert "ledger conflict" in caplog.text
    await writer.stop()
    await writer._journal.close()


async def test_another_attempt_kind_or_seq_is_another_row(writer: LedgerWriter, switch: Switch) -> None:
    for more in ({}, {"attempt": 2}, {"seq": 1}):
        await writer.book(row("r1", **more))
    assert len(await rows_of(switch)) == 3


@pytest.mark.parametrize("provider_id", ["chatcmpl-1", "", None])
async def test_reused_empty_and_missing_provider_ids_lose_no_row(
    writer: LedgerWriter, switch: Switch, provider_id: str | None
) -> None:
    await asyncio.gather(*(writer.book(row(f"r{i}", provider_id=provider_id)) for i in range(20)))
    assert len(await rows_of(switch)) == 20


async def test_concurrent_rows_share_commits(writer: LedgerWriter, switch: Switch) -> None:
    await asyncio.gather(*(writer.book(row(f"r{i}")) for i in range(200)))
    assert len(await rows_of(switch)) == 200
    assert writer.counters.groups < 20


async def test_while_sql_is_away_rows_go_to_the_journal_and_come_back_once(
    writer: LedgerWriter, switch: Switch
) -> None:
    switch.away = True
    paths = {(await writer.book(row(f"r{i}"))).path for i in range(10)}
    assert paths == {"journal"}
    assert writer.num_journalled == 10
    assert await rows_of(switch) == []
    switch.away = False
    for _ in range(3):  # again and again: nothing twice
        await writer.replay()
    assert sorted(r.request_id for r in await rows_of(switch)) == sorted(f"r{i}" for i in range(10))
    assert writer.num_journalled == 0
    assert writer._journal.num_files() == 0


async def test_a_frozen_sql_delays_a_row_by_its_deadline_and_no_more(switch: Switch, tmp_path: Path) -> None:
    writer = writer_for(switch, Journal(tmp_path / "j"), deadline_s=0.025)
    writer.start()
    switch.hangs = True
    before = sum(REDIS_GIVEN_UP.counted.counts)
    async with asyncio.timeout(60):
        booked = await asyncio.gather(*(writer.book(row(f"r{i}")) for i in range(50)))
    assert {b.path for b in booked} == {"journal"}
    assert sum(REDIS_GIVEN_UP.counted.counts) == before  # no wait for Redis
    switch.hangs = False
    for task in writer._tasks:
        task.cancel()
    await writer.replay()
    assert len(await rows_of(switch)) == 50
    await writer.stop()
    await writer._journal.close()


async def test_a_row_whose_commit_is_cut_off_by_the_stop_goes_to_the_journal(
    switch: Switch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, began = writer_for(switch, Journal(tmp_path / "j"), deadline_s=3600.0), asyncio.Event()

    async def hangs(_entries: Sequence[Entry]) -> list[bool | LedgerConflict]:
        began.set()
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(writer, "write", hangs)
    writer.start()
    booking = asyncio.create_task(writer.book(row("r")))
    await began.wait()
    await writer.stop()
    assert (await asyncio.wait_for(booking, 60)).path == "journal"
    await writer._journal.close()


async def test_either_path_at_random_loses_and_doubles_nothing(switch: Switch, tmp_path: Path) -> None:
    chance = random.Random(7)
    writer = writer_for(switch, Journal(tmp_path / "j"), deadline_s=lambda: chance.choice([0.0, 5.0, 0.0005]))
    writer.start()
    entries = [row(f"r{i}", output=i) for i in range(120)]
    for first in range(0, 120, 12):
        booked = await asyncio.gather(*(writer.book(e) for e in entries[first : first + 12] * 2))
        assert len(booked) == 24
        if chance.random() < 0.3:
            await writer.replay()
    await writer.stop()
    assert writer.counters.booked_journal > 0
    assert writer.counters.booked_sql > 0
    rows = await rows_of(switch)
    assert sorted(r.request_id for r in rows) == sorted(e.request_id for e in entries)
    assert sum(r.amount_nano_usd for r in rows) == sum(e.amount_nano_usd for e in entries)
    assert writer.counters.conflicts == 0
    await writer._journal.close()


async def test_a_row_neither_sql_nor_the_journal_takes_is_refused(switch: Switch, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    writer = writer_for(switch, journal, deadline_s=0.0)
    (tmp_path / "j").chmod(0o500)
    journal._folder = tmp_path / "gone"
    with pytest.raises(LedgerUnavailable):
        await writer.book(row("r1"))
    await journal.close()


async def test_another_process_replays_the_file_of_a_dead_one_but_not_of_a_living_one(
    switch: Switch, tmp_path: Path
) -> None:
    living, dead = Journal(tmp_path / "j"), Journal(tmp_path / "j")
    await living.append(row("living"))
    await dead.append(row("dead"))
    await dead.close()  # its lock is gone, its file is not
    heir = writer_for(switch, Journal(tmp_path / "j"))
    assert await heir.replay() == 1
    assert [r.request_id for r in await rows_of(switch)] == ["dead"]
    assert heir._journal.num_files() == 1
    await living.close()
    await heir.stop()
    await heir._journal.close()


@pytest.mark.parametrize("cut", [1, 5, 9, 40])
async def test_a_record_torn_by_a_crash_is_dropped_and_the_ones_before_it_are_kept(
    switch: Switch, tmp_path: Path, cut: int
) -> None:
    journal = Journal(tmp_path / "j")
    for name in ("r1", "r2", "torn"):
        await journal.append(row(name))
    await journal.close()
    (path,) = (tmp_path / "j").glob("*.journal")
    path.write_bytes(path.read_bytes()[:-cut])
    heir = writer_for(switch, Journal(tmp_path / "j"))
    await heir.replay()
    assert [r.request_id for r in await rows_of(switch)] == ["r1", "r2"]
    await heir.stop()
    await heir._journal.close()


async def test_a_replayed_conflict_is_kept_beside_the_journal_and_stops_nothing(switch: Switch, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    writer = writer_for(switch, journal)
    await writer.write([row("r1", output=5)])
    await journal.append(row("r1", output=6))
    await journal.append(row("r2"))
    await writer.replay()
    assert sorted(r.request_id for r in await rows_of(switch)) == ["r1", "r2"]
    (line,) = (tmp_path / "j" / "conflicts.jsonl").read_bytes().splitlines()
    assert msgspec.json.decode(line, type=Entry).output_tokens == 6
    assert journal.num_files() == 0
    await writer.stop()
    await journal.close()


async def test_a_real_end_that_turns_up_after_the_reaper_is_booked_as_a_correction(
    writer: LedgerWriter, switch: Switch
) -> None:
    reaped = row("r1", output=3, status=EntryStatus.INTERRUPTED, origin="reaper")
    await writer.write([reaped])
    real = row("r1", output=20)
    for _ in range(2):  # replayed twice
        await writer.book(msgspec.structs.replace(real))
    first, correction = await rows_of(switch)
    assert (correction.kind, correction.corrects_id) == (EntryKind.CORRECTION, first.id)
    assert first.amount_nano_usd + correction.amount_nano_usd == real.amount_nano_usd
    assert first.output_tokens + correction.output_tokens == 20
    assert writer.counters.conflicts == 0


@pytest.mark.parametrize(
    "first",
    [
        row("r1", output=3, batch=True, status=EntryStatus.INTERRUPTED),
        row("r1", prompt=0, output=0, batch=True, status=EntryStatus.FAILED),
    ],
)
async def test_a_line_that_is_asked_again_ends_with_what_its_end_took(
    writer: LedgerWriter, switch: Switch, first: Entry
) -> None:
    await writer.book(first)
    await writer.book(row("r1", output=4, batch=True, status=EntryStatus.INTERRUPTED))  # interrupted once more
    real = row("r1", output=20, batch=True)
    await writer.book(real)
    rows = await rows_of(switch)
    assert sum(each.batch_output_tokens for each in rows) == 20
    assert sum(each.amount_nano_usd for each in rows) == real.amount_nano_usd
    assert writer.counters.conflicts == 0


async def test_a_failed_row_that_cost_something_is_not_rewritten(writer: LedgerWriter, switch: Switch) -> None:
    await writer.book(row("r1", output=3, status=EntryStatus.FAILED))
    with pytest.raises(LedgerConflict):
        await writer.book(row("r1", output=20))
    assert [each.output_tokens for each in await rows_of(switch)] == [3]


async def test_the_reaper_never_overrules_a_row_that_is_there(writer: LedgerWriter, switch: Switch) -> None:
    await writer.book(row("r1", output=20))
    await writer.write([row("r1", output=3, status=EntryStatus.INTERRUPTED, origin="reaper")])
    assert [r.output_tokens for r in await rows_of(switch)] == [20]


async def test_the_database_refuses_a_row_whose_parts_do_not_add_up(switch: Switch) -> None:
    values = row("r1").row(START)
    values["amount_nano_usd"] += 1
    with pytest.raises(IntegrityError):
        async with switch.begin() as session:
            await session.execute(sa.insert(LedgerEntry).values(**values))


async def test_the_database_refuses_negative_tokens_and_nameless_corrections(switch: Switch) -> None:
    for change in ({"output_tokens": -1}, {"kind": EntryKind.CORRECTION}):
        with pytest.raises(IntegrityError):
            async with switch.begin() as session:
                await session.execute(sa.insert(LedgerEntry).values(**{**row("r1").row(START), **change}))


async def test_every_row_marks_its_bucket_in_the_same_transaction(writer: LedgerWriter, switch: Switch) -> None:
    await writer.book(row("r1"))
    async with switch.read() as session:
        assert list(await session.scalars(sa.select(RollupMark.bucket))) == [int(START.timestamp())]


async def test_a_cache_hit_charges_nothing_and_keeps_its_tokens_apart(writer: LedgerWriter, switch: Switch) -> None:
    saved = TokenCounts.of(prompt_tokens=100, completion_tokens=50)
    hit = Entry.cache_hit(
        request_id="r1",
        principal=PRINCIPAL,
        endpoint="chat",
        model="m",
        accepted_at=START,
        saved=saved,
        rates=RATES.shared(0),
        cache_outcome="exact",
    )
    await writer.book(hit)
    (booked,) = await rows_of(switch)
    assert (booked.amount_nano_usd, booked.input_tokens, booked.output_tokens) == (0, 0, 0)
    assert (booked.saved_input_tokens, booked.saved_output_tokens, booked.saved_nano_usd) == (100, 50, 200_000)


async def test_a_naive_moment_is_refused(switch: Switch) -> None:
    values = row("r1").row(START)
    values["accepted_at"] = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    with pytest.raises(Exception, match="naive"):
        async with switch.begin() as session:
            await session.execute(sa.insert(LedgerEntry).values(**values))


async def test_a_caller_s_long_or_odd_names_never_make_a_row_unbookable(writer: LedgerWriter, switch: Switch) -> None:
    odd = {"end_user": "ü" * 5_000, "provider_id": "a\0b", "error_code": "e" * 500, "conversation_id": "\0" * 300}
    assert (await writer.book(row("r1", tags={"k": "\0" * 10}, **odd))).path == "sql"
    (booked,) = await rows_of(switch)
    assert (booked.end_user, booked.provider_id) == ("ü" * 128, "ab")


async def test_a_row_the_database_refuses_takes_no_other_along_and_is_kept(
    writer: LedgerWriter, switch: Switch, tmp_path: Path
) -> None:
    poison = row("poison")
    poison.amount_nano_usd += 1  # its parts do not add up
    booked = await asyncio.gather(*(writer.book(e) for e in [row("a"), poison, row("b")]))
    assert [b.path for b in booked] == ["sql", "journal", "sql"]
    await writer.replay()
    assert sorted(r.request_id for r in await rows_of(switch)) == ["a", "b"]
    (line,) = (tmp_path / "journal" / "conflicts.jsonl").read_bytes().splitlines()
    assert msgspec.json.decode(line, type=Entry).request_id == "poison"
    assert writer._journal.num_files() == 0
