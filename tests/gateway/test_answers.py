"""What the cache says of a request: the `x-weir-cache` header, whole rows of hits, what is stored for later."""

from __future__ import annotations

import re

import pytest

from cache.outcome import Outcome, Reason
from gateway.answers import Found
from tests.gateway.conftest import Gateway


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
    await gateway.parts.background.drain(5)

    again = await gateway.chat("Could you please tell me what the capital of France is?")

    header = again.headers["x-weir-cache"]
    assert re.fullmatch(r"semantic; similarity=(0\.9[5-9]\d|1\.000); age=\d+", header), header


async def test_a_refused_neighbour_shows_its_similarity_and_the_guard(gateway: Gateway) -> None:
    await gateway.chat("How do I fly from London to Paris?")
    await gateway.parts.background.drain(5)

    other_way = await gateway.chat("How do I fly from Paris to London?")

    assert re.fullmatch(r"miss; reason=guard; similarity=[01]\.\d{3}", other_way.headers["x-weir-cache"])
    assert len(gateway.engine.requests) == 2
