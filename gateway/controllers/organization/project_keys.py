"""/v1/organization/projects/{project_id}/api_keys and /service_accounts."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
from litestar import delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy.ext.asyncio import AsyncSession

from billing import keys
from billing.clock import utc_now
from billing.principal import Actor
from billing.tables import ApiKey, Project
from gateway.admin_auth import administers
from gateway.controllers.admin.base import By, Db, Secret
from gateway.controllers.organization.base import InProject, OrganizationController, object_list, refuse_set
from gateway.decoding import BodyDTO
from gateway.errors import InvalidRequest, NotFound, clip
from gateway.queries import takes_query
from gateway.schemas.organization.common import Deleted, ListQuery, ObjectList, unix, unix_or_none
from gateway.schemas.organization.projects import (
    SERVICE_ACCOUNT,
    AccountCreate,
    AccountKey,
    AccountObject,
    AccountWrite,
    KeyListQuery,
    KeyObject,
    KeyWrite,
    NewAccountObject,
    account_id,
    key_id_of,
)

_SCAN = 200  # keys read at once when only service accounts are wanted


def expiry(seconds: int | None) -> datetime | None:
    """The moment `seconds` from now."""
    return None if seconds is None else utc_now() + timedelta(seconds=seconds)


class ProjectKeyController(OrganizationController):
    """Keys of a project. They are made by service accounts, or at /admin/v1/keys."""

    path = "/v1/organization/projects/{project_id:str}/api_keys"
    tags = ("Organization",)
    guards = (administers,)

    @get(operation_id="list-project-api-keys", summary="List a project's keys", **takes_query(KeyListQuery))
    async def list_keys(
        self,
        actor: By,
        project: InProject,
        db: Db,
        params: NamedDependency[KeyListQuery],
    ) -> ObjectList[KeyObject]:
        """Redacted. Raises: NotFound (404)."""
        async with db.read() as session:
            rows = await keys.list_keys(
                session,
                actor,
                tenant_id=project.tenant_id,
                project_id=project.id,
                after=params.after,
                limit=params.limit + 1,
            )
        if params.owner_project_access == "inactive":
            rows = []
        return object_list(rows, params.limit, KeyObject.of, lambda each: each.id)

    @get("/{key_id:str}", operation_id="retrieve-project-api-key", summary="Get a project's key")
    async def get_key(self, actor: By, project: InProject, key_id: FromPath[str], db: Db) -> KeyObject:
        """Raises: NotFound (404)."""
        async with db.read() as session:
            return KeyObject.of(await keys.get_key(session, actor, key_id, project=project.id))

    @post(
        "/{key_id:str}",
        operation_id="modify-project-api-key",
        summary="Change a project's key",
        dto=BodyDTO[KeyWrite],
        return_dto=None,
        status_code=200,
    )
    async def modify_key(
        self,
        actor: By,
        project: InProject,
        key_id: FromPath[str],
        data: JSONBody[KeyWrite],
        db: Db,
    ) -> KeyObject:
        """Raises: NotFound (404), InvalidRequest (400) for a scope that Weir has not."""
        async with db.begin() as session:
            key = await keys.get_key(session, actor, key_id, project=project.id)
            expires = msgspec.UNSET if data.expires_in_seconds is None else expiry(data.expires_in_seconds)
            return KeyObject.of(await keys.update_key(session, actor, key.id, scopes=data.scopes, expires_at=expires))

    @delete("/{key_id:str}", operation_id="delete-project-api-key", summary="Revoke a project's key", status_code=200)
    async def delete_key(self, actor: By, project: InProject, key_id: FromPath[str], db: Db) -> Deleted:
        """Refused by every gateway within a second. Raises: NotFound (404)."""
        async with db.begin() as session:
            await keys.revoke_key(session, actor, key_id, project=project.id)
        return Deleted(id=key_id, object="organization.project.api_key.deleted")


class ServiceAccountController(OrganizationController):
    """Service accounts: each is one key, shown once when it is made."""

    path = "/v1/organization/projects/{project_id:str}/service_accounts"
    tags = ("Organization",)
    guards = (administers,)

    @get(operation_id="list-project-service-accounts", summary="List service accounts", **takes_query(ListQuery))
    async def list_accounts(
        self,
        actor: By,
        project: InProject,
        db: Db,
        params: NamedDependency[ListQuery],
    ) -> ObjectList[AccountObject]:
        """Raises: NotFound (404)."""
        async with db.read() as session:
            after = key_id_of(params.after) if params.after else None
            rows = await _account_keys(session, actor, project, after=after, limit=params.limit + 1)
        return object_list(rows, params.limit, AccountObject.of, lambda each: each.id)

    @post(
        operation_id="create-project-service-account",
        summary="Make a service account and its key",
        dto=BodyDTO[AccountCreate],
        return_dto=None,
        status_code=200,
    )
    async def create_account(
        self,
        actor: By,
        project: InProject,
        data: JSONBody[AccountCreate],
        db: Db,
        secret: Secret,
    ) -> NewAccountObject:
        """Raises: NotFound (404), Conflict (409) for an archived project, InvalidRequest (400)."""
        if data.create_service_account_only:
            raise InvalidRequest(
                "A service account without a key cannot be made on this server.",
                param="create_service_account_only",
                code="unsupported_parameter",
            )
        async with db.begin() as session:
            made = await keys.create_key(
                session,
                actor,
                secret,
                project.id,
                name=data.name,
                owner_kind=SERVICE_ACCOUNT,
                expires_at=expiry(data.expires_in_seconds),
            )
            key = made.key
            return NewAccountObject(
                id=account_id(key),
                name=key.name,
                created_at=unix(key.created_at),
                api_key=AccountKey(
                    id=key.id,
                    name=key.name,
                    value=made.plaintext,
                    created_at=unix(key.created_at),
                    expires_at=unix_or_none(key.expires_at),
                ),
            )

    @get(
        "/{service_account_id:str}",
        operation_id="retrieve-project-service-account",
        summary="Get a service account",
    )
    async def get_account(
        self,
        actor: By,
        project: InProject,
        service_account_id: FromPath[str],
        db: Db,
    ) -> AccountObject:
        """Raises: NotFound (404)."""
        async with db.read() as session:
            return AccountObject.of(await _account(session, actor, project, service_account_id))

    @post(
        "/{service_account_id:str}",
        operation_id="modify-project-service-account",
        summary="Rename a service account",
        dto=BodyDTO[AccountWrite],
        return_dto=None,
        status_code=200,
    )
    async def modify_account(
        self,
        actor: By,
        project: InProject,
        service_account_id: FromPath[str],
        data: JSONBody[AccountWrite],
        db: Db,
    ) -> AccountObject:
        """Raises: NotFound (404), InvalidRequest (400)."""
        refuse_set(data, "role")
        async with db.begin() as session:
            key = await _account(session, actor, project, service_account_id)
            changed = await keys.update_key(session, actor, key.id, name=data.name)
            return AccountObject.of(changed)

    @delete(
        "/{service_account_id:str}",
        operation_id="delete-project-service-account",
        summary="Delete a service account and its key",
        status_code=200,
    )
    async def delete_account(
        self,
        actor: By,
        project: InProject,
        service_account_id: FromPath[str],
        db: Db,
    ) -> Deleted:
        """Raises: NotFound (404)."""
        async with db.begin() as session:
            key = await _account(session, actor, project, service_account_id)
            await keys.revoke_key(session, actor, key.id)
        return Deleted(id=service_account_id, object="organization.project.service_account.deleted")


async def _account(session: AsyncSession, actor: Actor, project: Project, account: str) -> ApiKey:
    key = await keys.get_key(session, actor, key_id_of(account), project=project.id)
    if key.owner_kind != SERVICE_ACCOUNT or key.revoked_at is not None:
        raise NotFound(f"no such service account: {clip(account)!r}", code="not_found")
    return key


async def _account_keys(
    session: AsyncSession, actor: Actor, project: Project, *, after: str | None, limit: int
) -> list[ApiKey]:
    found: list[ApiKey] = []
    while len(found) < limit:
        page = await keys.list_keys(
            session, actor, tenant_id=project.tenant_id, project_id=project.id, after=after, limit=_SCAN
        )
        found += [key for key in page if key.owner_kind == SERVICE_ACCOUNT]
        if len(page) < _SCAN:
            break
        after = page[-1].id
    return found[:limit]
