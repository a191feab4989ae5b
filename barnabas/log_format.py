"""The format of the log: lines of text, or of JSON (barnabas.log.format)."""

from __future__ import annotations

import logging
import sys
from typing import Final

import msgspec

from barnabas.runtime.repeated_warnings import one_line

TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_SECONDS: Final = "%Y-%m-%dT%H:%M:%S"


class TextFormatter(logging.Formatter):
    """One line for each record, and a traceback below it: what clients name must not pass for a line of the broker's own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        record.message = one_line(record.message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One object a line: `timestamp` (local time with its offset), `level`, `logger`, `message`, and `exception` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        at = self.formatTime(record, _SECONDS)
        offset = self.formatTime(record, "%z")
        line = {
            "timestamp": f"{at}.{int(record.msecs):03}{offset}",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def log_to_stderr(level: int) -> None:
    """Write the log to standard error from now on, as text."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter(TEXT))
    logging.basicConfig(level=level, handlers=[handler])


def use_json() -> None:
    """Write what is logged from now on as JSON."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter())
