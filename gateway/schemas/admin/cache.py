"""The answer cache of one tenant."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from cache.invalidation import Removed, Usage
from gateway.schemas.admin.common import Ref

Word = Annotated[str, Meta(min_length=1, max_length=512)]


class CacheInvalidate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which answers to take back: those that meet every field given, all of the tenant's where none is."""

    project: Ref | None = None
    model: Word | None = None
    tag: Word | None = None
    end_user: Word | None = None
    dry_run: bool = False

    def chosen(self) -> dict[str, Any]:
        """The fields given, for the audit log."""
        return {
            name: value
            for name, value in msgspec.structs.asdict(self).items()
            if name != "dry_run" and value is not None
        }


__all__ = ["CacheInvalidate", "Removed", "Usage"]
