"""What storage raises: every error carries the code that a client is told, and the text that goes with it."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.wire.errors import ErrorCode


class StorageError(Exception):
    """A refused or failed operation on a log. `record_errors` names (batch index, message) where Kafka does."""

    def __init__(
        self, error: ErrorCode, message: str, record_errors: Sequence[tuple[int, str | None]] = ()
    ) -> None:
        super().__init__(message)
        self.error = error
        self.record_errors = list(record_errors)


class OffsetOutOfRange(StorageError):
    """A read below the log's start or beyond its end."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, message)


class LogDirectoryError(Exception):
    """A log directory can't be used at all; the text names the directory and the property to change."""
