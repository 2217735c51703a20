"""A day of simulated traffic through the whole gateway: what its answers say was saved is what the books say."""

from __future__ import annotations

from argparse import Namespace

import pytest

from benchmarks.cache_traffic import INPUT_PRICE, OUTPUT_PRICE, Answer, Saved, Table, answer_of, booked, day, play
from billing import prices, tenants
from billing.principal import Actor
from billing.reports.registry import REPORTS
from billing.reports.report import ReportQuery
from tests.gateway.conftest import OPERATOR, StartGateway


@pytest.mark.parametrize("hit_price", ["free", "12.5%"])
async def test_tokens_and_money_saved_by_a_day_of_traffic_equal_the_ledgers(
    start_gateway: StartGateway, hit_price: str
) -> None:
    # given a short day, and a gateway whose answers come from a table
    asked = list(day(Namespace(requests=200, seed=1, zipf=1.5, unique=0.1, live=0.1, verbatim=0.5)))
    gateway = await start_gateway(upstreams=(Table(asked, model="day"),))
    billing = gateway.parts.billing
    async with billing.db.begin() as session:
        await tenants.update_tenant(session, OPERATOR, gateway.tenant.id, cache_policy={"hit_price": hit_price})
        await prices.set_price(session, OPERATOR, model="day", input_nano=INPUT_PRICE, output_nano=OUTPUT_PRICE)

    async def ask(text: str) -> Answer:
        messages = [{"role": "system", "content": "Help."}, {"role": "user", "content": text}]
        response = await gateway.post("/v1/chat/completions", {"model": "day", "messages": messages})
        assert response.status_code == 200, response.text
        await gateway.parts.background.drain(60)
        return answer_of(response)

    # when it is played
    seen = await play(asked, ask)
    rows = await gateway.ledger()
    # then every outcome came up, and each request has its one row
    assert set(seen.outcomes) == {"hit", "semantic", "miss", "bypass"}
    assert len(rows) == len(asked)
    assert sum(row.kind == "cache_hit" for row in rows) == seen.outcomes["hit"] + seen.outcomes["semantic"]
    # and tokens and money saved are the same by the answers, the report and the rows
    async with billing.db.read() as session:
        total = (await REPORTS["cache_savings"].run(session, Actor.operator(), ReportQuery(by=("model",)))).total
    assert total is not None
    told = await booked(billing.db)
    assert (told.prompt_tokens, told.completion_tokens) == (seen.saved.prompt_tokens, seen.saved.completion_tokens)
    assert total["full_nano_usd"] == seen.saved.nano_usd > 0
    charged = sum(row.amount_nano_usd for row in rows if row.kind == "cache_hit")
    assert told.nano_usd == seen.saved.nano_usd - charged
    assert (charged == 0) == (hit_price == "free")
    assert told != Saved()
