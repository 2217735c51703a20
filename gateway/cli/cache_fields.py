"""`--cache FIELD=VALUE`: a cache policy's fields as words of a command."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from billing.errors import Invalid

cache_option = click.option(
    "--cache",
    "cache_fields",
    multiple=True,
    metavar="FIELD=VALUE",
    help="A field of its cache policy, such as ttl_s=600; FIELD= alone takes it out. May be given several times.",
)


def with_fields(policy: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """`policy` with the words applied, values unchecked. Raises: Invalid for a word that is no FIELD=VALUE."""
    changed = dict(policy)
    for text in fields:
        name, equals, value = text.partition("=")
        if not equals:
            raise Invalid(f"cache: {text[:80]!r} is not FIELD=VALUE", param="cache")
        if value:
            changed[name] = _value(value)
        else:
            changed.pop(name, None)
    return changed


def _value(text: str) -> Any:
    """As JSON where it is any: numbers, true, false, null; else the text itself."""
    try:
        return msgspec.json.decode(text.encode())
    except msgspec.DecodeError:
        return text
