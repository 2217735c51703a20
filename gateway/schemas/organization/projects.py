"""Projects, their API keys and service accounts, and admin keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from billing.tables import ApiKey, Project, Status
from gateway.schemas.admin.common import Name
from gateway.schemas.organization.common import ListQuery, unix, unix_or_none

Lifetime = Annotated[int, Meta(ge=1, le=10 * 366 * 86_400)]
SERVICE_ACCOUNT = "service_account"


class ProjectListQuery(ListQuery, kw_only=True, forbid_unknown_fields=True):
    include_archived: bool = False


class ProjectWrite(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`geography`, `residency` and, on a change, `external_key_id` are known but cannot be set here."""

    name: Name | None = None
    external_key_id: Annotated[str, Meta(max_length=200)] | None = None
    geography: str | None = None
    residency: Any = None


class ProjectObject(msgspec.Struct, kw_only=True):
    id: str
    name: str
    created_at: int
    archived_at: int | None
    status: Literal["active", "archived"]
    external_key_id: str | None
    residency: None = None
    object: Literal["organization.project"] = "organization.project"

    @classmethod
    def of(cls, project: Project) -> ProjectObject:
        """From its row."""
        return cls(
            id=project.id,
            name=project.name,
            created_at=unix(project.created_at),
            archived_at=unix_or_none(project.archived_at),
            status="archived" if project.status is Status.ARCHIVED else "active",
            external_key_id=project.external_key_id,
        )


class KeyListQuery(ListQuery, kw_only=True, forbid_unknown_fields=True):
    """Every owner has access while his key is not revoked, so `inactive` finds nothing."""

    owner_project_access: Literal["active", "inactive", "any"] = "any"


class KeyOwnerUser(msgspec.Struct, kw_only=True):
    """Weir keeps no people: the name a key was made under stands for its owner."""

    id: str
    name: str
    created_at: int
    role: str
    email: str = ""


class KeyOwnerAccount(msgspec.Struct, kw_only=True):
    id: str
    name: str
    created_at: int
    role: str


class KeyOwner(msgspec.Struct, kw_only=True):
    type: Literal["user", "service_account"]
    user: KeyOwnerUser | None = None
    service_account: KeyOwnerAccount | None = None

    @classmethod
    def of(cls, key: ApiKey) -> KeyOwner:
        """From the key's row."""
        role = "owner" if key.role != "member" else "member"
        created_at = unix(key.created_at)
        if key.owner_kind == SERVICE_ACCOUNT:
            account = KeyOwnerAccount(id=account_id(key), name=key.owner_name, created_at=created_at, role=role)
            return cls(type="service_account", service_account=account)
        user = KeyOwnerUser(id=key.created_by, name=key.owner_name, created_at=created_at, role=role)
        return cls(type="user", user=user)


class KeyObject(msgspec.Struct, kw_only=True):
    id: str
    name: str
    redacted_value: str
    created_at: int
    last_used_at: int | None
    expires_at: int | None
    owner: KeyOwner
    owner_project_access: Literal["active", "inactive"]
    object: Literal["organization.project.api_key"] = "organization.project.api_key"

    @classmethod
    def of(cls, key: ApiKey) -> KeyObject:
        """From its row; the secret's last four characters are all that is shown."""
        return cls(
            id=key.id,
            name=key.name,
            redacted_value=key.redacted,
            created_at=unix(key.created_at),
            last_used_at=unix_or_none(key.last_used_at),
            expires_at=unix_or_none(key.expires_at),
            owner=KeyOwner.of(key),
            owner_project_access="active" if key.revoked_at is None else "inactive",
        )


class KeyWrite(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`scopes` are Weir's: inference, usage:read, admin."""

    scopes: list[str] | None = None
    expires_in_seconds: Lifetime | None = None


class AccountCreate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: Name
    expires_in_seconds: Lifetime | None = None
    create_service_account_only: bool | None = None


class AccountWrite(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`role` is known but fixed here: a service account is a member."""

    name: Name | None = None
    role: Literal["member", "owner"] | None = None


class AccountObject(msgspec.Struct, kw_only=True):
    """A service account is its key: made, and deleted, with it."""

    id: str
    name: str
    created_at: int
    role: Literal["member"] = "member"
    object: Literal["organization.project.service_account"] = "organization.project.service_account"

    @classmethod
    def of(cls, key: ApiKey) -> AccountObject:
        """From its key's row."""
        return cls(id=account_id(key), name=key.name, created_at=unix(key.created_at))


class AccountKey(msgspec.Struct, kw_only=True):
    """`value` is the plaintext: it is not shown again."""

    id: str
    name: str
    value: str
    created_at: int
    expires_at: int | None
    object: Literal["organization.project.service_account.api_key"] = "organization.project.service_account.api_key"


class NewAccountObject(AccountObject, kw_only=True):
    api_key: AccountKey


class AdminKeyListQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "asc"


class AdminKeyCreate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: Name
    expires_in_seconds: Lifetime | None = None


class AdminKeyOwner(msgspec.Struct, kw_only=True):
    id: str
    name: str
    created_at: int
    type: Literal["user"] = "user"
    role: Literal["owner"] = "owner"
    object: Literal["organization.user"] = "organization.user"


class AdminKeyObject(msgspec.Struct, kw_only=True):
    id: str
    name: str
    redacted_value: str
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    owner: AdminKeyOwner
    object: Literal["organization.admin_api_key"] = "organization.admin_api_key"

    @classmethod
    def of(cls, key: ApiKey) -> AdminKeyObject:
        """From its row."""
        return cls(**_admin_fields(key))


class NewAdminKeyObject(AdminKeyObject, kw_only=True):
    """`value` is the plaintext: it is not shown again."""

    value: str

    @classmethod
    def made(cls, key: ApiKey, value: str) -> NewAdminKeyObject:
        """From the row and the plaintext, which exists nowhere else."""
        return cls(value=value, **_admin_fields(key))


def _admin_fields(key: ApiKey) -> dict[str, Any]:
    created_at: datetime = key.created_at
    return {
        "id": key.id,
        "name": key.name,
        "redacted_value": key.redacted,
        "created_at": unix(created_at),
        "expires_at": unix_or_none(key.expires_at),
        "last_used_at": unix_or_none(key.last_used_at),
        "owner": AdminKeyOwner(id=key.created_by, name=key.owner_name, created_at=unix(created_at)),
    }


def account_id(key: ApiKey) -> str:
    """A service account's id: its key's with another prefix."""
    return "svc_acct_" + key.id.removeprefix("key_")


def key_id_of(account: str) -> str:
    """The key behind a service account's id; for any other text an id that no key has."""
    return "key_" + account.removeprefix("svc_acct_") if account.startswith("svc_acct_") else "key_"
