"""Requests per minute and per day, taken at admission; a cache hit counts, else the cache would be a free oracle."""

from __future__ import annotations

from billing.quotas.quota import Quota, Shape, Unit

RPM = Quota(name="rpm", title="requests per minute", shape=Shape.RATE, unit=Unit.REQUESTS, period_s=60)
RPD = Quota(name="rpd", title="requests per day", shape=Shape.RATE, unit=Unit.REQUESTS, period_s=86_400)
