"""What several subjects' bodies share."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")

PageSize = Annotated[int, Meta(ge=1, le=999)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Slug = Annotated[str, Meta(min_length=1, max_length=63)]
Ref = Annotated[str, Meta(min_length=1, max_length=200)]  # an id, or a slug where the field says so
Tier = Literal["flex", "default", "priority"]
Priority = Annotated[int, Meta(ge=0, le=2)]  # of the engine; smaller is more urgent
Usd = Annotated[str, Meta(min_length=1, max_length=40)]
Moment = Annotated[datetime, Meta(tz=True)]
Tags = Annotated[dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]


class Page(msgspec.Struct, Generic[T], kw_only=True):
    """A page by keyset: pass `last_id` as `after` for the next one while `has_more`."""

    data: list[T]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class PageQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`after` is the last id of the page before."""

    after: str | None = None
    limit: PageSize = 100
