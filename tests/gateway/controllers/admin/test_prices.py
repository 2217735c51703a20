"""/admin/v1/prices and /admin/v1/discounts: exact, versioned, never edited."""

from __future__ import annotations

from tests.gateway.controllers.admin.conftest import Office

PRICES = "/admin/v1/prices"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def test_price_of_a_fraction_of_a_cent_is_exact_and_classes_default_to_their_plain_one(office: Office) -> None:
    made = await office.ok("POST", PRICES, body={"model": "tiny", "input": "0.0375", "output": "0.15"})
    assert (made["input"], made["cached_input"], made["batch_input"]) == ("0.0375", "0.0375", "0.0375")
    assert (made["output"], made["batch_output"]) == ("0.15", "0.15")


async def test_override_is_seen_by_its_tenant_alone(office: Office) -> None:
    await office.ok("POST", PRICES, body={"model": "m", "input": "9", "output": "9", "tenant": "globex"})
    theirs = await office.ok("GET", PRICES, office.acme.keys["admin"], params={"model": "m"})
    others = await office.ok("GET", PRICES, office.rival.keys["admin"], params={"model": "m"})
    assert [price["input"] for price in theirs] == ["1", "9"]
    assert [price["input"] for price in others] == ["1"]


async def test_ended_price_refuses_the_model_instead_of_giving_it_away(office: Office) -> None:
    key = office.acme.keys["inference"]
    await office.ok("POST", "/v1/chat/completions", key, CHAT)
    [price] = await office.ok("GET", PRICES, params={"model": "m"})
    await office.ok("POST", f"{PRICES}/{price['id']}/end", body={})
    another = {**CHAT, "messages": [{"role": "user", "content": "not in the cache"}]}
    error = await office.refused(503, "POST", "/v1/chat/completions", key, another)
    assert error["code"] == "unknown_price"


async def test_discount_is_kept_to_the_digit_and_charged(office: Office) -> None:
    discount = await office.ok("POST", "/admin/v1/discounts", body={"tenant": "globex", "percent": "12.5"})
    assert (discount["percent"], discount["model"]) == ("12.5", None)
    assert await office.ok("GET", "/admin/v1/discounts", office.acme.keys["member"]) == [discount]
    assert await office.ok("GET", "/admin/v1/discounts", office.rival.keys["admin"]) == []
    await office.ok("POST", "/v1/chat/completions", office.acme.keys["inference"], CHAT)
    row = (await office.gateway.ledger())[-1]
    assert row.discount_ppm == 125_000
    # one dollar a million tokens less an eighth: 875 nano-USD a prompt token
    assert row.input_amount_nano == row.input_tokens * 875


async def test_floats_and_nonsense_of_money_are_400(office: Office) -> None:
    for value in (0.0375, "1e-3", "NaN", "-1", ""):
        error = await office.refused(400, "POST", PRICES, body={"model": "x", "input": value, "output": "1"})
        assert error["param"] == "input"
    error = await office.refused(400, "POST", "/admin/v1/discounts", body={"tenant": "globex", "percent": "101"})
    assert error["param"] == "percent"


async def test_price_of_a_gpu_hour_is_kept_and_books_cost_beside_price(office: Office) -> None:
    # given 3600 dollars an hour: a dollar a second, 1,000 nano-USD a microsecond
    await office.ok("POST", "/admin/v1/gpu-prices", body={"upstream": "local", "hour_usd": "3600"})
    [listed] = await office.ok("GET", "/admin/v1/gpu-prices")
    assert (listed["upstream"], listed["hour_usd"]) == ("local", "3600")
    await office.ok("POST", "/v1/chat/completions", office.acme.keys["inference"], CHAT)
    row = (await office.gateway.ledger())[-1]
    assert row.cost_nano_usd == row.engine_us * 1_000
