"""A log line is one line, whatever a caller put into it."""

from __future__ import annotations

import logging
import sys

import msgspec
import pytest

from gateway.logs import JsonFormatter, TextFormatter

CONTROLS = ["\n", "\r", "\x00", "\x1b", "\x7f", "\x85", "\x9b", "\u2028", "\u2029"]


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("gateway.access", logging.INFO, __file__, 1, message, args, None)
    made.__dict__.update(extra)
    return made


@pytest.mark.parametrize("control", CONTROLS)
def test_control_characters_are_escaped_in_message_and_extras(control: str) -> None:
    line = TextFormatter().format(record("GET %s 404", f"/a{control}b", note=f"c{control}d"))

    assert control not in line
    escaped = control.encode("unicode_escape").decode()
    assert line.endswith(f"GET /a{escaped}b 404 note=c{escaped}d")


def test_what_is_no_control_character_stays() -> None:
    assert TextFormatter().format(record("größe 你好 \\n")).endswith("gateway.access: größe 你好 \\n")


def test_a_fault_of_ours_keeps_its_traceback_lines() -> None:
    try:
        int("x")
    except ValueError:
        failed = record("failed")
        failed.exc_info = sys.exc_info()

    lines = TextFormatter().format(failed).splitlines()

    assert lines[1].startswith("Traceback")
    assert lines[-1].startswith("ValueError: ")


@pytest.mark.parametrize("control", CONTROLS[:4])
def test_json_lines_cannot_be_broken(control: str) -> None:
    line = JsonFormatter().format(record("GET %s", f"/a{control}b"))

    assert control not in line
    assert msgspec.json.decode(line)["message"] == f"GET /a{control}b"
