"""Which listener serves which paths: the data plane, the admin plane and metrics can listen apart.

One application serves all; a request to a path of another plane's is answered as an unknown URL, before anything of it
is read. Health is answered on every listener.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from gateway.settings import Settings

HEALTH_PATHS = frozenset({"/health", "/ready", "/ping", "/version"})
_ADMIN_PREFIXES = ("/admin/", "/v1/organization/", "/dashboard")


class Plane(StrEnum):
    """Whose path it is."""

    DATA = "data"
    ADMIN = "admin"
    METRICS = "metrics"


def plane_of(path: str) -> Plane:
    """The plane that a path belongs to, read as the router reads it: doubled and trailing slashes are forgiven."""
    path = _routed(path)
    if path == "/metrics":
        return Plane.METRICS
    return Plane.ADMIN if (path + "/").startswith(_ADMIN_PREFIXES) else Plane.DATA


def _routed(path: str) -> str:
    return "/" + "/".join(component for component in path.split("/") if component)


class Planes:
    """`serves(port, path)` for the settings' ports; a port that is none of them (a test, a Unix socket) serves all."""

    def __init__(self, settings: Settings) -> None:
        apart = {settings.admin_port: Plane.ADMIN, settings.metrics_port: Plane.METRICS}
        self._of_port: Mapping[int, Plane] = {port: plane for port, plane in apart.items() if port}
        self._apart = frozenset(self._of_port.values())

    @property
    def ports(self) -> list[int]:
        """The further ports to listen on."""
        return list(self._of_port)

    def serves(self, port: int | None, path: str) -> bool:
        """Whether a request that came in on `port` may have `path`, which is without the root path."""
        if not self._apart or _routed(path) in HEALTH_PATHS:
            return True
        plane = plane_of(path)
        listener = self._of_port.get(port or 0)
        return plane is listener if listener is not None else plane not in self._apart
