"""Money per calendar day, ISO week (Monday first) or month of the tenant's time zone."""

from __future__ import annotations

from billing.quotas.quota import Quota, Shape, Unit

DAY = Quota(name="budget_day", title="budget per day", shape=Shape.BUDGET, unit=Unit.NANO_USD, window="day")
WEEK = Quota(name="budget_week", title="budget per week", shape=Shape.BUDGET, unit=Unit.NANO_USD, window="week")
MONTH = Quota(name="budget_month", title="budget per month", shape=Shape.BUDGET, unit=Unit.NANO_USD, window="month")
