"""The `weir` command over a migrated database in a folder of its own, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from billing.auth import Authenticator
from billing.db import Database
from billing.entry import Entry
from billing.journal import Journal
from billing.ledger import LedgerWriter
from billing.prices import Rates, TokenCounts
from billing.secrets import ServerSecret
from gateway.cli import root
from tests.billing.conftest import migrated_postgres, postgres_server, postgres_url

__all__ = ["migrated_postgres", "postgres_server", "postgres_url"]

RATES = Rates(
    price_id="price_1",
    model="m",
    input=37_500_000,
    cached_input=10_000_000,
    output=150_000_000,
    batch_input=1,
    batch_output=1,
)


class Weir:
    """Runs commands as a shell does, and books rows as a gateway does."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        self.database_url = database_url

    def run(self, *words: str, stdin: str | None = None) -> Result:
        options = ["--data-dir", str(self.folder), "--database-url", self.database_url]
        return CliRunner().invoke(root, [*options, *words], input=stdin)

    def ok(self, *words: str) -> str:
        done = self.run(*words)
        assert done.exit_code == 0, f"{words}: {done.output} {done.exception!r}"
        return done.output

    def json(self, *words: str) -> Any:
        return json.loads(self.ok(*words, "--json"))

    def book(self, key: str, *, times: int = 1, **fields: Any) -> Entry:
        """One usage row of the key's owner: 1000 tokens of prompt, 900 of them cached, 100 of output unless told."""
        tokens = fields.pop("tokens", TokenCounts.of(prompt_tokens=1000, cached_tokens=900, completion_tokens=100))
        usual = {
            "request_id": "req_1",
            "endpoint": "chat",
            "model": "m",
            "accepted_at": datetime(2026, 11, 15, 12, 0, tzinfo=UTC),
            "rates": RATES,
        }

        async def work(db: Database, secret: ServerSecret) -> Entry:
            principal = await Authenticator(db, secret).authenticate(key)
            entry = Entry.priced(principal=principal, tokens=tokens, **{**usual, **fields})
            more = [msgspec.structs.replace(entry, request_id=f"{entry.request_id}.{n}") for n in range(1, times)]
            journal = Journal(self.folder / "journal")
            writer = LedgerWriter(db, journal)
            await writer.write([entry, *more])
            await writer.stop()
            await journal.close()
            return entry

        return self._with_books(work)

    def tamper(self, statement: str) -> None:
        """What no part of Weir would do."""

        async def work(db: Database, _: ServerSecret) -> None:
            async with db.begin() as session:
                await session.execute(sa.text(statement))

        self._with_books(work)

    def _with_books(self, work: Callable[[Database, ServerSecret], Awaitable[Any]]) -> Any:
        async def go() -> Any:
            db = Database(self.database_url)
            try:
                return await work(db, ServerSecret.load(self.folder / "server_secret.json"))
            finally:
                await db.close()

        return asyncio.run(go())


on_both_databases = pytest.mark.parametrize("weir", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def weir(request: pytest.FixtureRequest, tmp_path: Path, migrated: Path) -> Weir:
    """A company `acme` with a project is all there is; on SQLite unless `on_both_databases`."""
    if getattr(request, "param", "sqlite") == "sqlite":
        (tmp_path / "weir.db").write_bytes(migrated.read_bytes())
        url = f"sqlite+aiosqlite:///{tmp_path / 'weir.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    made = Weir(tmp_path, url)
    made.ok("tenants", "create", "acme", "--time-zone", "Asia/Kolkata")
    made.ok("projects", "create", "acme", "web")
    return made


@pytest.fixture
def key(weir: Weir) -> str:
    """The plaintext of a key of acme's project."""
    plaintext: str = weir.json("keys", "create", "acme", "web")[0]["key"]
    return plaintext
