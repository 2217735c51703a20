"""Bodies of /admin/v1/upstreams and /admin/v1/routes."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from billing.tables import ConfigItem
from gateway.routing import RouteSpec, TargetSpec
from gateway.upstreams.registry import ModelName, UpstreamSpec


class UpstreamPut(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An upstream as it should be. `api_key` is stored encrypted and never shown; left out, the stored one stays.

    `version`: only what is still at that version is replaced.
    """

    base_url: Annotated[str, Meta(min_length=8, max_length=500, pattern=r"^https?://[^\s?#]+$")]
    models: Annotated[dict[ModelName, Annotated[str, Meta(max_length=200)]], Meta(min_length=1, max_length=500)]
    api_key: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    api_key_env: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")] | None = None
    connect_timeout_s: Annotated[float, Meta(gt=0, le=60)] = 5.0
    first_token_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 120.0
    idle_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0
    version: Annotated[int, Meta(ge=0)] | None = None


class UpstreamView(msgspec.Struct, kw_only=True):
    """An upstream without its key: `has_api_key` and `api_key_env` say where one is."""

    name: str
    version: int
    base_url: str
    models: dict[str, str]
    has_api_key: bool
    api_key_env: str | None
    connect_timeout_s: float
    first_token_timeout_s: float
    idle_timeout_s: float

    @classmethod
    def of(cls, item: ConfigItem) -> UpstreamView:
        spec = msgspec.convert(item.body, UpstreamSpec)
        return cls(
            name=item.name,
            version=item.version,
            base_url=spec.base_url,
            models=spec.models,
            has_api_key=spec.api_key_encrypted is not None,
            api_key_env=spec.api_key_env,
            connect_timeout_s=spec.connect_timeout_s,
            first_token_timeout_s=spec.first_token_timeout_s,
            idle_timeout_s=spec.idle_timeout_s,
        )


class RoutePut(RouteSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A route as it should be. `version`: only what is still at that version is replaced."""

    version: Annotated[int, Meta(ge=0)] | None = None

    def spec(self) -> dict[str, Any]:
        """What is stored."""
        body: dict[str, Any] = msgspec.to_builtins(self)
        body.pop("version", None)
        return body


class RouteView(msgspec.Struct, kw_only=True):
    """A route as it is stored."""

    name: str
    version: int
    route: RouteSpec

    @classmethod
    def of(cls, item: ConfigItem) -> RouteView:
        return cls(name=item.name, version=item.version, route=msgspec.convert(item.body, RouteSpec))


class TargetTrial(msgspec.Struct, kw_only=True):
    """How one target answered a request for one token."""

    target: str
    breaker: str
    ok: bool
    latency_ms: float
    error: str | None = None


class RouteTrial(msgspec.Struct, kw_only=True):
    """A trial of every target of a route."""

    name: str
    targets: list[TargetTrial]


__all__ = ["RoutePut", "RouteTrial", "RouteView", "TargetSpec", "TargetTrial", "UpstreamPut", "UpstreamView"]
