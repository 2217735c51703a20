"""The planes listen apart: a path on another plane's listener does not exist."""

from __future__ import annotations

import pytest

from gateway.planes import Plane, Planes, plane_of
from gateway.settings import Settings
from tests.gateway.conftest import StartGateway
from tests.gateway.raw_asgi import RawExchange


@pytest.mark.parametrize(
    ("path", "plane"),
    [
        ("/v1/chat/completions", Plane.DATA),
        ("/v1/models/admin/x", Plane.DATA),
        ("/v1/organizational", Plane.DATA),
        ("/admin/v1/keys", Plane.ADMIN),
        ("//admin/v1/keys", Plane.ADMIN),
        ("/admin", Plane.ADMIN),
        ("/v1/organization/costs", Plane.ADMIN),
        ("/v1//organization/projects", Plane.ADMIN),
        ("/v1/organization//costs/", Plane.ADMIN),
        ("//dashboard//", Plane.ADMIN),
        ("/metrics", Plane.METRICS),
        ("/metrics/", Plane.METRICS),
        ("//metrics//", Plane.METRICS),
    ],
)
def test_every_path_has_a_plane(path: str, plane: Plane) -> None:
    assert plane_of(path) is plane


def test_without_further_ports_everything_is_served_everywhere() -> None:
    planes = Planes(Settings())

    assert planes.ports == []
    assert all(planes.serves(8000, path) for path in ("/metrics", "/admin/v1/keys", "/v1/models"))


@pytest.mark.parametrize(
    ("port", "path", "status"),
    [
        (80, "/v1/models", 200),
        (80, "/admin/v1/keys", 404),
        (80, "/metrics", 404),
        (80, "/health", 200),
        (9001, "/v1/models", 404),
        (9001, "/admin/v1/keys", 403),  # served: an inference key may not administer
        (9001, "/health", 200),
        (9002, "/metrics", 200),
        (9002, "/v1/models", 404),
        (9002, "/admin/v1/keys", 404),
        (80, "/v1//organization/projects", 404),
        (80, "/metrics/", 404),
        (80, "//metrics", 404),
        (9002, "/metrics/", 200),
        (9001, "/health/", 200),
    ],
)
async def test_a_listener_serves_its_plane_only(start_gateway: StartGateway, port: int, path: str, status: int) -> None:
    gateway = await start_gateway(admin_port=9001, metrics_port=9002)
    raw = RawExchange(gateway, "GET", path)
    raw._scope["server"] = ("weir", port)
    async with raw:
        start = await raw.start()

    assert start["status"] == status
    assert any(name == b"x-request-id" for name, _ in start["headers"])


@pytest.mark.parametrize(("path", "status"), [("/gw/metrics", 404), ("/gw//metrics/", 404), ("/gw/v1/models", 200)])
async def test_planes_stay_apart_under_a_root_path(start_gateway: StartGateway, path: str, status: int) -> None:
    gateway = await start_gateway(metrics_port=9002)
    raw = RawExchange(gateway, "GET", path)
    raw._scope["root_path"] = "/gw"
    async with raw:
        assert (await raw.start())["status"] == status
