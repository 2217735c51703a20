"""Every admin route, tried with every role and about a foreign tenant. A new route fails here until it has a case."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import sqlalchemy as sa
from litestar import Litestar
from litestar.routes import HTTPRoute

from billing.db import Base
from tests.gateway.controllers.admin.cases import CASES, ORGANIZATION_CASES, ROLES, Case, Filler
from tests.gateway.controllers.admin.conftest import Company, Office, on_both_databases

ADMIN_PATHS = ("/admin/", "/v1/organization")
# What differs from one reading to the next without anybody having changed it: roll-ups follow the rows by themselves.
VOLATILE = {("api_key", "last_used_at")}
DERIVED = ("usage_", "audit_event")


def _routes(app: Litestar) -> set[tuple[str, str, str]]:
    """(operation id, method, path with its parameters unnamed) of every admin route."""
    found = set()
    for route in app.routes:
        if isinstance(route, HTTPRoute) and route.path_format.startswith(ADMIN_PATHS):
            for method, (handler, _) in route.route_handler_map.items():
                if method != "OPTIONS":
                    found.add((str(handler.operation_id), str(method), re.sub(r"{[^}]*}", "{}", route.path_format)))
    return found


def _key_of(office: Office, company: Company, role: str) -> str | None:
    if role == "none":
        return None
    return office.operator if role == "operator" else company.keys[role]


async def _try(office: Office, filler: Filler, case: Case, about: Company, key: str | None) -> Any:
    path, query, body = await filler.filled(case, about)
    return await office.call(case.method, path, key, body, params=query, headers=_organization(case, about))


def _organization(case: Case, about: Company) -> dict[str, str]:
    """How OpenAI's API says whom a call is about."""
    return {"openai-organization": about.id} if case in ORGANIZATION_CASES else {}


async def test_every_admin_route_has_a_case(office: Office) -> None:
    tried = {(case.id, case.method, re.sub(r"{[^}]*}", "{}", case.path)) for case in CASES}
    assert tried == _routes(office.gateway.app)


@on_both_databases
async def test_no_route_opens_below_its_role_and_each_does_at_it(office: Office) -> None:
    filler, wrong = Filler(office), []
    for case in CASES:
        for role in ROLES:
            response = await _try(office, filler, case, office.acme, _key_of(office, office.acme, role))
            allowed = ROLES.index(role) >= ROLES.index(case.least)
            refused = 401 if role == "none" else 403
            if not (response.is_success if allowed else response.status_code == refused):
                wrong.append(f"{case.id} as {role}: {response.status_code} {response.text[:200]}")
    assert wrong == []


@on_both_databases
async def test_no_route_shows_or_changes_anything_of_a_foreign_tenant(office: Office) -> None:
    filler, wrong = Filler(office), []
    company = office.acme
    marks = [company.id, company.slug, company.project, *company.key_ids.values()]
    for case in CASES:
        path, query, body = await filler.filled(case, company)
        headers = _organization(case, company)
        before = await _rows_of(office, company)
        for role in ("member", "admin"):
            response = await office.call(
                case.method, path, office.rival.keys[role], body, params=query, headers=headers
            )
            about_one = path != case.path or query or headers or (body and body != case.body)
            if response.is_success and (about_one or case.method != "GET"):
                wrong.append(f"{case.id} as a foreign {role}: {response.status_code}")
            if response.status_code not in (200, 403, 404):
                wrong.append(f"{case.id} as a foreign {role}: {response.status_code} {response.text[:200]}")
            asked = msgspec.json.encode([path, query, body, headers]).decode()
            shown = response.text
            if case.method == "GET" and path == case.path:  # a list: without its filters too
                plain = {name: value for name, value in query.items() if name == "start_time"}
                shown += (await office.call("GET", path, office.rival.keys[role], params=plain)).text
            leaked = [mark for mark in marks if mark in shown and mark not in asked]
            if path == case.path:
                leaked += [mark for mark in marks if mark in shown and response.is_success]
            if leaked:
                wrong.append(f"{case.id} as a foreign {role} shows {leaked}")
        after = await _rows_of(office, company)
        changed = [table for table, rows in after.items() if rows != before[table]]
        if changed:
            wrong.append(f"{case.id} as a foreigner changed {changed}")
    assert wrong == []


@on_both_databases
async def test_every_write_leaves_an_audit_row_that_names_who_and_which_request(office: Office) -> None:
    filler, wrong = Filler(office), []
    for case in CASES:
        path, query, body = await filler.filled(case, office.acme)
        seen = {event.id for event in await office.audit()}
        headers = _organization(case, office.acme)
        response = await office.call(case.method, path, office.operator, body, params=query, headers=headers)
        assert response.is_success, f"{case.id}: {response.text}"
        fresh = [event for event in await office.audit() if event.id not in seen]
        if bool(fresh) != case.audited:
            wrong.append(f"{case.id} left {len(fresh)} audit rows")
        wrong += [
            f"{case.id}: {event.action} names request {event.request_id} by {event.actor_role}"
            for event in fresh
            if event.request_id != response.headers["x-request-id"] or event.actor_role != "operator"
        ]
    assert wrong == []


async def test_no_secret_stands_in_the_audit_log(office: Office) -> None:
    made = await office.ok("POST", "/admin/v1/keys", office.acme.keys["admin"], {"project": office.acme.project})
    rotated = await office.ok("POST", f"/admin/v1/keys/{made['details']['id']}/rotate", body={})
    events = await office.audit()
    text = msgspec.json.encode([[event.action, event.resource_id, event.detail] for event in events]).decode()
    assert "api_key.rotated" in text
    for plaintext in (made["key"], rotated["key"], *office.acme.keys.values()):
        assert plaintext.rsplit("-", 1)[1] not in text


async def _rows_of(office: Office, company: Company) -> dict[str, list[Any]]:
    """Every row of the books that carries the company's id, but for what moves by itself."""
    rows: dict[str, list[Any]] = {}
    async with office.gateway.parts.billing.db.read() as session:
        for table in Base.metadata.sorted_tables:
            owner = table.c.id if table.name == "tenant" else table.c.get("tenant_id")
            if owner is None or table.name.startswith(DERIVED):
                continue
            columns = [column for column in table.c if (table.name, column.name) not in VOLATILE]
            found = await session.execute(sa.select(*columns).where(owner == company.id).order_by(columns[0]))
            rows[table.name] = [tuple(row) for row in found]
    return rows
