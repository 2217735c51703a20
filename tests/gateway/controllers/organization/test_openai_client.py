"""OpenAI's organization API, driven by OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import msgspec
import openai
import pytest

from billing.prices import TokenCounts
from tests.gateway.controllers.admin.conftest import RATES, Company, Office, book, office, office_database

__all__ = ["office", "office_database"]

DAY = datetime(2026, 11, 15, tzinfo=UTC)
START = int(DAY.timestamp())
ROW_NANO = 3_750 + 9_000 + 15_000


def client_of(office: Office, key: str, **options: Any) -> openai.AsyncOpenAI:
    transport = httpx2.ASGITransport(app=office.gateway.app)  # type: ignore[arg-type]
    return openai.AsyncOpenAI(
        base_url="http://weir/v1",
        api_key="not-used",
        admin_api_key=key,
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport, base_url="http://weir"),
        **options,
    )


@pytest.fixture
async def admin(office: Office) -> AsyncIterator[Any]:
    """`client.admin.organization` with the key of acme's admin."""
    async with client_of(office, office.acme.keys["admin"]) as client:
        yield client.admin.organization


async def test_projects_are_made_paged_renamed_and_archived(admin: Any, office: Office) -> None:
    made = [await admin.projects.create(name=f"Project {n}") for n in range(3)]
    assert made[0].object == "organization.project"
    assert (made[0].status, made[0].archived_at) == ("active", None)
    # when they are walked in pages of two
    walked = [project.id async for project in admin.projects.list(limit=2)]
    assert walked == [office.acme.project, *(project.id for project in made)]
    renamed = await admin.projects.update(made[1].id, name="Renamed")
    assert (renamed.id, renamed.name) == (made[1].id, "Renamed")
    archived = await admin.projects.archive(made[2].id)
    assert archived.status == "archived"
    assert archived.archived_at >= archived.created_at
    assert made[2].id not in [project.id async for project in admin.projects.list()]
    assert made[2].id in [project.id async for project in admin.projects.list(include_archived=True)]
    with pytest.raises(openai.BadRequestError) as refused:
        await admin.projects.create(name="x", residency={"region": "eu"})
    assert refused.value.param == "residency"


async def test_service_account_brings_a_key_that_works_until_it_is_deleted(admin: Any, office: Office) -> None:
    project = office.acme.project
    account = await admin.projects.service_accounts.create(project, name="ci", expires_in_seconds=3600)
    assert (account.object, account.role) == ("organization.project.service_account", "member")
    assert account.api_key.object == "organization.project.service_account.api_key"
    key = account.api_key.value
    headers = {"authorization": f"Bearer {key}"}
    assert (await office.gateway.client.get("/v1/models", headers=headers)).status_code == 200
    assert [each.id async for each in admin.projects.service_accounts.list(project)] == [account.id]
    assert (await admin.projects.service_accounts.retrieve(account.id, project_id=project)).name == "ci"
    # then its key is listed, redacted, with its owner
    listed = {each.id: each async for each in admin.projects.api_keys.list(project)}
    shown = listed[account.api_key.id]
    assert shown.owner.type == "service_account"
    assert shown.owner.service_account.id == account.id
    assert key not in shown.to_json()
    assert shown.redacted_value.endswith(key[-4:])
    assert shown.expires_at == account.api_key.expires_at
    # and deleting the account ends it
    deleted = await admin.projects.service_accounts.delete(account.id, project_id=project)
    assert (deleted.id, deleted.deleted) == (account.id, True)
    assert (await office.gateway.client.get("/v1/models", headers=headers)).status_code == 401


async def test_project_keys_are_changed_and_revoked(admin: Any, office: Office) -> None:
    project, key_id = office.acme.project, office.acme.key_ids["inference"]
    changed = await admin.projects.api_keys.update(key_id, project_id=project, expires_in_seconds=60)
    assert 0 < changed.expires_at - datetime.now(UTC).timestamp() <= 60
    assert (await admin.projects.api_keys.retrieve(key_id, project_id=project)).owner.type == "user"
    deleted = await admin.projects.api_keys.delete(key_id, project_id=project)
    assert (deleted.object, deleted.deleted) == ("organization.project.api_key.deleted", True)
    await office.refused(401, "GET", "/v1/models", office.acme.keys["inference"])


async def test_admin_keys_administer_and_call_no_model(admin: Any, office: Office) -> None:
    made = await admin.admin_api_keys.create(name="root", expires_in_seconds=3600)
    assert (made.object, made.owner.role) == ("organization.admin_api_key", "owner")
    async with client_of(office, made.value) as client:
        mine = [key.id async for key in client.admin.organization.admin_api_keys.list(order="desc")]
        assert mine == [made.id, office.acme.key_ids["admin"]]
    await office.refused(403, "GET", "/v1/models", made.value)
    assert made.value not in (await admin.admin_api_keys.retrieve(made.id)).to_json()
    await admin.admin_api_keys.delete(made.id)
    await office.refused(401, "GET", "/v1/organization/projects", made.value)


async def test_rate_limits_are_listed_by_model_set_and_in_force(admin: Any, office: Office) -> None:
    limits = {limit.model: limit async for limit in admin.projects.rate_limits.list_rate_limits(office.acme.project)}
    assert {"m", "all-MiniLM-L6-v2"} <= set(limits)
    limit = await admin.projects.rate_limits.update_rate_limit(
        limits["m"].id, project_id=office.acme.project, max_requests_per_1_minute=1, max_tokens_per_1_minute=5000
    )
    assert (limit.model, limit.max_requests_per_1_minute, limit.max_tokens_per_1_minute) == ("m", 1, 5000)
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    await office.ok("POST", "/v1/chat/completions", office.acme.keys["inference"], chat)
    await office.refused(429, "POST", "/v1/chat/completions", office.acme.keys["inference"], chat)
    with pytest.raises(openai.NotFoundError):
        await admin.projects.rate_limits.update_rate_limit(
            "rl-nothing", project_id=office.acme.project, max_requests_per_1_minute=1
        )


async def test_projects_spend_limit_is_a_monthly_budget_in_cents(admin: Any, office: Office) -> None:
    project = office.acme.project
    with pytest.raises(openai.NotFoundError):
        await admin.projects.spend_limit.retrieve(project)
    made = await admin.projects.spend_limit.update(project, threshold_amount=2550, currency="USD", interval="month")
    assert (made.object, made.threshold_amount, made.enforcement.status) == ("project.spend_limit", 2550, "inactive")
    [rule] = await office.ok("GET", "/admin/v1/limits", params={"tenant": "globex"})
    assert (rule["quota"], rule["hard"]) == ("budget_month", "25.5")
    # when the month's spending reaches it
    await admin.projects.spend_limit.update(project, threshold_amount=0, currency="USD", interval="month")
    assert (await admin.projects.spend_limit.retrieve(project)).enforcement.status == "enforcing"
    assert (await admin.projects.spend_limit.delete(project)).deleted is True
    with pytest.raises(openai.PermissionDeniedError):
        await admin.spend_limit.update(threshold_amount=1, currency="USD", interval="month")


async def test_audit_log_is_filtered_paged_and_shaped_as_openais(admin: Any, office: Office) -> None:
    project = await admin.projects.create(name="Audited")
    await admin.projects.update(project.id, name="Audited twice")
    created = [e async for e in admin.audit_logs.list(event_types=["project.created"], project_ids=[project.id])]
    [event] = created
    assert (event.type, event.project.id, event.project.name) == ("project.created", project.id, "Audited twice")
    assert event.project_created.id == project.id
    assert (event.actor.type, event.actor.api_key.id) == ("api_key", office.acme.key_ids["admin"])
    [changed] = [e async for e in admin.audit_logs.list(event_types=["project.updated"])]
    assert changed.project_updated.changes_requested.to_dict() == {"name": "Audited twice"}
    walked = [e.id async for e in admin.audit_logs.list(limit=1)]
    assert len(walked) == len(set(walked)) >= 5
    assert walked == sorted(walked, reverse=True)
    soon = int(datetime.now(UTC).timestamp()) + 60
    assert [e async for e in admin.audit_logs.list(effective_at={"gte": soon})] == []
    assert [e.id async for e in admin.audit_logs.list(effective_at={"lt": soon})] == walked
    assert [e async for e in admin.audit_logs.list(actor_emails=["x@example.com"])] == []


async def _book_three_days(office: Office) -> None:
    """One row a day at noon; a batch and an embedding on the last."""
    key = office.acme.keys["member"]
    for day in range(3):
        moment = DAY + timedelta(days=day, hours=12)
        await book(office.gateway, key, request_id=f"req_{day}", accepted_at=moment, model="m" if day else "n")
    last = DAY + timedelta(days=2, hours=12)
    batch = TokenCounts.of(prompt_tokens=10, completion_tokens=20, batch=True)
    await book(office.gateway, key, request_id="req_batch", accepted_at=last, tokens=batch)
    vectors = TokenCounts.of(prompt_tokens=7)
    await book(
        office.gateway, key, request_id="req_e", accepted_at=last, tokens=vectors, endpoint="embeddings", model="e"
    )


async def test_completions_usage_is_bucketed_by_day_and_paged(admin: Any, office: Office) -> None:
    await _book_three_days(office)
    end = START + 4 * 86_400
    page = await admin.usage.completions(start_time=START, end_time=end, limit=3)
    assert [bucket.start_time for bucket in page.data] == [START, START + 86_400, START + 2 * 86_400]
    assert page.has_more is True
    first = page.data[0].results[0]
    assert (first.object, first.input_tokens, first.input_cached_tokens) == (
        "organization.usage.completions.result",
        1000,
        900,
    )
    assert (first.output_tokens, first.num_model_requests) == (100, 1)
    assert (first.project_id, first.api_key_id, first.model, first.batch) == (None, None, None, None)
    third = page.data[2].results[0]
    assert (third.input_tokens, third.output_tokens, third.num_model_requests) == (1010, 120, 2)  # no embedding
    rest = await admin.usage.completions(start_time=START, end_time=end, limit=3, page=page.next_page)
    assert ([bucket.results for bucket in rest.data], rest.has_more, rest.next_page) == ([[]], False, None)


async def test_usage_is_grouped_and_filtered_by_every_dimension(admin: Any, office: Office) -> None:
    await _book_three_days(office)
    window = {"start_time": START, "end_time": START + 3 * 86_400, "limit": 31}

    async def results(**query: Any) -> list[Any]:
        page = await admin.usage.completions(**window, **query)
        return [result for bucket in page.data for result in bucket.results]

    grouped = await results(group_by=["model", "project_id", "api_key_id", "batch", "service_tier"])
    assert {(r.model, r.project_id, r.api_key_id, r.batch, r.service_tier, r.input_tokens) for r in grouped} == {
        ("n", office.acme.project, office.acme.key_ids["member"], False, "default", 1000),
        ("m", office.acme.project, office.acme.key_ids["member"], False, "default", 1000),
        ("m", office.acme.project, office.acme.key_ids["member"], True, "default", 10),
    }
    assert [r.input_tokens for r in await results(models=["n"])] == [1000]
    assert [r.input_tokens for r in await results(batch=True)] == [10]
    assert await results(api_key_ids=["key_of_nobody"]) == []
    assert await results(user_ids=["user_1"]) == []
    page = await admin.usage.embeddings(**window, group_by=["model"])
    [vectors] = [result for bucket in page.data for result in bucket.results]
    assert (vectors.object, vectors.input_tokens, vectors.model) == ("organization.usage.embeddings.result", 7, "e")


async def test_hours_and_minutes_are_buckets_too(admin: Any, office: Office) -> None:
    moment = DAY + timedelta(hours=9, minutes=41, seconds=59)
    await book(office.gateway, office.acme.keys["member"], request_id="req_m", accepted_at=moment)
    for width, size in (("1h", 3600), ("1m", 60)):
        start = int(moment.timestamp()) // size * size
        page = await admin.usage.completions(start_time=start, end_time=start + 2 * size, bucket_width=width)
        assert [(b.start_time, b.end_time, len(b.results)) for b in page.data] == [
            (start, start + size, 1),
            (start + size, start + 2 * size, 0),
        ]


async def test_group_by_is_read_bare_bracketed_and_repeated(office: Office) -> None:
    await _book_three_days(office)
    for spelling in (
        "group_by=model&group_by=project_id",
        "group_by[]=model&group_by[]=project_id",
        "group_by[0]=model",
    ):
        path = f"/v1/organization/usage/completions?start_time={START}&{spelling}"
        page = await office.ok("GET", path, office.acme.keys["admin"])
        assert page["data"][0]["results"][0]["model"] == "n"


async def test_costs_carry_every_digit_and_line_items_add_up_to_them(admin: Any, office: Office) -> None:
    await _book_three_days(office)
    response = await office.call("GET", f"/v1/organization/costs?start_time={START}&limit=3", office.acme.keys["admin"])
    # a JSON number, not a float that went through one: 27,750 nano-USD
    assert '"amount":{"value":0.00002775,"currency":"usd"}' in response.text
    whole = await admin.usage.costs(start_time=START, end_time=START + 3 * 86_400)
    lines = await admin.usage.costs(start_time=START, end_time=START + 3 * 86_400, group_by=["line_item"])
    for day, itemised in zip(whole.data, lines.data, strict=True):
        total = round(day.results[0].amount.value * 1e9)
        assert sum(round(line.amount.value * 1e9) for line in itemised.results) == total
    items = {line.line_item: line for line in lines.data[0].results}
    assert set(items) == {"n, input", "n, cached input", "n, output"}
    assert (items["n, cached input"].quantity, items["n, cached input"].quantity_unit) == (900, "tokens")
    assert whole.data[0].results[0].line_item is None


async def test_thousand_charges_of_a_millionth_of_a_dollar_cost_a_thousandth(office: Office) -> None:
    key = office.acme.keys["member"]
    rates = msgspec.structs.replace(RATES, output=1_000_000_000)
    entry = await book(office.gateway, key, accepted_at=DAY, tokens=TokenCounts(output=1), rates=rates, request_id="r")
    more = [msgspec.structs.replace(entry, request_id=f"r{n}") for n in range(999)]
    await office.gateway.parts.billing.ledger.write(more)
    response = await office.call("GET", f"/v1/organization/costs?start_time={START}&limit=1", office.acme.keys["admin"])
    assert json.loads(response.text, parse_float=str)["data"][0]["results"][0]["amount"]["value"] == "0.001"


async def test_member_sees_his_projects_usage_and_nothing_to_administer(office: Office) -> None:
    await _book_three_days(office)
    other = await office.ok("POST", "/v1/organization/projects", office.acme.keys["admin"], {"name": "Other"})
    made = await office.ok(
        "POST", "/admin/v1/keys", body={"project": other["id"], "scopes": ["usage:read", "inference"]}
    )
    async with client_of(office, made["key"]) as client:
        page = await client.admin.organization.usage.completions(start_time=START)
        assert [bucket.results for bucket in page.data] == [[]] * len(page.data)
        with pytest.raises(openai.PermissionDeniedError):
            await client.admin.organization.projects.list()


async def test_operator_names_the_organization_and_an_admin_only_his_own(office: Office) -> None:
    def seen_by(company: Company, key: str) -> openai.AsyncOpenAI:
        return client_of(office, key, organization=company.slug)

    async with seen_by(office.rival, office.operator) as client:
        projects = [project.id async for project in client.admin.organization.projects.list()]
        assert projects == [office.rival.project]
    async with seen_by(office.rival, office.acme.keys["admin"]) as client:
        with pytest.raises(openai.NotFoundError):
            await client.admin.organization.projects.list()
    async with seen_by(office.acme, office.acme.keys["admin"]) as client:
        assert (await client.admin.organization.projects.retrieve(office.acme.project)).id == office.acme.project
        with pytest.raises(openai.NotFoundError):
            await client.admin.organization.projects.retrieve(office.rival.project)


async def test_bad_usage_query_is_400_and_named(office: Office) -> None:
    for query, param in (
        ("", "start_time"),
        ("start_time=x", "start_time"),
        ("start_time=1&bucket_width=2d", "bucket_width"),
        ("start_time=1&group_by=planet", "group_by"),
        ("start_time=1&limit=32", "limit"),
        ("start_time=1&limit=0", "limit"),
        ("start_time=1&page=abc", "page"),
        ("start_time=9&end_time=9", "end_time"),
        ("start_time=1&colour=red", "colour"),
    ):
        path = f"/v1/organization/usage/completions?{query}"
        assert (await office.refused(400, "GET", path, office.acme.keys["admin"]))["param"] == param


async def test_what_openai_sells_and_weir_does_not_is_an_empty_page(admin: Any, office: Office) -> None:
    page = await admin.usage.images(start_time=START, end_time=START + 86_400)
    assert [bucket.results for bucket in page.data] == [[]]
    await office.refused(404, "GET", f"/v1/organization/usage/dreams?start_time={START}", office.acme.keys["admin"])
