"""`/v1/organization`: OpenAI's admin API, so that `client.admin.organization` of its SDKs works unchanged."""

from __future__ import annotations

from gateway.controllers.organization.admin_keys import AdminKeyController
from gateway.controllers.organization.audit_logs import AuditLogController
from gateway.controllers.organization.limits import RateLimitController, SpendLimitController
from gateway.controllers.organization.project_keys import ProjectKeyController, ServiceAccountController
from gateway.controllers.organization.projects import OrganizationProjectController
from gateway.controllers.organization.usage import OrganizationUsageController

ORGANIZATION_CONTROLLERS = (
    OrganizationProjectController,
    ProjectKeyController,
    ServiceAccountController,
    RateLimitController,
    SpendLimitController,
    AdminKeyController,
    AuditLogController,
    OrganizationUsageController,
)
