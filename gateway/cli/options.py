"""Flags made from the definitions of the settings, so that none is written twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from engine.config import DEPRECATED
from gateway.settings import SettingInfo, all_settings, bare_type

F = TypeVar("F", bound=Callable[..., Any])


def setting_options(*, exclude: Iterable[str] = ()) -> Callable[[F], F]:
    """Adds one option a setting; switches get a --no- form. Values stay text until `load_settings` checks them."""

    def decorate(function: F) -> F:
        for info in reversed(list(all_settings().values())):
            if info.name not in exclude:
                function = _option(info)(function)
        for name, reason in DEPRECATED.items():
            flag = "--" + name.replace("_", "-")
            function = click.option(flag, is_flag=True, expose_value=False, hidden=True, callback=_warn(flag, reason))(
                function
            )
        return function

    return decorate


def _option(info: SettingInfo) -> Callable[[F], F]:
    bare = bare_type(info.type)
    if bare is bool:
        return click.option(f"{info.flag}/--no-{info.flag[2:]}", info.name, default=None, help=info.description)
    choice = get_args(bare) if get_origin(bare) is Literal else ()
    metavar = "|".join(map(str, choice)) or None
    return click.option(info.flag, info.name, metavar=metavar, default=None, help=f"{info.description}")


def _warn(flag: str, reason: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def callback(_ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        if value:
            click.echo(f"weir: {flag} means nothing here ({reason}); ignored", err=True)

    return callback
