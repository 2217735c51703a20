"""Time, passed in: everything that asks for the hour takes a `Clock`, so that tests can stop it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from billing.errors import Invalid

Clock = Callable[[], datetime]

FIRST_YEAR, LAST_YEAR = 1970, 9998  # a year within what a datetime holds, so that every time zone's hour fits too

BUCKET_S = 900  # roll-ups of 15 minutes: every time zone's days (+5:30, +5:45, +9:30 too) are whole buckets


def utc_now() -> datetime:
    """Now, aware, in UTC."""
    return datetime.now(UTC)


def check_moment(moment: datetime, *, param: str) -> datetime:
    """Raises: Invalid naming `param` for a year before FIRST_YEAR or after LAST_YEAR."""
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        message = f"{param}: {moment.isoformat()} is not within the years {FIRST_YEAR} to {LAST_YEAR}"
        raise Invalid(message, param=param)
    return moment


def bucket_of(moment: datetime) -> int:
    """The start of the moment's 15-minute bucket, in Unix seconds."""
    seconds = int(moment.timestamp())
    return seconds - seconds % BUCKET_S
