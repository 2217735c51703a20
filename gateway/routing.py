"""Which upstream serves a model name: aliases, weights, canary, cheaper-first, fallbacks, and who is healthy.

A route is what a name means: ordered targets with weights, and how to order them for one request. A name without a
route of its own that an upstream serves is a route with that one target. The table is replaced whole when an operator
changes it, so a request sees either the old or the new one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from billing.principal import Principal
from cache.policy import RouteCachePolicy
from gateway.breaker import CircuitBreaker
from gateway.errors import ModelNotFound, UpstreamUnavailable
from gateway.upstreams.base import Upstream


class TargetSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One place a route may send a request to. `weight` counts among targets of a weighted route."""

    upstream: str
    model: str
    weight: Annotated[float, Meta(ge=0, le=1_000_000)] = 1.0


class RouteSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator writes for a model name.

    `strategy` orders the targets of a request: `ordered` as listed; `weighted` by a draw, the others after it as
    fallbacks; `cheapest` by price. `canary` gets `canary_share` of the requests, the route's targets are its
    fallback. `retries` are further tries at the same target. `timeout_s` bounds one attempt's wait for its first token.
    `cache` narrows every tenant's cache policy for requests to this name. `default_max_tokens` is the output that a
    chat, response or message asks for that names none: it bounds the answer and is what tokens per minute take for it;
    without it that is all the context leaves.
    """

    targets: Annotated[tuple[TargetSpec, ...], Meta(min_length=1, max_length=32)]
    strategy: Literal["ordered", "weighted", "cheapest"] = "ordered"
    canary: TargetSpec | None = None
    canary_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    retries: Annotated[int, Meta(ge=0, le=5)] = 1
    timeout_s: Annotated[float, Meta(gt=0, le=3600)] | None = None
    cache: RouteCachePolicy | UnsetType | None = UNSET
    default_max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    description: str = ""


class Target(msgspec.Struct, frozen=True):
    """A resolved target with its upstream and that upstream's breaker."""

    upstream: Upstream
    weight: float
    breaker: CircuitBreaker

    @property
    def label(self) -> str:
        """`upstream/model`, for messages, the answer's `weir` field and the ledger."""
        return f"{self.upstream.name}/{self.upstream.model}"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """What a model name means now."""

    name: str
    targets: tuple[Target, ...]
    strategy: str = "ordered"
    canary: Target | None = None
    canary_share: float = 0.0
    retries: int = 1
    timeout_s: float | None = None
    cache: RouteCachePolicy | None = None
    default_max_tokens: int | None = None

    @property
    def is_alias(self) -> bool:
        """True when the name asked for is not the name of the model that answers."""
        return len(self.targets) > 1 or self.targets[0].upstream.model != self.name


Cost = Callable[[str], int | None]  # a model's price as one comparable number; None when it has none


class RouteTable:
    """All routes of this gateway at one moment."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = dict(routes)

    @property
    def names(self) -> list[str]:
        return list(self._routes)

    def __contains__(self, name: str) -> bool:
        return name in self._routes

    def get(self, name: str) -> Route | None:
        return self._routes.get(name)


class Router:
    """Resolves names and orders targets. `random_` and the breakers' clock are passed in by tests."""

    def __init__(self, table: RouteTable, *, random_: random.Random | None = None) -> None:
        self._table = table
        self._random = random_ or random.Random()  # noqa: S311 - load is spread, nothing is kept secret

    def replace(self, table: RouteTable) -> None:
        """The operator changed something: requests from now on see `table`."""
        self._table = table

    @property
    def table(self) -> RouteTable:
        return self._table

    def visible_names(self, principal: Principal) -> list[str]:
        """Model names this key may ask for."""
        return [name for name in self._table.names if principal.may_use(name)]

    def resolve(self, name: str, principal: Principal) -> Route:
        """Raises: ModelNotFound for an unknown name and for one the key may not use: the two read the same."""
        route = self._table.get(name)
        if route is None or not principal.may_use(name):
            raise ModelNotFound(name)
        return route

    def plan(self, route: Route, *, cost: Cost | None = None, prefer_cheaper: bool = False) -> list[Target]:
        """The targets to try, in order. `prefer_cheaper`: a soft limit or the request's policy asks for it."""
        order = list(route.targets)
        if route.strategy == "cheapest" or prefer_cheaper:
            order.sort(key=lambda target: _cost_of(target, cost))
        elif route.strategy == "weighted":
            order = self._draw(order)
        if route.canary is not None and self._random.random() < route.canary_share:
            order.insert(0, route.canary)
        return order

    def _draw(self, targets: list[Target]) -> list[Target]:
        """Weighted order without replacement; weightless targets come last, as fallbacks."""
        rest, order = [target for target in targets if target.weight > 0], []
        while rest:
            [drawn] = self._random.choices(rest, weights=[target.weight for target in rest])
            rest.remove(drawn)
            order.append(drawn)
        return order + [target for target in targets if target.weight <= 0]


def _cost_of(target: Target, cost: Cost | None) -> tuple[int, int]:
    price = cost(target.upstream.model) if cost is not None else None
    return (1, 0) if price is None else (0, price)


def build_table(
    specs: Mapping[str, RouteSpec],
    upstreams: Iterable[Upstream],
    breakers: dict[str, CircuitBreaker],
) -> RouteTable:
    """The routes of `specs`, and one for every upstream's own model that no spec names.

    `breakers` is by upstream label and outlives tables, so that a change of routes does not forget who is down.
    Raises: ValueError naming the route and the target that no upstream serves.
    """
    by_label = {(upstream.name, upstream.model): upstream for upstream in upstreams}

    def target(name: str, spec: TargetSpec) -> Target:
        upstream = by_label.get((spec.upstream, spec.model))
        if upstream is None:
            raise ValueError(f"route {name!r}: no upstream {spec.upstream!r} serves the model {spec.model!r}")
        breaker = breakers.setdefault(f"{spec.upstream}/{spec.model}", CircuitBreaker())
        return Target(upstream, spec.weight, breaker)

    routes: dict[str, Route] = {}
    for upstream in by_label.values():
        own = TargetSpec(upstream=upstream.name, model=upstream.model)
        routes.setdefault(upstream.model, Route(name=upstream.model, targets=(target(upstream.model, own),)))
    for name, spec in specs.items():
        routes[name] = Route(
            name=name,
            targets=tuple(target(name, each) for each in spec.targets),
            strategy=spec.strategy,
            canary=target(name, spec.canary) if spec.canary else None,
            canary_share=spec.canary_share,
            retries=spec.retries,
            timeout_s=spec.timeout_s,
            cache=spec.cache or None,
            default_max_tokens=spec.default_max_tokens,
        )
    return RouteTable(routes)


def all_down(route: Route) -> UpstreamUnavailable:
    """The error when every target's breaker is open."""
    waits = [target.breaker.retry_after_s for target in route.targets]
    return UpstreamUnavailable(
        f"Every upstream of the model `{route.name}` is failing at the moment.", retry_after_s=max(1.0, min(waits))
    )
