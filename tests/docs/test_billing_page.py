"""docs/operator/billing.md: its commands run, in their order, in an empty folder, and print what it shows."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from billing.alerts import sign
from billing.clock import utc_now
from billing.quotas.registry import QUOTAS
from gateway.cli import root
from tests.docs.pages import ROOT, blocks, fits, steps

PAGE = "operator/billing.md"


def test_every_command_works_and_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [file] = blocks(PAGE, "toml")
    (tmp_path / "books.toml").write_text(file)
    commands = steps(PAGE)
    assert len(commands) > 30
    for step in commands:
        words = shlex.split(step.command)
        assert words[0] == "weir"
        done = CliRunner().invoke(root, words[1:])
        assert done.exit_code == 0, f"{step.command}: {done.output} {done.exception!r}"
        assert not step.output or fits(step.output, done.output), f"{step.command} printed:\n{done.output}"


def test_page_names_every_quota() -> None:
    text = (ROOT / "docs" / PAGE).read_text()
    assert [name for name in QUOTAS if f"`{name}`" not in text] == []


def test_pages_receiver_accepts_what_is_signed_and_nothing_else() -> None:
    [snippet] = blocks(PAGE, "python")
    scope: dict[str, object] = {}
    exec(snippet, scope)
    is_ours = scope["is_ours"]
    assert callable(is_ours)
    header = sign(b"{}", "whsec_x", utc_now())
    assert is_ours("whsec_x", header, b"{}")
    assert not is_ours("whsec_x", header, b"{ }")
    assert not is_ours("whsec_y", header, b"{}")
    assert not is_ours("whsec_x", f"t={int(time.time()) - 3600},v1={header.partition('v1=')[2]}", b"{}")


def test_unlike_output_is_told_apart() -> None:
    assert fits("a …c\n…\nlast", "a b c\nany\nnumber\nlast\n")
    assert fits("…\nlast", "last")
    assert not fits("a …c", "a b d")
    assert not fits("a", "a\nb")
