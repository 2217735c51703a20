"""The `weir` field of an answer."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from gateway.schemas.common import WeirNote


def note(
    *,
    truncated_reason: str | None = None,
    served_by: str | None = None,
    estimated: bool = False,
    dropped_turns: int = 0,
) -> WeirNote | UnsetType:
    """The field, left out when there is nothing to say."""
    if not (truncated_reason or served_by or estimated or dropped_turns):
        return UNSET
    return WeirNote(
        truncated_reason=truncated_reason,
        served_by=served_by,
        estimated_usage=estimated or None,
        dropped_turns=dropped_turns or None,
    )
