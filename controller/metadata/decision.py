"""The result of an operation: a decision, or an error for the client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from barnabas.wire.errors import ErrorCode

R = TypeVar("R", covariant=True)


class Decision(msgspec.Struct, Generic[R], frozen=True):
    """`records` (wire/messages/metadata_records.py) are committed together or not at all. The caller gets `response` when they
    have been committed and replayed; at once when there are none."""

    records: Sequence[msgspec.Struct]
    response: R


class ApiError(Exception):
    """Kafka's error code and message for a request, or a part of one, that fails."""

    def __init__(self, error: ErrorCode, message: str | None) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
