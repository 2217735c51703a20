"""Ids of operations in the OpenAPI document, for handlers that stand at several paths: each id may appear once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def at_each_path(base: str) -> Callable[..., str]:
    """`base` at the path of that name, `<base>At<Path>` at the others: `Health` at /health, `HealthAtPing` at /ping."""

    def operation_id(_handler: Any, _method: Any, path_components: list[Any]) -> str:
        path = "".join(str(part).title() for part in path_components)
        return base if path == base else f"{base}At{path}"

    return operation_id
