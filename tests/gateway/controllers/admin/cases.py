"""One call for every route of both admin APIs: what it needs, and the least role that may make it.

`{tenant}`, `{project_id}` ... in paths, queries and bodies stand for things of the company that is called about;
`{fresh_…}` are made anew for each call, so that destructive calls do not disturb one another.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from billing import alerts, config, keys, prices, tenants
from billing.limits import rules
from billing.principal import Role
from gateway.schemas.organization.projects import account_id
from tests.gateway.controllers.admin.conftest import OPERATOR, Company, Office

ROLES = ("none", "inference", "member", "admin", "operator")  # rising


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`least` is the least of ROLES that the call succeeds for. `audited`: it changes something."""

    id: str
    method: str
    path: str
    least: str
    query: dict[str, Any] = {}
    body: Any = None
    budget: bool = False  # the company must have a monthly budget

    @property
    def audited(self) -> bool:
        return self.method != "GET"


def case(id: str, method: str, path: str, least: str, **fields: Any) -> Case:
    return Case(id=id, method=method, path=path, least=least, **fields)


T, P, K, L = "/admin/v1/tenants", "/admin/v1/projects", "/admin/v1/keys", "/admin/v1/limits"
U, R = "/admin/v1/upstreams", "/admin/v1/routes"
CASES: list[Case] = [
    case("ListTenants", "GET", T, "member"),
    case("CreateTenant", "POST", T, "operator", body={"slug": "new-{n}"}),
    case("GetTenant", "GET", T + "/{tenant}", "member"),
    case("UpdateTenant", "PATCH", T + "/{tenant}", "admin", body={"name": "Renamed {n}"}),
    case("ListProjects", "GET", P, "member", query={"tenant": "{tenant}"}),
    case("CreateProject", "POST", P, "admin", body={"name": "New {n}", "tenant": "{tenant}"}),
    case("GetProject", "GET", P + "/{project_id}", "member"),
    case("UpdateProject", "PATCH", P + "/{project_id}", "admin", body={"name": "Renamed {n}"}),
    case("ArchiveProject", "POST", P + "/{fresh_project}/archive", "admin"),
    case("ListKeys", "GET", K, "member", query={"tenant": "{tenant}"}),
    case("CreateKey", "POST", K, "admin", body={"project": "{project_id}", "name": "new-{n}"}),
    case("GetKey", "GET", K + "/{key_id}", "member"),
    case("UpdateKey", "PATCH", K + "/{fresh_key}", "admin", body={"name": "renamed-{n}"}),
    case("RotateKey", "POST", K + "/{fresh_key}/rotate", "admin", body={"grace_s": 0}),
    case("RevokeKey", "DELETE", K + "/{fresh_key}", "admin"),
    case("ListLimits", "GET", L, "member", query={"tenant": "{tenant}"}),
    case(
        "SetLimit",
        "PUT",
        L,
        "admin",
        body={"scope": "project", "scope_id": "{project_id}", "quota": "rpm", "model": "m{n}", "hard": 5},
    ),
    case(
        "RemoveLimit",
        "DELETE",
        L,
        "admin",
        query={"scope": "project", "scope_id": "{project_id}", "quota": "rpd", "model": "{fresh_limit}"},
    ),
    case("ListPrices", "GET", "/admin/v1/prices", "member", query={"tenant": "{tenant}"}),
    case(
        "CreatePrice",
        "POST",
        "/admin/v1/prices",
        "operator",
        body={"model": "model-{n}", "input": "0.15", "output": "0.6", "tenant": "{tenant}"},
    ),
    case("EndPrice", "POST", "/admin/v1/prices/{fresh_price}/end", "operator", body={}),
    case(
        "CreateDiscount",
        "POST",
        "/admin/v1/discounts",
        "operator",
        body={"tenant": "{tenant}", "percent": "15", "model": "model-{n}"},
    ),
    case("GetLimitStatus", "GET", L + "/status", "member", query={"tenant": "{tenant}"}),
    case("ListDiscounts", "GET", "/admin/v1/discounts", "member", query={"tenant": "{tenant}"}),
    case("ListGpuPrices", "GET", "/admin/v1/gpu-prices", "operator"),
    case("ListReports", "GET", "/admin/v1/reports", "member"),
    case("GetReport", "GET", "/admin/v1/reports/{report}", "member", query={"tenant": "{tenant}", "by": "tenant,key"}),
    case("ListLedger", "GET", "/admin/v1/ledger", "member", query={"tenant": "{tenant}"}),
    case(
        "CreateAdjustment",
        "POST",
        "/admin/v1/ledger/adjustments",
        "operator",
        body={"tenant": "{tenant}", "credit_usd": "1", "note": "sorry"},
    ),
    case("GetLedger", "GET", "/admin/v1/ledger/{request_id}", "member"),
    case("CheckBooks", "GET", "/admin/v1/reconcile", "operator"),
    case("RepairBooks", "POST", "/admin/v1/reconcile", "operator"),
    case("ListAudit", "GET", "/admin/v1/audit", "admin", query={"tenant": "{tenant}"}),
    case("Apply", "POST", "/admin/v1/apply", "operator", body={"tenants": [{"slug": "applied-{n}"}]}),
    case("GetCacheUsage", "GET", T + "/{tenant}/cache", "admin"),
    case("InvalidateCache", "POST", T + "/{tenant}/cache/invalidate", "admin", body={"model": "m{n}"}),
    case("ListWebhooks", "GET", "/admin/v1/webhooks", "admin"),
    case("CreateWebhook", "POST", "/admin/v1/webhooks", "admin", body={"url": "https://x.org/", "tenant": "{tenant}"}),
    case("RemoveWebhook", "DELETE", "/admin/v1/webhooks/{fresh_webhook}", "admin"),
    case("ListUpstreams", "GET", U, "operator"),
    case(
        "PutUpstream",
        "PUT",
        U + "/{fresh_upstream}",
        "operator",
        body={"base_url": "http://127.0.0.1:9/v1", "models": {"remote-{n}": ""}, "api_key": "sk-upstream-{n}"},
    ),
    case("DeleteUpstream", "DELETE", U + "/{fresh_upstream}", "operator"),
    case("ListRoutes", "GET", R, "operator"),
    case(
        "PutRoute",
        "PUT",
        R + "/{fresh_route}",
        "operator",
        body={"targets": [{"upstream": "local", "model": "m"}], "description": "route {n}"},
    ),
    case("DeleteRoute", "DELETE", R + "/{fresh_route}", "operator"),
    case("TestRoute", "POST", R + "/{fresh_route}/test", "operator"),
    case("CreateGpuPrice", "POST", "/admin/v1/gpu-prices", "operator", body={"upstream": "gpu-{n}", "hour_usd": "2"}),
]

ORG = "/v1/organization"
IN_PROJECT = ORG + "/projects/{project_id}"
BY_KEY = {"start_time": "{hour_ago}", "group_by": ["project_id", "api_key_id"]}
A_BUDGET = {"threshold_amount": 5000, "currency": "USD", "interval": "month"}
ORGANIZATION_CASES = [
    case("list-projects", "GET", ORG + "/projects", "admin"),
    case("create-project", "POST", ORG + "/projects", "admin", body={"name": "New {n}"}),
    case("retrieve-project", "GET", IN_PROJECT, "admin"),
    case("modify-project", "POST", IN_PROJECT, "admin", body={"name": "Renamed {n}"}),
    case("archive-project", "POST", ORG + "/projects/{fresh_project}/archive", "admin"),
    case("list-project-api-keys", "GET", IN_PROJECT + "/api_keys", "admin"),
    case("retrieve-project-api-key", "GET", IN_PROJECT + "/api_keys/{key_id}", "admin"),
    case(
        "modify-project-api-key", "POST", IN_PROJECT + "/api_keys/{fresh_key}", "admin", body={"expires_in_seconds": 60}
    ),
    case("delete-project-api-key", "DELETE", IN_PROJECT + "/api_keys/{fresh_key}", "admin"),
    case("list-project-service-accounts", "GET", IN_PROJECT + "/service_accounts", "admin"),
    case("create-project-service-account", "POST", IN_PROJECT + "/service_accounts", "admin", body={"name": "bot {n}"}),
    case("retrieve-project-service-account", "GET", IN_PROJECT + "/service_accounts/{fresh_account}", "admin"),
    case(
        "modify-project-service-account",
        "POST",
        IN_PROJECT + "/service_accounts/{fresh_account}",
        "admin",
        body={"name": "bot {n}"},
    ),
    case("delete-project-service-account", "DELETE", IN_PROJECT + "/service_accounts/{fresh_account}", "admin"),
    case("list-project-rate-limits", "GET", IN_PROJECT + "/rate_limits", "admin"),
    case(
        "update-project-rate-limits",
        "POST",
        IN_PROJECT + "/rate_limits/{rate_limit}",
        "admin",
        body={"{rate_field}": 9},
    ),
    case("retrieve-project-spend-limit", "GET", ORG + "/projects/{project_with_budget}/spend_limit", "admin"),
    case("update-project-spend-limit", "POST", IN_PROJECT + "/spend_limit", "admin", body=A_BUDGET),
    case("delete-project-spend-limit", "DELETE", ORG + "/projects/{project_with_budget}/spend_limit", "admin"),
    case("retrieve-spend-limit", "GET", ORG + "/spend_limit", "admin", budget=True),
    case("update-spend-limit", "POST", ORG + "/spend_limit", "operator", body=A_BUDGET),
    case("delete-spend-limit", "DELETE", ORG + "/spend_limit", "operator", budget=True),
    case("admin-api-keys-list", "GET", ORG + "/admin_api_keys", "admin"),
    case("admin-api-keys-create", "POST", ORG + "/admin_api_keys", "admin", body={"name": "root {n}"}),
    case("admin-api-keys-get", "GET", ORG + "/admin_api_keys/{fresh_admin_key}", "admin"),
    case("admin-api-keys-delete", "DELETE", ORG + "/admin_api_keys/{fresh_admin_key}", "admin"),
    case("list-audit-logs", "GET", ORG + "/audit_logs", "admin"),
    case("usage-completions", "GET", ORG + "/usage/completions", "member", query=BY_KEY),
    case("usage-embeddings", "GET", ORG + "/usage/embeddings", "member", query=BY_KEY),
    case("usage-others", "GET", ORG + "/usage/{kind}", "member", query={"start_time": "{hour_ago}"}),
    case("usage-costs", "GET", ORG + "/costs", "member", query=BY_KEY),
]
CASES += ORGANIZATION_CASES


class Filler:
    """Fills a case's braces with a company's things; `n` counts calls."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._n = 0

    async def filled(self, case: Case, company: Company) -> tuple[str, dict[str, Any], Any]:
        """(path, query, body) of one call."""
        self._n += 1
        values = {
            "n": str(self._n),
            "tenant": company.id,
            "project_id": company.project,
            "key_id": company.key_ids["member"],
            "report": "spend",
            "rate_limit": "rl-m",
            "rate_field": "max_requests_per_1_minute",
            "kind": "images",
            "hour_ago": str(int(time.time()) - 3600),
            "request_id": f"req_of_{company.slug}",
        }
        text = msgspec.json.encode([case.path, case.query, case.body]).decode()
        for name, make in _FRESH.items():
            if "{" + name + "}" in text:
                values[name] = await make(self._office, company, self._n)

        if case.budget:
            await _budget(self._office, "tenant", company.id)

        def fill(value: Any) -> Any:
            if isinstance(value, str):
                for name, filler in values.items():
                    value = value.replace("{" + name + "}", filler)
                return value
            if isinstance(value, dict):
                return {fill(key): fill(inner) for key, inner in value.items()}
            return [fill(inner) for inner in value] if isinstance(value, list) else value

        path: str = fill(case.path)
        return path, fill(case.query), fill(case.body)


async def _project(office: Office, company: Company, n: int) -> str:
    async with office.gateway.parts.billing.db.begin() as session:
        return (await tenants.create_project(session, OPERATOR, company.id, name=f"fresh {n}")).id


async def _key(office: Office, company: Company, n: int) -> str:
    billing = office.gateway.parts.billing
    async with billing.db.begin() as session:
        made = await keys.create_key(session, OPERATOR, billing.secret, company.project, name=f"fresh-{n}")
        return made.key.id


async def _limit(office: Office, company: Company, n: int) -> str:
    async with office.gateway.parts.billing.db.begin() as session:
        rule = await rules.set_limit(
            session,
            OPERATOR,
            scope_kind="project",
            scope_id=company.project,
            quota="rpd",
            model=f"fresh-{n}",
            hard=1,
        )
        return rule.model


async def _price(office: Office, company: Company, n: int) -> str:
    async with office.gateway.parts.billing.db.begin() as session:
        made = await prices.set_price(
            session, OPERATOR, model=f"fresh-{n}", input_nano=1, output_nano=1, tenant=company.id
        )
        return made.id


async def _webhook(office: Office, company: Company, n: int) -> str:
    billing = office.gateway.parts.billing
    async with billing.db.begin() as session:
        made = await alerts.create_endpoint(
            session, OPERATOR, billing.secret, url=f"https://example.com/{n}", tenant=company.id
        )
        return made.endpoint.id


async def _upstream(office: Office, _: Company, n: int) -> str:
    body = {"base_url": "http://127.0.0.1:9/v1", "models": {f"fresh-model-{n}": ""}}
    async with office.gateway.parts.billing.db.begin() as session:
        return (await config.set_item(session, OPERATOR, "upstream", f"fresh-{n}", body)).name


async def _route(office: Office, _: Company, n: int) -> str:
    body = {"targets": [{"upstream": "local", "model": "m"}]}
    async with office.gateway.parts.billing.db.begin() as session:
        return (await config.set_item(session, OPERATOR, "route", f"fresh-{n}", body)).name


async def _account(office: Office, company: Company, n: int) -> str:
    billing = office.gateway.parts.billing
    async with billing.db.begin() as session:
        made = await keys.create_key(
            session, OPERATOR, billing.secret, company.project, name=f"bot-{n}", owner_kind="service_account"
        )
        return account_id(made.key)


async def _admin_key(office: Office, company: Company, n: int) -> str:
    billing = office.gateway.parts.billing
    async with billing.db.begin() as session:
        made = await keys.create_key(
            session, OPERATOR, billing.secret, company.project, name=f"root-{n}", role=Role.ADMIN, scopes=["admin"]
        )
        return made.key.id


async def _project_with_budget(office: Office, company: Company, n: int) -> str:
    project = await _project(office, company, n)
    await _budget(office, "project", project)
    return project


async def _budget(office: Office, kind: str, scope_id: str) -> None:
    async with office.gateway.parts.billing.db.begin() as session:
        await rules.set_limit(session, OPERATOR, scope_kind=kind, scope_id=scope_id, quota="budget_month", hard=10**12)


_FRESH = {
    "fresh_account": _account,
    "fresh_admin_key": _admin_key,
    "fresh_key": _key,
    "fresh_limit": _limit,
    "fresh_price": _price,
    "fresh_upstream": _upstream,
    "fresh_route": _route,
    "fresh_project": _project,
    "fresh_webhook": _webhook,
    "project_with_budget": _project_with_budget,
}
