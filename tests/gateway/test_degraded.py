"""While Redis is away: limits by the stated policy, budgets closed, caches miss; and all as before when it is back."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.billing.support import ValkeyProcess
from tests.gateway.conftest import Gateway, StartGateway


@pytest.fixture
def own_valkey() -> Iterator[ValkeyProcess]:
    """One that the test may freeze."""
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        server = ValkeyProcess(Path(folder))
        server.start()
        yield server
        server.kill()


async def given_up(gateway: Gateway) -> Counter[str]:
    """Waits for Redis that ended at their deadline, by the smallest bucket that has them."""
    text = (await gateway.client.get("/metrics")).text
    pattern = r'gateway_redis_given_up_seconds_bucket\{by="deadline",le="([^"]+)"\} (\S+)'
    found: Counter[str] = Counter()
    below = 0
    for bound, count in re.findall(pattern, text):
        found[bound], below = int(float(count)) - below, int(float(count))
    return found


async def test_a_frozen_redis_costs_one_deadline_and_local_limits_hold(
    start_gateway: StartGateway, own_valkey: ValkeyProcess
) -> None:
    gateway = await start_gateway(redis_url=f"unix://{own_valkey.socket}", redis_deadline_ms=100, replicas=2)
    await gateway.set_limit(gateway.tenant, "rpm", 8)
    await gateway.chat("warm")
    await gateway.parts.background.drain(60)
    before = await given_up(gateway)
    own_valkey.freeze()
    try:
        first = await gateway.chat("warm")
        waits = (await given_up(gateway)) - before
        rest = [await gateway.chat(f"question {number}") for number in range(6)]
    finally:
        own_valkey.thaw()

    assert first.status_code == 200
    assert first.headers["x-weir-limits"] == "degraded"
    assert not first.headers["x-weir-cache"].startswith(("hit", "semantic"))
    assert waits["0.1"] == 1  # all its trips share one wait of 100 ms
    # This process's share of 8 a minute is 4, and it has counted all along: one was before, one is `first`.
    assert [answer.status_code for answer in rest].count(200) == 2
    assert all("retry-after" in answer.headers for answer in rest if answer.status_code == 429)


async def test_a_hard_budget_fails_closed_and_opens_again(
    start_gateway: StartGateway, own_valkey: ValkeyProcess
) -> None:
    gateway = await start_gateway(redis_url=f"unix://{own_valkey.socket}", redis_deadline_ms=100)
    await gateway.set_limit(gateway.tenant, "budget_month", 10**12)
    await gateway.chat("warm")
    await gateway.parts.background.drain(60)
    own_valkey.freeze()
    try:
        refused = await gateway.chat("while away")
    finally:
        own_valkey.thaw()

    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["type"] == "service_unavailable"
    async with asyncio.timeout(60):
        while (await gateway.chat("back")).status_code != 200:  # noqa: ASYNC110 - asking is how it is found out
            await asyncio.sleep(0.1)
    rows = await gateway.ledger()
    assert all(row.amount_nano_usd >= 0 for row in rows)
    assert gateway.parts.billing.admission.num_live == 0
