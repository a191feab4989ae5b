"""The result of an operation: a decision, or the error that the client is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from barnabas.wire.errors import ErrorCode

R = TypeVar("R")


class Decision(msgspec.Struct, Generic[R], frozen=True):
    """`records` are metadata records (wire/messages/metadata_records.py) that commit together or not at all;
    `response` goes to the caller when they have been committed and replayed. No records: it goes at once."""

    records: Sequence[msgspec.Struct]
    response: R


class ApiError(Exception):
    """Kafka's error code and message for a request, or a part of one, that is not carried out."""

    def __init__(self, error: ErrorCode, message: str | None) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
