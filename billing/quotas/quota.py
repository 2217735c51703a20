"""What a kind of quota is: its name in rules, its unit, how it is counted and at which stage."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Shape(StrEnum):
    """`RATE`: GCRA over a period. `LEASE`: how many at once. `BUDGET`: money in a window. `BOUND`: per request."""

    RATE = "rate"
    LEASE = "lease"
    BUDGET = "budget"
    BOUND = "bound"


class Unit(StrEnum):
    """What is counted."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    NANO_USD = "nano_usd"


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """One kind. `period_s` is a rate's; `window` (day, week, month) a budget's, in the tenant's time zone."""

    name: str
    title: str
    shape: Shape
    unit: Unit
    period_s: int = 0
    window: str = ""
