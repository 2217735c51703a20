"""Reads a page's fenced blocks, and compares what a command printed with what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANY = "…"  # in a line: any text; alone on a line: any number of lines


class Step(msgspec.Struct, frozen=True):
    """A command of a console block and the output shown below it; empty where the page shows none."""

    command: str
    output: str


def blocks(page: str, language: str) -> list[str]:
    """The contents of the page's fenced blocks of a language, in order."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [match[2] for match in _BLOCK.finditer(text) if match[1] == language]


def steps(page: str) -> list[Step]:
    """Every `$ command` of the page's console blocks, in order."""
    found = []
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append(Step(command, output.strip("\n")))
    return found


def fits(shown: str, printed: str) -> bool:
    """True when `printed` is what the page shows."""
    pattern = ""
    for line in shown.split("\n"):
        if line.strip() == ANY:
            pattern += r"(?:.*\n)*?"
        else:
            pattern += r".*".join(re.escape(part) for part in line.rstrip().split(ANY)) + r"[ ]*\n"
    return re.fullmatch(pattern, printed.rstrip("\n") + "\n") is not None
