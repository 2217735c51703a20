"""/health, /ready, /ping, /version and /metrics: no key, HEAD as GET, never an error of our own making."""

from __future__ import annotations

from typing import Any

from litestar import Controller, MediaType, Request, Response, get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec

from gateway import __version__
from gateway.health import HealthReport, Probe
from gateway.metrics import Metrics
from gateway.operation_ids import at_each_path

UNWELL = {503: ResponseSpec(HealthReport, description="What is not well.")}


class HealthController(Controller):
    """What a load balancer, an orchestrator and Prometheus ask."""

    tags = ("Operations",)

    @get(
        ["/health", "/ping"],
        operation_id=at_each_path("Health"),
        summary="Is this process alive and its engine turning?",
        responses=UNWELL,
    )
    async def health(self, probe: NamedDependency[Probe]) -> Response[HealthReport]:
        """200 while the process lives and its engine is not hung or dead; 503 otherwise."""
        report = await probe.alive()
        return Response(report, status_code=200 if report.ok else 503)

    @get("/ready", operation_id="Ready", summary="Should traffic be sent here?", responses=UNWELL)
    async def ready(self, probe: NamedDependency[Probe]) -> Response[HealthReport]:
        """503 while starting and draining, and when SQL cannot be reached."""
        report = await probe.ready()
        return Response(report, status_code=200 if report.ok else 503)

    @get("/version", operation_id="Version", summary="Weir's version")
    async def version(self) -> dict[str, str]:
        return {"version": __version__}


class MetricsController(Controller):
    """Prometheus' text format."""

    tags = ("Operations",)

    @get("/metrics", operation_id="Metrics", summary="Prometheus metrics", media_type=MediaType.TEXT)
    async def metrics(self, request: Request[Any, Any, Any], metrics: NamedDependency[Metrics]) -> Response[bytes]:  # noqa: ARG002
        return Response(metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")
