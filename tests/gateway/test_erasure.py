"""Erasing reaches responses, cached answers, files and batches of one tenant or end user, and nothing else."""

from __future__ import annotations

from redis.asyncio import Redis

from cache.invalidation import Invalidator
from cache.store import RedisStore
from gateway.erasure import Erased, erase
from tests.gateway.batches.test_batches import create, line
from tests.gateway.batches.test_batches import until as batch_until
from tests.gateway.conftest import Gateway, Tenant
from tests.gateway.files.test_files import get, upload
from tests.gateway.responses.test_responses import respond


async def erased(gateway: Gateway, tenant: Tenant, redis_url: str, end_user: str | None = None) -> Erased:
    await gateway.parts.background.drain(60)  # answers are stored behind the reply
    redis = Redis.from_url(redis_url)
    try:
        return await erase(gateway.parts.billing.db, Invalidator(RedisStore(redis)), tenant.id, end_user=end_user)
    finally:
        await redis.aclose()


async def test_a_tenant_leaves_nothing_but_its_rows_in_the_books(gateway: Gateway, redis_url: str) -> None:
    other = await gateway.add_tenant("other")
    kept = (await upload(gateway, tenant=other)).json()["id"]
    await respond(gateway, "mine")
    await respond(gateway, "theirs", tenant=other)
    await gateway.chat("remember this", temperature=0)
    batch = (await create(gateway, [line("a")])).json()
    await batch_until(gateway, batch["id"], "completed")

    counts = await erased(gateway, gateway.tenant, redis_url)

    assert (counts.responses, counts.batches, counts.files) == (1, 1, 2)  # the input and the output file
    assert counts.cached_answers >= 1
    assert (await get(gateway, "")).json()["data"] == []
    assert (await get(gateway, f"/{kept}", other)).status_code == 200
    assert len(await gateway.ledger()) == 4
    again = await erased(gateway, gateway.tenant, redis_url)
    assert again == Erased(responses=0, cached_answers=0)
    assert (await erased(gateway, other, redis_url)).responses == 1


async def test_an_end_users_responses_go_and_the_tenants_files_stay(gateway: Gateway, redis_url: str) -> None:
    await respond(gateway, "one", safety_identifier="u1")
    await respond(gateway, "two", safety_identifier="u2")
    file = (await upload(gateway)).json()["id"]

    counts = await erased(gateway, gateway.tenant, redis_url, end_user="u1")

    assert (counts.responses, counts.files) == (1, 0)
    assert (await get(gateway, f"/{file}")).status_code == 200
