"""/admin/v1/apply and /admin/v1/webhooks: bulk changes, and who is told of alerts."""

from __future__ import annotations

from litestar import delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from billing import alerts
from billing.apply import Specification, apply, plan
from gateway.admin_auth import administers, operates
from gateway.config_check import check_document, models_of
from gateway.controllers.admin.base import AdminController, By, Db, Secret
from gateway.decoding import BodyDTO
from gateway.queries import takes_query
from gateway.route_config import RouteConfig
from gateway.schemas.admin.changes import ApplyParams, ApplyResult, NewWebhookView, WebhookCreate, WebhookView
from gateway.settings import Settings
from gateway.webhooks import check_receiver


class ApplyController(AdminController):
    """What `weir apply` does, over HTTP: the same document as JSON."""

    path = "/admin/v1/apply"
    tags = ("Admin: bulk",)

    @post(
        guards=[operates],
        operation_id="Apply",
        summary="Make it as the document says",
        dto=BodyDTO[Specification],
        return_dto=None,
        status_code=200,
        **takes_query(ApplyParams),
    )
    async def apply_document(
        self,
        actor: By,
        data: JSONBody[Specification],
        db: Db,
        params: NamedDependency[ApplyParams],
        route_config: NamedDependency[RouteConfig],
    ) -> ApplyResult:
        """All of it or nothing. Raises: InvalidRequest (400), Conflict (409)."""
        own = models_of(route_config.own)
        if params.dry_run:
            async with db.read() as session:
                await check_document(session, data, own)
                return ApplyResult(applied=False, differences=await plan(session, actor, data))
        async with db.begin() as session:
            await check_document(session, data, own)
            return ApplyResult(applied=True, differences=await apply(session, actor, data))


class WebhookController(AdminController):
    """Where alerts are posted, signed (`weir-signature`), with retry."""

    path = "/admin/v1/webhooks"
    tags = ("Admin: alerts",)

    @get(guards=[administers], operation_id="ListWebhooks", summary="List webhooks")
    async def list_webhooks(self, actor: By, db: Db) -> list[WebhookView]:
        """An admin sees his tenant's."""
        async with db.read() as session:
            return [WebhookView.of(endpoint) for endpoint in await alerts.list_endpoints(session, actor)]

    @post(
        guards=[administers],
        operation_id="CreateWebhook",
        summary="Make a webhook",
        dto=BodyDTO[WebhookCreate],
        return_dto=None,
    )
    async def create_webhook(
        self, actor: By, data: JSONBody[WebhookCreate], db: Db, secret: Secret, settings: NamedDependency[Settings]
    ) -> NewWebhookView:
        """Raises: InvalidRequest (400), for an address that isn't public too; NotFound (404) for a foreign tenant;
        PermissionDenied (403)."""
        await check_receiver(data.url, allow_private=settings.webhook_private_hosts)
        async with db.begin() as session:
            tenant = data.tenant if data.tenant or actor.role == "operator" else actor.tenant_id
            made = await alerts.create_endpoint(session, actor, secret, url=data.url, tenant=tenant, kinds=data.kinds)
            return NewWebhookView(secret=made.secret, details=WebhookView.of(made.endpoint))

    @delete("/{webhook_id:str}", guards=[administers], operation_id="RemoveWebhook", summary="Remove a webhook")
    async def remove_webhook(self, actor: By, webhook_id: FromPath[str], db: Db) -> None:
        """What it has not been told yet goes with it. Raises: NotFound (404), for a foreign one too."""
        async with db.begin() as session:
            await alerts.remove_endpoint(session, actor, webhook_id)
