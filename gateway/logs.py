"""Logging set-up: text for people or one JSON object a line. Request bodies and keys are never logged."""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime

import msgspec

from gateway.settings import Settings

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}

# What ends a line or moves a terminal's cursor: C0, DEL, C1 and Unicode's two line ends.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def escape_controls(text: str) -> str:
    """`text` on one line: control characters as their escapes (`\\n`, `\\x1b`, `\\u2028`)."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class JsonFormatter(logging.Formatter):
    """One JSON object a record; `extra` fields become keys."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update({key: value for key, value in record.__dict__.items() if key not in _STANDARD})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """`HH:MM:SS level logger: message key=value …`; whatever a caller sent stays on the record's one line."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():<7} {record.name}:"
        extra = [f"{key}={value}" for key, value in record.__dict__.items() if key not in _STANDARD]
        line = escape_controls(" ".join([head, record.getMessage(), *extra]))
        if not record.exc_info:
            return line
        traceback = self.formatException(record.exc_info).split("\n")
        return "\n".join([line, *map(escape_controls, traceback)])


def configure_logging(settings: Settings) -> None:
    """Sets the root logger; called once, by `weir serve` and by worker processes."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for noisy in (
        "uvicorn.access",
        "uvicorn.error",
        "httpx",
        "httpcore",
        "aiosqlite",
        "alembic",
        "sentence_transformers",
    ):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
