"""Named documents that change while the gateway runs: routes, aliases, upstreams. Audited, versioned, hot.

Billing does not read into them; the gateway validates a body before it sets one, and hears of changes as kind `config`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing import audit
from billing.clock import utc_now
from billing.db import note_change
from billing.errors import Conflict, Invalid, NotFound
from billing.principal import Actor
from billing.tables import ConfigItem

MAX_BODY_BYTES = 256 * 1024


async def set_item(
    session: AsyncSession, actor: Actor, kind: str, name: str, body: dict[str, Any], *, version: int | None = None
) -> ConfigItem:
    """Create or replace. Operators only. With `version`, only what is still at that version is replaced.

    Raises: Forbidden, Invalid (too large, empty name), Conflict when another version is in force.
    """
    audit.require_operator(actor)
    if not 1 <= len(name) <= 200:
        raise Invalid(f"name: must be 1 to 200 characters, got {len(name)}", param="name")
    size = len(msgspec.json.encode(body))
    if size > MAX_BODY_BYTES:
        raise Invalid(f"{kind} {name!r}: {size} bytes are more than {MAX_BODY_BYTES}", param="body")
    item = await session.get(ConfigItem, (kind, name), with_for_update=True)
    old = item.body if item is not None else None
    current = item.version if item is not None else 0
    if version is not None and version != current:
        raise Conflict(f"{kind} {name!r} is at version {current}, not {version}")
    if item is not None and old == body:
        return item
    if item is None:
        item = ConfigItem(kind=kind, name=name, body=body, version=0, updated_at=utc_now())
        session.add(item)
    item.body, item.version, item.updated_at = body, current + 1, utc_now()
    await session.flush()
    audit.record(session, actor, f"{kind}.updated", name, detail={"old": old, "new": body})
    note_change(session, "config", kind)
    return item


async def remove_item(session: AsyncSession, actor: Actor, kind: str, name: str) -> None:
    """Operators only. Raises: Forbidden, NotFound."""
    audit.require_operator(actor)
    item = await session.get(ConfigItem, (kind, name))
    if item is None:
        raise NotFound(f"no such {kind}: {name[:80]!r}")
    audit.record(session, actor, f"{kind}.deleted", name, detail={"old": item.body})
    await session.delete(item)
    note_change(session, "config", kind)


async def list_items(session: AsyncSession, kind: str) -> list[ConfigItem]:
    """All of a kind by name; for the gateway's own reading, so without an actor."""
    return list(await session.scalars(sa.select(ConfigItem).where(ConfigItem.kind == kind).order_by(ConfigItem.name)))
