"""The settings reference is the definitions themselves."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from gateway.cli import root

ROOT = Path(__file__).resolve().parents[2]


def test_settings_page_is_what_the_command_prints() -> None:
    printed = CliRunner().invoke(root, ["settings", "--markdown"], catch_exceptions=False).output
    assert (ROOT / "docs" / "operator" / "settings.md").read_text() == printed
