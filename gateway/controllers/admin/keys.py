"""/admin/v1/keys: API keys. The plaintext is in the answer that makes or rotates one, once."""

from __future__ import annotations

from datetime import timedelta

from litestar import delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from billing import keys, tenants
from billing.principal import Role
from gateway.admin_auth import administers, reads_books
from gateway.controllers.admin.base import AdminController, By, Db, Secret, page_of
from gateway.decoding import BodyDTO
from gateway.queries import takes_query
from gateway.schemas.admin.common import Page
from gateway.schemas.admin.keys import KeyCreate, KeyQuery, KeyRotate, KeyUpdate, KeyView, NewKeyView


class KeyController(AdminController):
    """Keys by id."""

    path = "/admin/v1/keys"
    tags = ("Admin: keys",)

    @get(guards=[reads_books], operation_id="ListKeys", summary="List keys", **takes_query(KeyQuery))
    async def list_keys(self, actor: By, db: Db, params: NamedDependency[KeyQuery]) -> Page[KeyView]:
        """Redacted. Raises: NotFound (404) for a foreign tenant or project."""
        async with db.read() as session:
            owner = (await tenants.get_tenant(session, actor, params.tenant)).id if params.tenant else None
            project = None
            if params.project:
                project = (await tenants.get_project(session, actor, params.project, tenant=owner)).id
            rows = await keys.list_keys(
                session,
                actor,
                tenant_id=owner,
                project_id=project,
                include_revoked=params.include_revoked,
                after=params.after,
                limit=params.limit + 1,
            )
        return page_of(rows, params.limit, KeyView.of, next_after=lambda row: row.id)

    @post(
        guards=[administers],
        operation_id="CreateKey",
        summary="Make a key",
        dto=BodyDTO[KeyCreate],
        return_dto=None,
    )
    async def create_key(self, actor: By, data: JSONBody[KeyCreate], db: Db, secret: Secret) -> NewKeyView:
        """Raises: NotFound (404), PermissionDenied (403) for a role above one's own, Conflict (409) when archived."""
        async with db.begin() as session:
            owner = (await tenants.get_tenant(session, actor, data.tenant)).id if data.tenant else None
            made = await keys.create_key(
                session,
                actor,
                secret,
                data.project,
                tenant=owner,
                name=data.name,
                scopes=data.scopes,
                role=Role(data.role),
                allowed_models=data.allowed_models,
                max_service_tier=data.max_service_tier,
                max_priority=data.max_priority,
                expires_at=data.expires_at,
                tags=data.tags,
            )
            return NewKeyView(key=made.plaintext, details=KeyView.of(made.key))

    @get("/{key_id:str}", guards=[reads_books], operation_id="GetKey", summary="Get a key")
    async def get_key(self, actor: By, key_id: FromPath[str], db: Db) -> KeyView:
        """Raises: NotFound (404), for a foreign one too."""
        async with db.read() as session:
            return KeyView.of(await keys.get_key(session, actor, key_id))

    @patch(
        "/{key_id:str}",
        guards=[administers],
        operation_id="UpdateKey",
        summary="Change a key",
        dto=BodyDTO[KeyUpdate],
        return_dto=None,
    )
    async def update_key(self, actor: By, key_id: FromPath[str], data: JSONBody[KeyUpdate], db: Db) -> KeyView:
        """In force on every gateway within a second. Raises: NotFound (404), PermissionDenied (403)."""
        async with db.begin() as session:
            changed = await keys.update_key(
                session,
                actor,
                key_id,
                name=data.name,
                scopes=data.scopes,
                allowed_models=data.allowed_models,
                max_service_tier=data.max_service_tier,
                max_priority=data.max_priority,
                expires_at=data.expires_at,
                tags=data.tags,
            )
            return KeyView.of(changed)

    @post(
        "/{key_id:str}/rotate",
        guards=[administers],
        operation_id="RotateKey",
        summary="Give a key a new secret",
        dto=BodyDTO[KeyRotate],
        return_dto=None,
        status_code=200,
    )
    async def rotate_key(
        self, actor: By, key_id: FromPath[str], data: JSONBody[KeyRotate], db: Db, secret: Secret
    ) -> NewKeyView:
        """The old secret works until the grace has passed. Raises: NotFound (404), Conflict (409) when revoked."""
        async with db.begin() as session:
            made = await keys.rotate_key(session, actor, secret, key_id, grace=timedelta(seconds=data.grace_s))
            return NewKeyView(key=made.plaintext, details=KeyView.of(made.key))

    @delete("/{key_id:str}", guards=[administers], operation_id="RevokeKey", summary="Revoke a key", status_code=200)
    async def revoke_key(self, actor: By, key_id: FromPath[str], db: Db) -> KeyView:
        """Refused by every gateway within a second; revoking twice is harmless."""
        async with db.begin() as session:
            return KeyView.of(await keys.revoke_key(session, actor, key_id))
