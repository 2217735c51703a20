"""The history of migrations against the models, on both databases."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from billing import db


@pytest.fixture(params=["sqlite", "postgres"])
async def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    from tests.billing.support import create_database

    url: Callable[[str], str] = request.getfixturevalue("postgres_server")
    name = f"m{abs(hash(request.node.nodeid)):x}"
    await create_database(url("postgres"), name)
    return url(name)


async def test_upgrade_makes_what_the_models_say_and_downgrade_leaves_nothing(empty_url: str) -> None:
    await db.upgrade(empty_url)
    await db.check(empty_url)  # raises when a model and its table differ
    await db.upgrade(empty_url)  # a second gateway starting is harmless
    await db.downgrade(empty_url, "base")
    engine = db.create_engine(empty_url)
    async with engine.connect() as connection:
        tables = await connection.run_sync(lambda c: sa.inspect(c).get_table_names())
    await engine.dispose()
    assert set(tables) == {"alembic_version"}


def test_upgrade_works_from_an_empty_folder_without_any_configuration_file(tmp_path: Path) -> None:
    script = "import asyncio; from billing.db import upgrade; asyncio.run(upgrade('weir.db'))"
    root = Path(db.__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, check=True, timeout=60)
    assert (tmp_path / "weir.db").stat().st_size > 0
