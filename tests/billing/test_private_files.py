"""What Weir keeps on the disk is its own user's alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from billing.db import Database
from billing.journal import Journal


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("open_umask")
async def test_a_new_database_with_its_wal_is_read_by_its_owner_alone(tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path / 'var' / 'weir.db'}")
    async with db.begin() as session:
        await session.execute(sa.text("CREATE TABLE t (x INTEGER)"))
    files = sorted((tmp_path / "var").iterdir())
    assert [file.name for file in files] == ["weir.db", "weir.db-shm", "weir.db-wal"]
    assert {mode_of(file) for file in files} == {0o600}
    assert mode_of(tmp_path / "var") == 0o700
    await db.close()


@pytest.mark.usefixtures("open_umask")
async def test_a_new_journals_folder_is_its_owners_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    assert mode_of(tmp_path / "journal") == 0o700
    await journal.close()
