"""A tenant's cache policy as callers send it. No upstream or HTTP comes with it: `weir tenants` starts with this."""

from __future__ import annotations

from typing import Any

import msgspec

from billing.errors import Invalid
from cache.policy import TenantCachePolicy


def read_cache_policy(fields: dict[str, Any], *, whose: str) -> TenantCachePolicy:
    """Raises: Invalid for an unknown field or a value outside its bounds."""
    try:
        return msgspec.convert(fields, TenantCachePolicy)
    except msgspec.ValidationError as exc:
        raise Invalid(f"cache_policy of {whose[:80]!r}: {exc}", param="cache_policy") from exc
