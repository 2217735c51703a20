"""What every command shares: the settings it was given and a way to run async work."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from gateway.settings import Settings, load_settings

T = TypeVar("T")


class CliContext:
    """Settings are read when first asked for, so that `--help` works with a broken weir.toml."""

    def __init__(self, config: Path | None, flags: dict[str, Any]) -> None:
        self._config = config
        self._flags = flags
        self._settings: Settings | None = None

    def with_flags(self, flags: dict[str, Any]) -> Settings:
        """Settings with a command's own flags over the group's. Raises: SettingsError."""
        given = {name: value for name, value in flags.items() if value is not None}
        return load_settings(toml_path=self._config, flags={**self._flags, **given})

    @property
    def settings(self) -> Settings:
        if self._settings is None:
            self._settings = self.with_flags({})
        return self._settings

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)
