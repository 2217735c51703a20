"""docs/operator/admin_api.md: its calls work against a real server, and its table is the application's routes."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn

from billing import keys
from billing.principal import Role, Scope
from tests.docs.pages import ROOT, blocks
from tests.gateway.conftest import Gateway
from tests.gateway.controllers.admin.cases import CASES
from tests.gateway.controllers.admin.conftest import OPERATOR, Office

PAGE = "operator/admin_api.md"


@pytest.fixture
async def server(office: Office) -> AsyncIterator[dict[str, str]]:
    """The page's variables, for the office's gateway listening on a port."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(office.gateway.app, lifespan="off", log_config=None, ws="none")
    serving = uvicorn.Server(config)
    task = asyncio.create_task(serving.serve(sockets=[listener]))
    route = {"targets": [{"upstream": "local", "model": "m"}]}
    await office.ok("PUT", "/admin/v1/routes/smollm2", body=route)
    await office.gateway.parts.route_config.load()
    yield {
        "WEIR": f"http://127.0.0.1:{listener.getsockname()[1]}",
        "OPERATOR": office.operator,
        "ADMIN": await _admin_of_acme(office.gateway),
    }
    serving.should_exit = True
    await task
    listener.close()


async def _admin_of_acme(gateway: Gateway) -> str:
    billing = gateway.parts.billing
    async with billing.db.begin() as session:
        made = await keys.create_key(
            session,
            OPERATOR,
            billing.secret,
            gateway.tenant.project_id,
            name="admin",
            role=Role.ADMIN,
            scopes=[Scope.ADMIN, Scope.USAGE_READ],
        )
    return made.plaintext


async def _run(*command: str, variables: dict[str, str], folder: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **variables},
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_every_call_of_the_page_works(server: dict[str, str], tmp_path: Path) -> None:
    calls = blocks(PAGE, "sh")
    assert len(calls) >= 6
    for call in calls:
        await _run("sh", "-ec", call, variables=server, folder=tmp_path)


async def test_pages_program_runs_with_openais_client(server: dict[str, str], tmp_path: Path) -> None:
    [program] = blocks(PAGE, "python")
    printed = await _run(sys.executable, "-c", program, variables=server, folder=tmp_path)
    assert printed.startswith("sk-weir-")


def test_table_names_every_route_with_the_role_that_the_role_test_holds_it_to() -> None:
    text = (ROOT / "docs" / PAGE).read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and "`" in line]
    shown = sorted((_shape(row[1].strip("`")), row[2].strip(" |")) for row in rows)
    held = sorted((_shape(f"{case.method} {case.path}"), case.least) for case in CASES)
    assert shown == sorted([*held, ("GET /v1/usage", "member")])


def _shape(route: str) -> str:
    return re.sub(r"{[^}]*}", "{}", route)
