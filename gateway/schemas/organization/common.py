"""Lists and pages."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")


class ObjectList(msgspec.Struct, Generic[T], kw_only=True):
    """`last_id` is the next page's `after` while `has_more`."""

    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class ListQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class Deleted(msgspec.Struct, kw_only=True):
    id: str
    object: str
    deleted: Literal[True] = True


def unix(moment: datetime) -> int:
    """Whole Unix seconds, as OpenAI's times are."""
    return int(moment.timestamp())


def unix_or_none(moment: datetime | None) -> int | None:
    """As `unix`; None stays."""
    return None if moment is None else unix(moment)
