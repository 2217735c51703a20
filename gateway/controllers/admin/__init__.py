"""`/admin/v1`: everything an operator or a tenant's admin changes while Weir runs, one subject a file."""

from __future__ import annotations

from gateway.controllers.admin.books import (
    AuditController,
    LedgerController,
    ReconcileController,
    ReportController,
)
from gateway.controllers.admin.cache import CacheController
from gateway.controllers.admin.changes import ApplyController, WebhookController
from gateway.controllers.admin.keys import KeyController
from gateway.controllers.admin.limits import LimitController
from gateway.controllers.admin.prices import DiscountController, GpuPriceController, PriceController
from gateway.controllers.admin.routing import RouteController, UpstreamController
from gateway.controllers.admin.tenants import ProjectController, TenantController

ADMIN_CONTROLLERS = (
    TenantController,
    ProjectController,
    KeyController,
    LimitController,
    PriceController,
    DiscountController,
    GpuPriceController,
    ReportController,
    LedgerController,
    ReconcileController,
    AuditController,
    ApplyController,
    WebhookController,
    CacheController,
    UpstreamController,
    RouteController,
)
