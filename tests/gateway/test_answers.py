"""What the cache says of a request: the `x-weir-cache` header, whole rows of hits, what is stored for later."""

from __future__ import annotations

import re

import pytest

from billing import config, tenants
from billing.principal import Actor
from billing.reports.registry import REPORTS
from billing.reports.report import ReportQuery
from cache.outcome import Outcome, Reason
from gateway.answers import Found
from tests.gateway.conftest import Gateway, frames


@pytest.mark.parametrize(
    ("found", "header"),
    [
        (Found(outcome=Outcome.HIT, age_s=12.9), "hit; age=12"),
        (Found(outcome=Outcome.HIT, reason=Reason.FLIGHT), "hit; reason=flight"),
        (Found(outcome=Outcome.SEMANTIC, similarity=0.9734, age_s=0.0), "semantic; similarity=0.973; age=0"),
        (
            Found(outcome=Outcome.MISS, reason=Reason.GUARD, similarity=0.9999),
            "miss; reason=guard; similarity=0.999",
        ),
        (Found(outcome=Outcome.BYPASS, reason=Reason.LIVE), "bypass; reason=live"),
    ],
)
def test_the_header_holds_outcome_reason_similarity_and_age(found: Found, header: str) -> None:
    assert found.header == header


async def test_a_semantic_hit_says_how_near_and_how_old_it_is(gateway: Gateway) -> None:
    await gateway.chat("What is the capital of France?")
    await gateway.parts.background.drain(60)

    again = await gateway.chat("Could you please tell me what the capital of France is?")

    header = again.headers["x-weir-cache"]
    assert re.fullmatch(r"semantic; similarity=(0\.9[5-9]\d|1\.000); age=\d+", header), header


async def test_a_refused_neighbour_shows_its_similarity_and_the_guard(gateway: Gateway) -> None:
    await gateway.chat("How do I fly from London to Paris?")
    await gateway.parts.background.drain(60)

    other_way = await gateway.chat("How do I fly from Paris to London?")

    assert re.fullmatch(r"miss; reason=guard; similarity=[01]\.\d{3}", other_way.headers["x-weir-cache"])
    assert len(gateway.engine.requests) == 2


async def test_an_answer_refreshed_by_no_cache_is_found_by_meaning_later(gateway: Gateway) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    refreshed = await gateway.post("/v1/chat/completions", body, cache_control="no-cache")
    await gateway.parts.background.drain(60)

    again = await gateway.chat("Could you please tell me what the capital of France is?")

    assert refreshed.headers["x-weir-cache"] == "bypass; reason=no-cache"
    assert again.headers["x-weir-cache"].startswith("semantic; similarity=")
    assert len(gateway.engine.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("question", ["What is the capital of France?", "Tell me: what is the capital of France?"])
async def test_a_hit_generates_nothing_and_keeps_its_own_attribution(
    gateway: Gateway, question: str, stream: bool
) -> None:
    # given an answer that somebody else of the tenant has paid for
    first = await gateway.chat("What is the capital of France?", user="eva")
    await gateway.parts.background.drain(60)
    # when it is asked for again, in the same words or in others, by another user in another conversation
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": question}],
        "user": "adam",
        "stream": stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    }
    again = await gateway.post("/v1/chat/completions", body, x_weir_conversation="c-7", x_weir_tags="team=web")
    # then the client reads the usage of the answer it got
    usage = frames(again)[-1]["usage"] if stream else again.json()["usage"]
    assert usage == first.json()["usage"]
    # and the row has no token and no money, with what was saved beside it
    paid, hit = await gateway.ledger()
    assert (paid.kind, hit.kind) == ("usage", "cache_hit")
    assert (hit.input_tokens, hit.cached_input_tokens, hit.output_tokens, hit.engine_us) == (0, 0, 0, 0)
    assert hit.amount_nano_usd == 0
    assert (hit.saved_input_tokens, hit.saved_output_tokens) == (paid.input_tokens, paid.output_tokens)
    assert hit.saved_nano_usd == paid.amount_nano_usd > 0
    # and it belongs to who asked, on streams too
    assert (hit.end_user, hit.conversation_id, hit.conversation_source) == ("adam", "c-7", "header")
    assert (hit.tags, hit.key_id, hit.project_id) == ({"team": "web"}, paid.key_id, paid.project_id)
    assert (hit.stream, hit.endpoint, hit.model) == (stream, "chat.completions", paid.model)


async def test_tokens_and_money_saved_by_the_report_equal_the_ledgers(gateway: Gateway) -> None:
    # given one of each: a miss, an exact hit plain and streamed, a paraphrase, a bypass
    for question in ("What is the capital of France?", "What does a weir hold back?"):
        for stream in (False, False, True):
            await gateway.chat(question, stream=stream)
            await gateway.parts.background.drain(60)
    await gateway.chat("Could you please tell me what the capital of France is?")
    await gateway.chat("What is the weather today?")
    rows = await gateway.ledger()
    # when the report is asked for
    async with gateway.parts.billing.db.read() as session:
        table = await REPORTS["cache_savings"].run(session, Actor.operator(), ReportQuery(by=("model",)))
    # then it says what the rows say
    assert table.total is not None
    hits = [row for row in rows if row.kind == "cache_hit"]
    for name in ("saved_input_tokens", "saved_output_tokens", "saved_nano_usd"):
        assert table.total[name] == sum(getattr(row, name) for row in hits) > 0
    assert (table.total["exact_hits"], table.total["semantic_hits"], table.total["requests"]) == (4, 1, 8)
    assert table.total["hit_ratio_ppm"] == 625_000
    assert table.total["spent_nano_usd"] == sum(row.amount_nano_usd for row in rows)


async def test_a_route_narrows_the_cache_for_its_name_alone(gateway: Gateway) -> None:
    # given a name whose route turns the cache off, beside the model's own
    body = {"targets": [{"upstream": "local", "model": "m"}], "cache": {"enabled": False}}
    async with gateway.parts.billing.db.begin() as session:
        await config.set_item(session, Actor.operator(), "route", "fresh", body)
    await gateway.parts.route_config.load()
    # when both are asked the same twice
    outcomes = {}
    for name in ("fresh", "m"):
        for _ in range(2):
            answer = await gateway.chat("What does a weir hold back?", model=name)
            await gateway.parts.background.drain(60)
            outcomes.setdefault(name, []).append(answer.headers["x-weir-cache"].partition("; age")[0])
    # then one is generated each time
    assert outcomes == {"fresh": ["bypass; reason=disabled"] * 2, "m": ["miss; reason=similarity", "hit"]}
    # and a tenant that has no cache gets none by a route
    async with gateway.parts.billing.db.begin() as session:
        await tenants.update_tenant(session, Actor.operator(), gateway.tenant.id, cache_policy={"enabled": False})
        await config.set_item(session, Actor.operator(), "route", "fresh", {**body, "cache": {"enabled": True}})
    await gateway.parts.route_config.load()
    assert (await gateway.chat("What?", model="fresh")).headers["x-weir-cache"] == "bypass; reason=disabled"
