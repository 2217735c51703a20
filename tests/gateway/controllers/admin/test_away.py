"""A store of ours that is away is 503 with Retry-After, never a 4xx or a bare 500."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from billing.db import create_engine
from tests.billing.conftest import own_valkey
from tests.billing.support import ValkeyProcess
from tests.gateway.controllers.admin.conftest import Office

__all__ = ["own_valkey"]


@pytest.fixture
def redis_url(own_valkey: ValkeyProcess) -> str:
    """A Valkey that the test may kill."""
    return f"unix://{own_valkey.socket}"


async def test_without_redis_counters_are_503_and_the_books_are_read(office: Office, own_valkey: ValkeyProcess) -> None:
    await office.ok("GET", "/v1/usage", office.acme.keys["member"])
    own_valkey.kill()
    await office.ok("PUT", "/admin/v1/limits", body=_limit(office))
    response = await office.call("GET", "/v1/usage", office.acme.keys["member"])
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    await office.refused(503, "GET", "/admin/v1/limits/status", office.acme.keys["admin"])
    await office.ok("GET", "/admin/v1/ledger", office.acme.keys["member"])


@pytest.mark.parametrize("office_database", ["postgres"], indirect=True)
async def test_without_sql_every_read_is_503_and_works_again_afterwards(
    office: Office, office_database: str, postgres_server: Callable[[str], str]
) -> None:
    paths = ("/admin/v1/tenants", "/admin/v1/ledger", "/admin/v1/reports/spend", "/v1/organization/projects")
    admin = office.acme.keys["admin"]
    for path in paths:
        await office.ok("GET", path, admin)
    database = make_url(office_database).database
    # when the database takes no connections any more and drops those it has
    await _as_superuser(postgres_server, f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS false')
    await _as_superuser(
        postgres_server,
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'",
    )
    for path in paths:
        response = await office.call("GET", path, admin)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "service_unavailable"), path
        assert int(response.headers["retry-after"]) >= 1
    # then nobody has to restart anything once it is back
    await _as_superuser(postgres_server, f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS true')
    for path in paths:
        await office.ok("GET", path, admin)


async def _as_superuser(postgres_server: Callable[[str], str], statement: str) -> None:
    engine = create_engine(postgres_server("postgres"))
    async with engine.connect() as connection:
        autocommit = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await autocommit.execute(sa.text(statement))
    await engine.dispose()


def _limit(office: Office) -> dict[str, object]:
    return {"scope": "key", "scope_id": office.acme.key_ids["member"], "quota": "rpm", "hard": 5}
