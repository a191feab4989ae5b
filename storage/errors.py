"""The errors of storage: each carries the error code for the client, and its text."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Final

from barnabas.wire.errors import ErrorCode


class StorageError(Exception):
    """An operation on a log that was rejected or has failed. `record_errors`: (batch index, message), where Kafka has them."""

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


class WouldWait(Exception):
    """Reading would wait for the disk. `prepare` waits, in a thread; then the read can be tried again. `is_remote`: it waits for
    an object store, so it needs a thread of those, and may take long."""

    def __init__(self, prepare: Callable[[], object], *, is_remote: bool = False) -> None:
        super().__init__("not in memory")
        self.prepare = prepare
        self.is_remote = is_remote


_TRANSIENT: Final = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EINTR,
        errno.EAGAIN,
    }
)


def is_transient(error: OSError) -> bool:
    """Whether the disk works, and only room, descriptors or memory are short.

    Kafka takes a log directory offline for these too, and stops when it was the last one. Here the request fails, and the
    next one may succeed.
    """
    return error.errno in _TRANSIENT


class LogDirectoryError(Exception):
    """A log directory can't be used at all; the text names the directory and the property to change."""


class LogDirectoryOffline(LogDirectoryError):
    """The disk of a log directory fails; the broker may run on its other directories."""
