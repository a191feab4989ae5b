"""The result of an operation: a decision, or an error for the client."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Generic, TypeVar

import msgspec

from barnabas.wire.errors import ErrorCode

R = TypeVar("R", covariant=True)
T = TypeVar("T")

Steps = Generator[msgspec.Struct, None, T]
"""What an operation that may change every partition returns in place of a decision: it yields its records and returns the response.
They are committed in this order, in groups of at most STEP_RECORDS (controller.py), each decided when the one before it is committed;
the image has them by then, and no other operation is decided in between. When the controller is lost, or a group can't be committed,
the first groups stay: each beginning of the records has to be a valid change, and something else has to make the rest. In Kafka these
are the results that are not atomic (ControllerResult.of)."""


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
