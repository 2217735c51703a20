"""/admin/v1/upstreams and /admin/v1/routes: where requests go. Operators only; changes are hot on every gateway."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from billing import audit, config
from billing.errors import NotFound
from gateway.admin_auth import operates
from gateway.auth import principal_of
from gateway.controllers.admin.base import AdminController, By, Db, Secret
from gateway.decoding import BodyDTO
from gateway.route_config import ROUTE, UPSTREAM, RouteConfig
from gateway.route_trial import try_route
from gateway.routing import RouteSpec
from gateway.schemas.admin.routing import RoutePut, RouteTrial, RouteView, UpstreamPut, UpstreamView
from gateway.texts import Texts
from gateway.upstreams.registry import UpstreamSpec


class UpstreamController(AdminController):
    """OpenAI-compatible servers that requests may be sent to."""

    path = "/admin/v1/upstreams"
    tags = ("Admin: routing",)
    guards = (operates,)

    @get(operation_id="ListUpstreams", summary="List upstreams")
    async def list_upstreams(self, db: Db) -> list[UpstreamView]:
        async with db.read() as session:
            return [UpstreamView.of(item) for item in await config.list_items(session, UPSTREAM)]

    @put(
        "/{name:str}",
        operation_id="PutUpstream",
        summary="Create or replace an upstream",
        dto=BodyDTO[UpstreamPut],
        return_dto=None,
    )
    async def put_upstream(
        self,
        *,
        actor: By,
        name: FromPath[str],
        data: JSONBody[UpstreamPut],
        db: Db,
        secret: Secret,
        route_config: NamedDependency[RouteConfig],
    ) -> UpstreamView:
        """Raises: InvalidRequest (400), Conflict (409) when it is at another version."""
        async with db.begin() as session:
            found = {item.name: item for item in await config.list_items(session, UPSTREAM)}.get(name)
            encrypted = secret.encrypt(data.api_key).decode("ascii") if data.api_key is not None else None
            if encrypted is None and data.api_key_env is None and found is not None:
                encrypted = found.body.get("api_key_encrypted")
            spec = UpstreamSpec(
                base_url=data.base_url,
                models=data.models,
                api_key_env=data.api_key_env,
                api_key_encrypted=encrypted,
                connect_timeout_s=data.connect_timeout_s,
                first_token_timeout_s=data.first_token_timeout_s,
                idle_timeout_s=data.idle_timeout_s,
            )
            route_config.check_upstream(name, spec)
            body: dict[str, Any] = msgspec.to_builtins(spec)
            return UpstreamView.of(await config.set_item(session, actor, UPSTREAM, name, body, version=data.version))

    @delete("/{name:str}", operation_id="DeleteUpstream", summary="Remove an upstream")
    async def delete_upstream(self, actor: By, name: FromPath[str], db: Db) -> None:
        """Routes that name it lose its targets. Raises: NotFound (404)."""
        async with db.begin() as session:
            await config.remove_item(session, actor, UPSTREAM, name)


class RouteController(AdminController):
    """What model names mean: aliases, weights, fallbacks, canaries."""

    path = "/admin/v1/routes"
    tags = ("Admin: routing",)
    guards = (operates,)

    @get(operation_id="ListRoutes", summary="List routes")
    async def list_routes(self, db: Db) -> list[RouteView]:
        async with db.read() as session:
            return [RouteView.of(item) for item in await config.list_items(session, ROUTE)]

    @put(
        "/{name:str}",
        operation_id="PutRoute",
        summary="Create or replace a route",
        dto=BodyDTO[RoutePut],
        return_dto=None,
    )
    async def put_route(
        self,
        actor: By,
        name: FromPath[str],
        data: JSONBody[RoutePut],
        db: Db,
        route_config: NamedDependency[RouteConfig],
    ) -> RouteView:
        """Raises: InvalidRequest (400) for a target that no upstream serves, Conflict (409)."""
        body = data.spec()
        route_config.check_route(name, msgspec.convert(body, RouteSpec))
        async with db.begin() as session:
            return RouteView.of(await config.set_item(session, actor, ROUTE, name, body, version=data.version))

    @delete("/{name:str}", operation_id="DeleteRoute", summary="Remove a route")
    async def delete_route(self, actor: By, name: FromPath[str], db: Db) -> None:
        """Raises: NotFound (404)."""
        async with db.begin() as session:
            await config.remove_item(session, actor, ROUTE, name)

    @post("/{name:str}/test", operation_id="TestRoute", summary="Ask every target for one token", status_code=200)
    async def test_route(
        self,
        *,
        request: Request[Any, Any, Any],
        actor: By,
        name: FromPath[str],
        db: Db,
        route_config: NamedDependency[RouteConfig],
        texts: NamedDependency[Texts],
    ) -> RouteTrial:
        """Past the circuit breakers, and paid by nobody. Raises: NotFound (404), InvalidRequest (400)."""
        async with db.begin() as session:
            found = {item.name: item for item in await config.list_items(session, ROUTE)}.get(name)
            if found is None:
                raise NotFound(f"no such route: {name[:80]!r}")
            audit.record(session, actor, "route.tested", name)
        route = route_config.check_route(name, msgspec.convert(found.body, RouteSpec))
        prompt = await texts.of(route).encode("ping")
        return await try_route(route, principal_of(request), prompt)
