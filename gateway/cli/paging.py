"""Reads every page of a keyset-paged service function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar


class HasId(Protocol):
    """A row that pages go by."""

    @property
    def id(self) -> str: ...


R = TypeVar("R", bound=HasId)


async def fetch_all(page: Callable[[str | None], Awaitable[list[R]]]) -> list[R]:
    """Calls `page(after)` until it returns nothing."""
    rows: list[R] = []
    while True:
        found = await page(rows[-1].id if rows else None)
        if not found:
            return rows
        rows.extend(found)
