"""Alerts: said once, logged, and delivered to signed webhooks with retry. The HTTP is the gateway's, by `Delivery`.

A payload is signed as `weir-signature: t=<unix seconds>,v1=<hex>`, HMAC-SHA-256 over `<t>.<body>` under the endpoint's
secret, so that a receiver can check origin and age.
"""

from __future__ import annotations

import hmac
import logging
import secrets as random
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from billing import audit
from billing.clock import Clock, utc_now
from billing.db import Database
from billing.errors import Invalid, NotFound
from billing.ids import new_id
from billing.principal import Actor, Role
from billing.secrets import ServerSecret
from billing.tables import AlertDelivery, AlertEndpoint, AlertState
from billing.tenants import check_printable, get_tenant

MAX_ATTEMPTS = 12
FIRST_RETRY_S, MAX_RETRY_S = 10.0, 6 * 3600.0
MAX_A_PASS = 50
CLAIM_S = 60.0  # a process that dies while delivering leaves the alert to another after this
log = logging.getLogger(__name__)


class AlertKind(StrEnum):
    """What alerts are about."""

    SOFT_LIMIT = "soft_limit"
    HARD_LIMIT = "hard_limit"
    BUDGET_FORECAST = "budget_forecast"
    LEDGER_DRIFT = "ledger_drift"
    LEDGER_CONFLICT = "ledger_conflict"


class Delivery(Protocol):
    """How a webhook is posted. Raises on anything but a 2xx answer; the message must hold no secret."""

    async def __call__(self, url: str, body: bytes, headers: dict[str, str]) -> None:
        """Post `body` to `url` within a bounded time."""
        ...


class NewEndpoint(msgspec.Struct, frozen=True):
    """A created endpoint with its signing secret, shown once."""

    endpoint: AlertEndpoint
    secret: str

    def __repr__(self) -> str:
        return f"NewEndpoint({self.endpoint.id})"


async def create_endpoint(
    session: AsyncSession,
    actor: Actor,
    secret: ServerSecret,
    *,
    url: str,
    tenant: str | None = None,
    kinds: Sequence[str] = (),
) -> NewEndpoint:
    """A webhook for one tenant's alerts, or (operators, `tenant` None) all. Raises: Forbidden, Invalid, NotFound."""
    if tenant is None:
        audit.require_operator(actor)
        tenant_id = ""
    else:
        tenant_id = (await get_tenant(session, actor, tenant)).id
        audit.require_admin(actor, tenant_id)
    try:
        parts = urlsplit(check_printable(url, "url"))
    except ValueError as exc:
        raise Invalid(f"url: {exc}", param="url") from exc
    if parts.scheme not in ("https", "http") or not parts.hostname or len(url) > 2000 or parts.username:
        raise Invalid("url: must be an http(s) URL of at most 2000 characters without credentials", param="url")
    for kind in kinds:
        if kind not in set(AlertKind):
            raise Invalid(f"kinds: {kind[:40]!r} is none of {', '.join(AlertKind)}", param="kinds")
    plaintext = f"whsec_{random.token_urlsafe(32)}"
    endpoint = AlertEndpoint(
        id=new_id("hook"),
        tenant_id=tenant_id,
        url=url,
        kinds=list(kinds),
        secret=secret.encrypt(plaintext),
        disabled_at=None,
        created_at=utc_now(),
    )
    session.add(endpoint)
    audit.record(
        session, actor, "alert_endpoint.created", endpoint.id, tenant_id=tenant_id or None, detail={"url": url}
    )
    return NewEndpoint(endpoint, plaintext)


async def list_endpoints(session: AsyncSession, actor: Actor) -> list[AlertEndpoint]:
    """Those the actor may see: all of them, or his tenant's. Raises: Forbidden for a member."""
    query = sa.select(AlertEndpoint).order_by(AlertEndpoint.id)
    if actor.role is not Role.OPERATOR:
        audit.require_admin(actor, actor.tenant_id or "")
        query = query.where(AlertEndpoint.tenant_id == actor.tenant_id)
    return list(await session.scalars(query))


async def remove_endpoint(session: AsyncSession, actor: Actor, endpoint_id: str) -> None:
    """Its undelivered alerts go with it. Raises: Forbidden, NotFound."""
    endpoint = await session.get(AlertEndpoint, endpoint_id)
    if endpoint is None or (actor.role is not Role.OPERATOR and endpoint.tenant_id != actor.tenant_id):
        raise NotFound(f"no such alert endpoint: {endpoint_id[:80]!r}")
    if endpoint.tenant_id:
        audit.require_admin(actor, endpoint.tenant_id)
    await session.delete(endpoint)
    audit.record(session, actor, "alert_endpoint.deleted", endpoint_id, tenant_id=endpoint.tenant_id or None)


async def raise_alert(
    db: Database,
    kind: AlertKind,
    *,
    once: str,
    tenant_id: str | None = None,
    detail: dict[str, Any] | None = None,
    clock: Clock = utc_now,
) -> bool:
    """Log the alert and queue it for every endpoint that wants it; False when `once` was said before.

    `once` names the news (limit and window): of all gateways the first one tells it.
    """
    now = clock()
    make = sqlite.insert if db.dialect == "sqlite" else postgresql.insert
    async with db.begin() as session:
        claim = make(AlertState).values(key=once[:300], fired_at=now).on_conflict_do_nothing().returning(AlertState.key)
        if (await session.execute(claim)).first() is None:
            return False
        payload = {
            "id": new_id("alert"),
            "type": str(kind),
            "created_at": now.isoformat(),
            "tenant_id": tenant_id,
            "data": detail or {},
        }
        owners = ["", tenant_id] if tenant_id else [""]
        query = sa.select(AlertEndpoint).where(AlertEndpoint.tenant_id.in_(owners), AlertEndpoint.disabled_at.is_(None))
        for endpoint in await session.scalars(query):
            if not endpoint.kinds or kind in endpoint.kinds:
                session.add(_delivery(endpoint, kind, payload, now))
    log.warning("alert %s: %s", kind, once)
    return True


def _delivery(endpoint: AlertEndpoint, kind: AlertKind, payload: dict[str, Any], now: datetime) -> AlertDelivery:
    return AlertDelivery(
        id=new_id("dlv"),
        endpoint_id=endpoint.id,
        kind=str(kind),
        payload=payload,
        state="pending",
        attempts=0,
        next_at=now,
        last_error=None,
        created_at=now,
    )


async def deliver_due(db: Database, secret: ServerSecret, deliver: Delivery, *, clock: Clock = utc_now) -> int:
    """Post what is due, one claim each; returns how many were delivered. A failure waits twice as long each time."""
    delivered = 0
    for _ in range(MAX_A_PASS):
        claimed = await _claim(db, clock())
        if claimed is None:
            break
        delivery, endpoint = claimed
        body = msgspec.json.encode(delivery.payload)
        headers = {
            "content-type": "application/json",
            "weir-event": delivery.kind,
            "weir-delivery": delivery.id,
            "weir-signature": sign(body, secret.decrypt(endpoint.secret), clock()),
        }
        try:
            await deliver(endpoint.url, body, headers)
        except Exception as exc:  # noqa: BLE001  whatever the transport raises, the alert is tried again
            await _failed(db, delivery, f"{type(exc).__name__}: {exc}"[:500], clock())
            continue
        await _mark(db, delivery.id, state="delivered", last_error=None)
        delivered += 1
    return delivered


def sign(body: bytes, secret: str, moment: datetime) -> str:
    """The signature header for a body sent at a moment."""
    stamp = int(moment.timestamp())
    mac = hmac.new(secret.encode(), f"{stamp}.".encode() + body, "sha256").hexdigest()
    return f"t={stamp},v1={mac}"


async def _claim(db: Database, now: datetime) -> tuple[AlertDelivery, AlertEndpoint] | None:
    async with db.begin() as session:
        query = (
            sa.select(AlertDelivery, AlertEndpoint)
            .join(AlertEndpoint, AlertEndpoint.id == AlertDelivery.endpoint_id)
            .where(AlertDelivery.state == "pending", AlertDelivery.next_at <= now)
            .order_by(AlertDelivery.next_at, AlertDelivery.id)
            .limit(1)
            .with_for_update(skip_locked=True, of=AlertDelivery)
        )
        row = (await session.execute(query)).one_or_none()
        if row is None:
            return None
        delivery, endpoint = row
        delivery.attempts += 1
        delivery.next_at = now + timedelta(seconds=CLAIM_S)
        return delivery, endpoint


async def _failed(db: Database, delivery: AlertDelivery, error: str, now: datetime) -> None:
    if delivery.attempts >= MAX_ATTEMPTS:
        log.error("alert %s is given up after %d attempts", delivery.id, delivery.attempts)
        await _mark(db, delivery.id, state="failed", last_error=error)
        return
    wait = min(FIRST_RETRY_S * 2 ** (delivery.attempts - 1), MAX_RETRY_S)
    await _mark(db, delivery.id, state="pending", last_error=error, next_at=now + timedelta(seconds=wait))


async def _mark(db: Database, delivery_id: str, **values: Any) -> None:
    async with db.begin() as session:
        await session.execute(sa.update(AlertDelivery).where(AlertDelivery.id == delivery_id).values(**values))
