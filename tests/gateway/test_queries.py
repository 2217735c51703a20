"""A query string as a struct: every spelling of a list, nothing unknown ignored."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from gateway.errors import InvalidRequest
from gateway.queries import MAX_FIELDS, decode_query


class Range(msgspec.Struct, forbid_unknown_fields=True):
    gte: int | None = None


class Filters(msgspec.Struct, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=9)] = 5
    group_by: tuple[str, ...] = ()
    at: Range | None = None
    batch: bool | None = None


@pytest.mark.parametrize(
    "query",
    [
        b"group_by=model&group_by=project_id",
        b"group_by[]=model&group_by[]=project_id",
        b"group_by%5B%5D=model&group_by%5B%5D=project_id",
        b"group_by[0]=model&group_by[1]=project_id",
        b"group_by=model&group_by[]=project_id",
    ],
)
def test_list_is_read_bare_bracketed_indexed_and_repeated(query: bytes) -> None:
    assert decode_query(query, Filters).group_by == ("model", "project_id")


def test_numbers_booleans_and_objects_are_read_and_the_rest_keeps_its_default() -> None:
    filters = decode_query(b"at[gte]=17&batch=true", Filters)
    assert filters == Filters(limit=5, at=Range(gte=17), batch=True)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        (b"limt=1", "limt"),
        (b"limit=0", "limit"),
        (b"limit=10", "limit"),
        (b"limit=x", "limit"),
        (b"limit=1&limit=2", "limit"),
        (b"limit[x]=1", "limit"),
        (b"at[lte]=1", "at.lte"),
        (b"at=1", "at"),
        (b"batch=perhaps", "batch"),
        (b"batch=null", "batch"),
        (b"batch=NULL", "batch"),
    ],
)
def test_what_does_not_fit_is_400_and_named(query: bytes, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_query(query, Filters)
    assert refused.value.param == param


def test_flood_of_parameters_is_refused_unread() -> None:
    with pytest.raises(InvalidRequest):
        decode_query(b"&".join([b"group_by=x"] * (MAX_FIELDS + 1)), Filters)
