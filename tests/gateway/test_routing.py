"""Ordering a route's targets, and the circuit breaker."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from gateway.breaker import CircuitBreaker
from gateway.calls import Call
from gateway.routing import Router, RouteSpec, RouteTable, TargetSpec, build_table
from gateway.upstreams.base import Progress, Upstream


class Named:
    """An upstream that is only ordered, never asked."""

    def __init__(self, name: str, model: str) -> None:
        self.name, self.model, self.revision = name, model, "r"

    async def generate(self, call: Call, attempt: int) -> AsyncIterator[Progress]:
        raise AssertionError("never asked")
        yield

    async def close(self) -> None: ...


UPSTREAMS: list[Upstream] = [Named("a", "cheap"), Named("b", "dear"), Named("c", "middle")]
PRICES = {"cheap": 1, "middle": 5, "dear": 9}


def target(label: str, weight: float = 1.0) -> TargetSpec:
    upstream, model = label.split("/")
    return TargetSpec(upstream=upstream, model=model, weight=weight)


def router(spec: RouteSpec) -> Router:
    return Router(build_table({"alias": spec}, UPSTREAMS, {}), random_=random.Random(7))


def labels(made: Router, **options: object) -> list[str]:
    route = made.table.get("alias")
    assert route is not None
    return [each.upstream.name for each in made.plan(route, cost=PRICES.get, **options)]  # type: ignore[arg-type]


def test_ordered_targets_stay_in_order() -> None:
    spec = RouteSpec(targets=(target("b/dear"), target("a/cheap")))

    assert labels(router(spec)) == ["b", "a"]


def test_weights_share_the_first_place_and_the_rest_are_fallbacks() -> None:
    made = router(
        RouteSpec(targets=(target("a/cheap", 9), target("b/dear", 1), target("c/middle", 0)), strategy="weighted")
    )

    orders = [labels(made) for _ in range(1000)]

    firsts = Counter(order[0] for order in orders)
    assert 850 < firsts["a"] < 950
    assert firsts["c"] == 0
    assert all(sorted(order) == ["a", "b", "c"] and order[-1] == "c" for order in orders)


def test_cheapest_first_by_price() -> None:
    spec = RouteSpec(targets=(target("b/dear"), target("c/middle"), target("a/cheap")), strategy="cheapest")

    assert labels(router(spec)) == ["a", "c", "b"]


def test_a_soft_limit_moves_an_ordered_route_to_the_cheaper() -> None:
    spec = RouteSpec(targets=(target("b/dear"), target("a/cheap")))

    assert labels(router(spec), prefer_cheaper=True) == ["a", "b"]


def test_a_canary_gets_its_share_and_the_route_behind_it() -> None:
    made = router(RouteSpec(targets=(target("a/cheap"),), canary=target("b/dear"), canary_share=0.1))

    orders = [labels(made) for _ in range(1000)]

    canaries = [order for order in orders if order == ["b", "a"]]
    assert 60 < len(canaries) < 140
    assert len(canaries) + orders.count(["a"]) == 1000


def test_every_model_is_a_route_of_its_own_until_a_spec_names_it() -> None:
    table = build_table({"cheap": RouteSpec(targets=(target("b/dear"),))}, UPSTREAMS, {})

    assert sorted(table.names) == ["cheap", "dear", "middle"]
    cheap = table.get("cheap")
    assert cheap is not None
    assert cheap.is_alias
    assert cheap.targets[0].upstream.model == "dear"


def test_a_target_that_nobody_serves_is_named() -> None:
    with pytest.raises(ValueError, match="no upstream 'a' serves the model 'dear'"):
        build_table({"x": RouteSpec(targets=(target("a/dear"),))}, UPSTREAMS, {})


def test_breakers_outlive_a_change_of_routes() -> None:
    breakers: dict[str, CircuitBreaker] = {}
    first = build_table({}, UPSTREAMS, breakers).get("cheap")
    second = build_table({}, UPSTREAMS, breakers).get("cheap")

    assert first is not None
    assert second is not None
    assert first.targets[0].breaker is second.targets[0].breaker


def test_an_empty_table_serves_nothing() -> None:
    assert RouteTable({}).names == []


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_breaker_opens_probes_once_and_closes_again() -> None:
    clock = Clock()
    breaker = CircuitBreaker(failures_to_open=2, open_s=5, clock=clock)
    breaker.failed()
    assert breaker.allows()
    breaker.failed()
    assert (breaker.state, breaker.allows()) == ("open", False)

    clock.now = 5
    assert breaker.state == "half_open"
    assert [breaker.allows(), breaker.allows()] == [True, False]
    breaker.succeeded()
    assert (breaker.state, breaker.allows()) == ("closed", True)


def test_a_failed_probe_doubles_the_wait() -> None:
    clock = Clock()
    breaker = CircuitBreaker(failures_to_open=1, open_s=5, clock=clock)
    breaker.failed()
    clock.now = 5
    assert breaker.allows()
    breaker.failed()

    assert breaker.retry_after_s == 10
    clock.now = 14.9
    assert not breaker.allows()
    clock.now = 15
    assert breaker.allows()


def test_an_abandoned_probe_frees_its_place() -> None:
    clock = Clock()
    breaker = CircuitBreaker(failures_to_open=1, open_s=5, clock=clock)
    breaker.failed()
    clock.now = 5
    assert breaker.allows()
    breaker.abandoned()
    assert breaker.allows()


def test_a_success_forgets_earlier_failures() -> None:
    breaker = CircuitBreaker(failures_to_open=2, clock=Clock())
    for _ in range(5):
        breaker.failed()
        breaker.succeeded()
    assert breaker.state == "closed"
