"""What an operation raises when a request's answer is an error."""

from __future__ import annotations

from barnabas.wire.errors import ErrorCode


class Refused(Exception):
    """The error code and the text that the client gets."""

    def __init__(self, error: ErrorCode, message: str | None) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
