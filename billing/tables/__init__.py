"""Every table of the books; importing this package fills `Base.metadata`."""

from __future__ import annotations

from billing.tables.alerts import AlertDelivery, AlertEndpoint, AlertState
from billing.tables.audit import AuditEvent
from billing.tables.config import ConfigItem
from billing.tables.identity import ApiKey, KeyStatus, Project, Status, Tenant
from billing.tables.ledger import EntryKind, EntryStatus, LedgerEntry
from billing.tables.limits import LimitRule
from billing.tables.prices import Discount, GpuPrice, Price
from billing.tables.rollups import RollupDay, RollupMark, UsageByDay, UsageByModel, UsageBySpan, UsageRollup

__all__ = [
    "AlertDelivery",
    "AlertEndpoint",
    "AlertState",
    "ApiKey",
    "AuditEvent",
    "ConfigItem",
    "Discount",
    "EntryKind",
    "EntryStatus",
    "GpuPrice",
    "KeyStatus",
    "LedgerEntry",
    "LimitRule",
    "Price",
    "Project",
    "RollupDay",
    "RollupMark",
    "Status",
    "Tenant",
    "UsageByDay",
    "UsageByModel",
    "UsageBySpan",
    "UsageRollup",
]
