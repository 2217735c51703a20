"""Documentation names only what exists: files, links, commands of `weir`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")], key=str)
_FILE = re.compile(
    r"`((?:gateway|engine|kernels|cache|billing|migrations|benchmarks|tests)/[\w/.-]+\.\w+)(?::[\w()]+)?`"
)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
_WEIR = re.compile(r"(?:^|[`$ ])\.?(?:venv/bin/)?weir ([a-z]+)\b", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_link_and_command_named_on_a_page_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [name for name in _FILE.findall(text) if not (ROOT / name).exists() and "<" not in name]
    missing += [link for link in _LINK.findall(text) if not (page.parent / link).exists()]
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
    missing += [f"weir {word}" for word in _WEIR.findall(code) if word not in COMMANDS]
    assert missing == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        waiting.extend((page.parent / link).resolve() for link in _LINK.findall(page.read_text(encoding="utf-8")))
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached] == []
