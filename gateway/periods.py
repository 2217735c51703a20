"""Moments and days as callers write them: `2026-12-01` is that day's first instant where the report's days are cut."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from billing.clock import check_moment
from billing.errors import Invalid
from billing.tenants import check_time_zone


def parse_moment(text: str, time_zone: str, *, param: str) -> datetime:
    """An aware moment from ISO 8601; without an offset it is local to `time_zone`.

    Raises: Invalid naming `param`.
    """
    zone = ZoneInfo(check_time_zone(time_zone))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise Invalid(f"{param}: {text[:40]!r} is no ISO 8601 day or moment, such as 2026-12-01", param=param) from exc
    check_moment(moment, param=param)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
