"""What an answer served again costs: the tenant's policy says, the budget is asked first, the books add up."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from typing import Any

import httpx
import pytest

from billing import prices, tenants
from billing.errors import LedgerUnavailable
from billing.principal import Actor
from billing.reports.registry import REPORTS
from billing.reports.report import ReportQuery
from billing.tables import EntryStatus, LedgerEntry
from tests.gateway.conftest import OPERATOR, Gateway, StartGateway, frames, until
from tests.gateway.fakes import Script, ScriptedEngine
from tests.gateway.raw_asgi import RawExchange
from tests.gateway.test_flights import key_beside_one_with_budget, watching

QUESTION = "What is the capital of France?"
REWORDED = "Could you please tell me what the capital of France is?"
# Odd on purpose: hardly a product of theirs is a whole nano-USD.
ODD_INPUT, ODD_OUTPUT = 37_513_333, 151_777_777
SHARES = {"free": Fraction(0), "12.5%": Fraction(1, 8), "33.3333%": Fraction(333_333, 1_000_000), "full": Fraction(1)}


async def price_hits(gateway: Gateway, hit_price: str) -> None:
    """The tenant's policy says what a hit costs, and its tokens have odd prices."""
    async with gateway.parts.billing.db.begin() as session:
        await tenants.update_tenant(session, OPERATOR, gateway.tenant.id, cache_policy={"hit_price": hit_price})
        await prices.set_price(
            session, OPERATOR, model="m", tenant=gateway.tenant.id, input_nano=ODD_INPUT, output_nano=ODD_OUTPUT
        )


def cost(row: LedgerEntry, share: Fraction = Fraction(1)) -> int:
    """What a hit's tokens cost at a share, by exact fractions: each class to the nearest nano-USD, ties to even."""
    per_token = Fraction(1, 1_000_000) * share
    return round(row.saved_input_tokens * ODD_INPUT * per_token) + round(
        row.saved_output_tokens * ODD_OUTPUT * per_token
    )


async def spent(gateway: Gateway, quota: str = "budget_month") -> tuple[int, int]:
    """(used, held) of the tenant's one budget of that kind, in Redis."""
    redis = gateway.parts.billing.redis
    (key,) = [key async for key in redis.scan_iter(match=f"*:b:{quota}:*")]
    used, held = await redis.hmget(key, ["used", "held"])
    return int(used), int(held)


async def assert_books_agree(gateway: Gateway) -> None:
    await gateway.parts.background.drain(60)
    async with asyncio.timeout(60):  # rows that went to the journal, as a commit was slow, are on their way to SQL
        while True:
            await gateway.parts.billing.ledger.replay()
            found = await gateway.parts.billing.reconciler.check()
            if found.clean and not found.open_holds:
                return


async def rows_by_kind(gateway: Gateway) -> dict[str, LedgerEntry]:
    """The paid row and the hit's, whichever came to SQL first."""
    rows = await gateway.ledger()
    by_kind = {str(row.kind): row for row in rows}
    assert len(by_kind) == len(rows)
    return by_kind


async def ask(gateway: Gateway, content: str, **fields: Any) -> httpx.Response:
    answer = await gateway.chat(content, max_tokens=8, **fields)
    await gateway.parts.background.drain(60)
    return answer


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("question", "outcome"), [(QUESTION, "exact"), (REWORDED, "semantic")])
@pytest.mark.parametrize("hit_price", list(SHARES))
async def test_a_hit_is_charged_its_policys_share_to_the_nano_dollar(
    gateway: Gateway, hit_price: str, question: str, outcome: str, stream: bool
) -> None:
    # given an answer that was paid for, a policy and a budget
    await price_hits(gateway, hit_price)
    await gateway.set_limit(gateway.tenant, "budget_month", 10**12)
    await ask(gateway, QUESTION)
    # when it is served again
    again = await ask(gateway, question, stream=stream)
    # then its row has no tokens computed, the share charged and the rest saved
    assert again.status_code == 200, again.text
    rows = await rows_by_kind(gateway)
    paid, hit = rows["usage"], rows["cache_hit"]
    assert (hit.cache_outcome, hit.status) == (outcome, EntryStatus.OK)
    assert (hit.input_tokens, hit.output_tokens, hit.engine_us, hit.cost_nano_usd) == (0, 0, 0, 0)
    assert (hit.saved_input_tokens, hit.saved_output_tokens) == (paid.input_tokens, paid.output_tokens)
    assert hit.amount_nano_usd == cost(hit, SHARES[hit_price])
    assert hit.saved_nano_usd == cost(hit) - cost(hit, SHARES[hit_price])
    assert paid.amount_nano_usd == cost(hit)
    # and the budget's counter is the ledger's sum
    assert await spent(gateway) == (paid.amount_nano_usd + hit.amount_nano_usd, 0)
    await assert_books_agree(gateway)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_budget_of_exactly_one_hit_pays_one_and_refuses_the_next(gateway: Gateway, stream: bool) -> None:
    # given a stored answer, and a budget with room for its price at a third and not a nano-USD more
    await price_hits(gateway, "33.3333%")
    await ask(gateway, QUESTION)
    [paid] = await gateway.ledger()
    tokens = LedgerEntry(saved_input_tokens=paid.input_tokens, saved_output_tokens=paid.output_tokens)
    price = cost(tokens, SHARES["33.3333%"])
    await gateway.set_limit(gateway.tenant, "budget_month", paid.amount_nano_usd + price)
    await gateway.set_limit(gateway.tenant, "rpm", 10)
    # when it is asked for twice more
    served = await ask(gateway, QUESTION, stream=stream)
    refused = await ask(gateway, QUESTION, stream=stream)
    after = await gateway.chat("Something else?", max_tokens=1)
    # then the first is served, the second is refused as out of quota
    assert served.headers["x-weir-cache"].startswith("hit")
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == refused.json()["error"]["type"] == "insufficient_quota"
    # and has used nothing up: no row, no money, no request of the minute, no generation
    assert set(await rows_by_kind(gateway)) == {"usage", "cache_hit"}
    assert await spent(gateway) == (paid.amount_nano_usd + price, 0)
    assert (after.status_code, len(gateway.engine.requests)) == (429, 1)
    assert served.headers["x-ratelimit-remaining-requests"] == "9"
    assert after.headers["x-ratelimit-remaining-requests"] == "8"
    await assert_books_agree(gateway)


async def test_a_free_hit_is_served_from_a_budget_that_is_used_up(gateway: Gateway) -> None:
    await ask(gateway, QUESTION)
    await gateway.set_limit(gateway.tenant, "budget_month", 1)
    assert (await ask(gateway, "Something else?")).status_code == 429
    assert (await ask(gateway, QUESTION)).status_code == 200
    await assert_books_agree(gateway)


async def test_a_hundred_hits_at_once_never_pass_a_budget(gateway: Gateway) -> None:
    # given room for seven hits
    await price_hits(gateway, "full")
    await ask(gateway, QUESTION)
    [paid] = await gateway.ledger()
    await gateway.set_limit(gateway.tenant, "budget_month", paid.amount_nano_usd * 8)
    # when forty are asked for at once
    answers = await asyncio.gather(*(gateway.chat(QUESTION, max_tokens=8) for _ in range(40)))
    # then seven are served
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [429] * 33
    await assert_books_agree(gateway)
    assert await spent(gateway) == (paid.amount_nano_usd * 8, 0)


async def test_priced_hits_count_as_requests_and_not_as_tokens(gateway: Gateway) -> None:
    await price_hits(gateway, "full")
    await ask(gateway, QUESTION)
    await gateway.set_limit(gateway.tenant, "tpm", 1)
    await gateway.set_limit(gateway.tenant, "rpm", 3)
    answers = [await ask(gateway, QUESTION) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[3].headers["x-weir-limit"] == "tenant:rpm"
    assert "x-ratelimit-limit-tokens" not in answers[0].headers


async def test_a_hit_at_a_price_that_nobody_set_is_refused_and_a_free_one_is_not(gateway: Gateway) -> None:
    await ask(gateway, QUESTION)
    async with gateway.parts.billing.db.begin() as session:
        for price in await prices.list_prices(session, OPERATOR, model="m"):
            await prices.end_price(session, OPERATOR, price.id)
    free = await ask(gateway, QUESTION)
    async with gateway.parts.billing.db.begin() as session:
        await tenants.update_tenant(session, OPERATOR, gateway.tenant.id, cache_policy={"hit_price": "1%"})
    priced = await ask(gateway, QUESTION)
    assert free.status_code == 200
    assert (priced.status_code, priced.json()["error"]["code"]) == (503, "unknown_price")
    assert set(await rows_by_kind(gateway)) == {"usage", "cache_hit"}


@pytest.mark.parametrize("stored", [{"hit_price": "full", "nonsense": 1}, {"hit_price": 7}], ids=["kept", "unreadable"])
async def test_a_policy_that_cannot_be_read_gives_no_answer_away(gateway: Gateway, stored: dict[str, Any]) -> None:
    # given a policy of another version: its price can be read, or not
    await ask(gateway, QUESTION)
    async with gateway.parts.billing.db.begin() as session:
        await tenants.update_tenant(session, OPERATOR, gateway.tenant.id, cache_policy=stored)
    # then a hit costs what it says, or the answer is generated again
    await ask(gateway, QUESTION)
    rows = await gateway.ledger()
    kinds = ["cache_hit", "usage"] if stored["hit_price"] == "full" else ["usage", "usage"]
    assert sorted(row.kind for row in rows) == kinds
    assert rows[0].amount_nano_usd == rows[1].amount_nano_usd > 0


async def test_savings_are_the_full_price_less_what_hits_were_charged(gateway: Gateway) -> None:
    await price_hits(gateway, "25%")
    for question in (QUESTION, QUESTION, REWORDED):
        await ask(gateway, question)
    rows = await gateway.ledger()
    async with gateway.parts.billing.db.read() as session:
        table = await REPORTS["cache_savings"].run(session, Actor.operator(), ReportQuery(by=("model",)))
    hits = [row for row in rows if row.kind == "cache_hit"]
    assert table.total is not None
    assert (table.total["exact_hits"], table.total["semantic_hits"]) == (1, 1)
    assert table.total["charged_nano_usd"] == sum(row.amount_nano_usd for row in hits) > 0
    assert table.total["full_nano_usd"] == sum(cost(row) for row in hits)
    assert table.total["saved_nano_usd"] == table.total["full_nano_usd"] - table.total["charged_nano_usd"]
    assert table.total["spent_nano_usd"] == sum(row.amount_nano_usd for row in rows)


async def test_a_row_that_cannot_be_written_gives_the_price_back(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a stored answer and books that neither SQL nor the journal takes
    await price_hits(gateway, "full")
    await gateway.set_limit(gateway.tenant, "budget_month", 10**12)
    await ask(gateway, QUESTION)
    before = await spent(gateway)

    async def refuse(_entry: object) -> None:
        raise LedgerUnavailable("the answer cannot be booked at the moment; try again")

    with monkeypatch.context() as patched:
        patched.setattr(gateway.parts.billing.ledger, "book", refuse)
        # when it is served again, another is generated, or a text is embedded
        answers = [await ask(gateway, QUESTION), await ask(gateway, "Something else?")]
        answers.append(await gateway.post("/v1/embeddings", {"model": "all-MiniLM-L6-v2", "input": "a weir"}))
        await gateway.parts.background.drain(60)
    # then none is, and nothing stays held
    assert [answer.status_code for answer in answers] == [503, 503, 503]
    assert await spent(gateway) == before
    assert gateway.parts.billing.admission.num_live == 0
    await assert_books_agree(gateway)


# -- followers of another's generation


@pytest.fixture
async def gated(start_gateway: StartGateway) -> Gateway:
    """Generations of 300 tokens that wait before their third."""
    engine = ScriptedEngine(Script(steps=("x",) * 300, gate_at=2))
    engine.gate.clear()
    return await start_gateway(engine)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("hit_price", list(SHARES))
async def test_a_follower_is_charged_as_a_hit_of_the_whole_answer(gated: Gateway, hit_price: str, stream: bool) -> None:
    # given a generation that runs, under a budget
    await price_hits(gated, hit_price)
    await gated.set_limit(gated.tenant, "budget_month", 10**12)
    await gated.set_limit(gated.tenant, "tpm", 10_000)
    first = asyncio.create_task(gated.chat(QUESTION, max_tokens=400))
    await asyncio.wait_for(gated.engine.stepped.wait(), 60)
    # when the same is asked meanwhile
    second = asyncio.create_task(gated.chat(QUESTION, max_tokens=400, stream=stream))
    await until(lambda: watching(gated) == 2)
    gated.engine.gate.set()
    answers = await asyncio.wait_for(asyncio.gather(first, second), 60)
    # then one generation is paid in full, and the other is charged as a hit
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[1].headers["x-weir-cache"] == "hit; reason=flight"
    rows = await rows_by_kind(gated)
    hit, paid = rows["cache_hit"], rows["usage"]
    assert (hit.cache_outcome, hit.saved_output_tokens) == ("single_flight", paid.output_tokens)
    assert hit.amount_nano_usd == cost(hit, SHARES[hit_price])
    assert hit.saved_nano_usd == cost(hit) - hit.amount_nano_usd
    await assert_books_agree(gated)
    assert await spent(gated) == (paid.amount_nano_usd + hit.amount_nano_usd, 0)


async def test_a_followers_own_budget_ends_its_stream_and_no_other(gated: Gateway) -> None:
    # given a generation that one with money pays, and a follower whose budget has room for a part of it at half price
    await price_hits(gated, "50%")
    rich = await key_beside_one_with_budget(gated, 21_000)  # the first slice of 256 tokens, and some more
    body = {"model": "m", "prompt": "p", "max_tokens": 400}
    paying = asyncio.create_task(gated.post("/v1/completions", body, rich))
    await asyncio.wait_for(gated.engine.stepped.wait(), 60)
    following = asyncio.create_task(gated.post("/v1/completions", {**body, "stream": True}))
    await until(lambda: watching(gated) == 2)
    gated.engine.gate.set()
    paid, cut = await asyncio.wait_for(asyncio.gather(paying, following), 60)
    # then the one has its whole answer, the other's ends at the last token it could pay
    assert paid.json()["choices"][0]["text"] == "x" * 300
    chunks = frames(cut)
    assert (chunks[-1]["choices"][0]["finish_reason"], chunks[-1]["weir"]) == ("length", {"truncated_reason": "budget"})
    shown = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    row = next(row for row in await gated.ledger() if row.kind == "cache_hit")
    assert (row.status, row.saved_output_tokens) == (EntryStatus.BUDGET_CUT, len(shown))
    assert row.amount_nano_usd == cost(row, Fraction(1, 2)) <= 21_000
    assert (
        cost(row, Fraction(1, 2)) + ODD_OUTPUT / 2_000_000 > 21_000 - 20
    )  # not a token too few, but for what holds round up
    await assert_books_agree(gated)


async def test_a_follower_without_money_is_refused_before_its_first_token(gated: Gateway) -> None:
    await price_hits(gated, "50%")
    rich = await key_beside_one_with_budget(gated, 1)
    body = {"model": "m", "prompt": "p", "max_tokens": 400}
    paying = asyncio.create_task(gated.post("/v1/completions", body, rich))
    await asyncio.wait_for(gated.engine.stepped.wait(), 60)
    refused = await asyncio.wait_for(gated.post("/v1/completions", {**body, "stream": True}), 60)
    gated.engine.gate.set()
    await asyncio.wait_for(paying, 60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
    assert [row.kind for row in await gated.ledger()] == ["usage"]
    await assert_books_agree(gated)


async def test_a_follower_that_leaves_is_charged_what_it_was_shown(gated: Gateway) -> None:
    await price_hits(gated, "full")
    await gated.set_limit(gated.tenant, "budget_month", 10**12)
    body = {"model": "m", "stream": True, "prompt": "p", "max_tokens": 400}
    async with (
        RawExchange(gated, "POST", "/v1/completions", body) as leader,
        RawExchange(gated, "POST", "/v1/completions", body) as follower,
    ):
        await leader.start()
        await follower.start()
        while b'"x"' not in await follower.chunk():
            pass
        # when the follower leaves while the generation waits
        follower.leave()
        await follower.finished()
        gated.engine.gate.set()
        rest = b""
        while b"[DONE]" not in rest:
            rest += await leader.chunk()
    rows = await rows_by_kind(gated)
    assert rows["cache_hit"].status is EntryStatus.CLIENT_DISCONNECT
    assert 1 <= rows["cache_hit"].saved_output_tokens <= 2
    assert rows["cache_hit"].amount_nano_usd == cost(rows["cache_hit"]) > 0
    await assert_books_agree(gated)
