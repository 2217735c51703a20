"""Bulk changes, and the webhooks that hear of alerts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from billing.apply import Difference
from billing.tables import AlertEndpoint
from gateway.schemas.admin.common import Ref

Kind = Literal["soft_limit", "hard_limit", "budget_forecast", "ledger_drift", "ledger_conflict"]


class ApplyParams(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """With `dry_run` the difference is only shown."""

    dry_run: bool = False


class ApplyResult(msgspec.Struct, kw_only=True):
    """What was changed, or with `dry_run` would be."""

    applied: bool
    differences: list[Difference]


class WebhookCreate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Without `kinds` every kind; without `tenant` (operators) every tenant's and our own alerts."""

    url: Annotated[str, Meta(min_length=1, max_length=2000)]
    tenant: Ref | None = None
    kinds: list[Kind] = []


class WebhookView(msgspec.Struct, kw_only=True):
    id: str
    tenant_id: str | None
    url: str
    kinds: list[str]
    created_at: datetime
    disabled_at: datetime | None

    @classmethod
    def of(cls, endpoint: AlertEndpoint) -> WebhookView:
        """From its row; the secret stays behind."""
        return cls(
            id=endpoint.id,
            tenant_id=endpoint.tenant_id or None,
            url=endpoint.url,
            kinds=endpoint.kinds,
            created_at=endpoint.created_at,
            disabled_at=endpoint.disabled_at,
        )


class NewWebhookView(msgspec.Struct, kw_only=True):
    """`secret` signs the deliveries: it is not shown again."""

    secret: str
    details: WebhookView
