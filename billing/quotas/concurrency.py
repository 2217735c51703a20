"""Requests at once: leases that a heartbeat renews, so that a crash gives them back by itself."""

from __future__ import annotations

from billing.quotas.quota import Quota, Shape, Unit

CONCURRENCY = Quota(name="concurrency", title="concurrent requests", shape=Shape.LEASE, unit=Unit.REQUESTS)
