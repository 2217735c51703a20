"""Logging set-up: text for people or one JSON object a line. Request bodies and keys are never logged."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

from gateway.settings import Settings

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


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
    """`HH:MM:SS level logger: message key=value …`"""

    def format(self, record: logging.LogRecord) -> str:
        line = (
            f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():<7} {record.name}: {record.getMessage()}"
        )
        extra = " ".join(f"{key}={value}" for key, value in record.__dict__.items() if key not in _STANDARD)
        line = f"{line} {extra}" if extra else line
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


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
