"""Upstreams and routes as the operator keeps them in SQL, turned into the router's table; changes are hot.

An item that cannot be read (made by another version, a key that does not open) is logged and left out, what was in
force under its name stays: one bad item must not take the others down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, TypeVar

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from billing import config
from billing.errors import BillingError, Invalid
from billing.service import Billing
from gateway.breaker import CircuitBreaker
from gateway.routing import Route, Router, RouteSpec, build_table
from gateway.upstreams.base import Upstream
from gateway.upstreams.registry import Surroundings, UpstreamSpec, build

UPSTREAM, ROUTE = "upstream", "route"
RELOAD_EVERY_S = 30.0  # behind the change messages, for those that were lost
S = TypeVar("S", bound=msgspec.Struct)
log = logging.getLogger(__name__)


class RouteConfig:
    """Keeps `router` in step with SQL. `own` are this process's upstreams: the engine, the embedder."""

    def __init__(self, billing: Billing, router: Router, own: list[Upstream], around: Surroundings) -> None:
        self._billing = billing
        self._router = router
        self.own = own
        self._around = around
        self._breakers: dict[str, CircuitBreaker] = {}
        self._upstreams: dict[str, tuple[UpstreamSpec, list[Upstream]]] = {}
        self._specs: dict[str, RouteSpec] = {}
        self._changed = asyncio.Event()
        billing.bus.listen(self._on_change)

    def _on_change(self, kind: str, _id: str) -> None:
        if kind in ("config", "all"):
            self._changed.set()

    async def load(self) -> None:
        """Reads everything and replaces the table. Raises: SQLAlchemyError, OSError."""
        async with self._billing.db.read() as session:
            upstreams = await config.list_items(session, UPSTREAM)
            routes = await config.list_items(session, ROUTE)
        self._upstreams = self._built({item.name: item.body for item in upstreams})
        specs: dict[str, RouteSpec] = {}
        for item in routes:
            spec = _read(ROUTE, item.name, item.body, RouteSpec) or self._specs.get(item.name)
            if spec is not None and self._complete(item.name, spec):
                specs[item.name] = spec
        self._specs = specs
        self._router.replace(build_table(specs, self.upstreams, self._breakers))

    def _built(self, bodies: dict[str, dict[str, Any]]) -> dict[str, tuple[UpstreamSpec, list[Upstream]]]:
        built: dict[str, tuple[UpstreamSpec, list[Upstream]]] = {}
        for name, body in bodies.items():
            old = self._upstreams.get(name)
            spec = _read(UPSTREAM, name, body, UpstreamSpec)
            if spec is None or (old is not None and old[0] == spec):
                if old is not None:
                    built[name] = old
                continue
            try:
                built[name] = (spec, build(name, spec, self._around))
            except BillingError as exc:
                log.warning("upstream %r is left out: %s", name, exc)
        return built

    def _complete(self, name: str, spec: RouteSpec) -> bool:
        try:
            self.check_route(name, spec)
        except Invalid as exc:
            log.warning("route %r is left out: %s", name, exc)
            return False
        return True

    @property
    def upstreams(self) -> list[Upstream]:
        """Every upstream in force, this process's first."""
        return [*self.own, *(upstream for _, built in self._upstreams.values() for upstream in built)]

    def check_upstream(self, name: str, spec: UpstreamSpec) -> None:
        """Raises: Invalid for a name of ours and for a key that does not open."""
        if name in {upstream.name for upstream in self.own}:
            raise Invalid(f"upstream: the name {name!r} is this server's own", param="name")
        build(name, spec, self._around)

    def check_route(self, name: str, spec: RouteSpec) -> Route:
        """What the route would be. Raises: Invalid naming a target that no upstream serves."""
        try:
            table = build_table({name: spec}, self.upstreams, self._breakers)
        except ValueError as exc:
            raise Invalid(str(exc), param="targets") from exc
        route = table.get(name)
        assert route is not None
        return route

    async def watch(self) -> None:
        """Loads again after every change; runs until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELOAD_EVERY_S):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self.load()
            except (SQLAlchemyError, OSError, TimeoutError) as exc:
                log.warning("routes were not read, the old ones stay: %s", type(exc).__name__)


def _read(kind: str, name: str, body: dict[str, Any], type_: type[S]) -> S | None:
    try:
        return msgspec.convert(body, type_)
    except msgspec.ValidationError as exc:
        log.warning("%s %r cannot be read: %s", kind, name, exc)
        return None
