"""Routes, upstreams and cache policies of an apply document, checked before anything is written: billing keeps them
unread.

The gateway's own table leaves a broken item out and goes on; here the operator is told instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from billing import config
from billing.apply import Specification
from billing.errors import Invalid
from gateway.cache_policies import read_cache_policy
from gateway.route_config import ROUTE, UPSTREAM
from gateway.routing import RouteSpec, TargetSpec
from gateway.upstreams.base import Upstream
from gateway.upstreams.registry import UpstreamSpec

# This server's own upstream, where no running gateway says which models it serves.
OWN_UNKNOWN: Mapping[str, frozenset[str] | None] = {"local": None}
_TYPES: Mapping[str, type[UpstreamSpec] | type[RouteSpec]] = {UPSTREAM: UpstreamSpec, ROUTE: RouteSpec}


def read_item(kind: str, name: str, body: dict[str, Any]) -> UpstreamSpec | RouteSpec:
    """Raises: Invalid for a kind that there is not, an unknown field or a value outside its bounds."""
    type_ = _TYPES.get(kind)
    if type_ is None:
        raise Invalid(f"config: {kind[:40]!r} is none of {', '.join(_TYPES)}", param=f"config.{kind[:40]}")
    try:
        return msgspec.convert(body, type_)
    except msgspec.ValidationError as exc:
        raise Invalid(f"{kind} {name[:80]!r}: {exc}", param=f"config.{kind}.{name[:80]}") from exc


async def check_document(
    session: AsyncSession, document: Specification, own: Mapping[str, frozenset[str] | None]
) -> None:
    """Every item readable, every route's target served by an upstream of the document, of SQL or `own`.

    Args: own maps this server's upstreams to their models, None where they are not known here.
    Raises: Invalid naming the item and the fault.
    """
    for tenant in document.tenants:
        if tenant.cache_policy is not None:
            read_cache_policy(tenant.cache_policy, whose=tenant.slug)
    routes: dict[str, RouteSpec] = {}
    served = dict(own)
    for item in await config.list_items(session, UPSTREAM):
        served[item.name] = frozenset(item.body.get("models", {}))
    for kind, items in document.config.items():
        for name, body in items.items():
            spec = read_item(kind, name, body)
            if isinstance(spec, RouteSpec):
                routes[name] = spec
            elif name in own:
                raise Invalid(f"upstream: the name {name!r} is this server's own", param=f"config.upstream.{name}")
            else:
                served[name] = frozenset(spec.models)
    for name, route in routes.items():
        check_targets(name, route, served)


def check_targets(name: str, route: RouteSpec, served: Mapping[str, frozenset[str] | None]) -> None:
    """Raises: Invalid for a target that no upstream serves."""
    targets: list[TargetSpec] = [*route.targets, *([route.canary] if route.canary is not None else [])]
    for target in targets:
        models = served.get(target.upstream, frozenset())
        if models is not None and target.model not in models:
            raise Invalid(
                f"route {name!r}: no upstream {target.upstream!r} serves the model {target.model!r}", param="targets"
            )


def models_of(upstreams: Iterable[Upstream]) -> dict[str, frozenset[str] | None]:
    """Upstream name -> the models it serves."""
    found: dict[str, set[str]] = {}
    for upstream in upstreams:
        found.setdefault(upstream.name, set()).add(upstream.model)
    return {name: frozenset(models) for name, models in found.items()}
