"""What the controller raises and answers: refusals with Kafka's code and text, and metadata that can't be read."""

from __future__ import annotations

from barnabas.wire.errors import ErrorCode


class MetadataError(Exception):
    """The metadata on disk can't be used. The text names the file, the place in it and what to do."""


class NotController(MetadataError):
    """This node's controller does not decide, or has ceased to before the change was committed. Whether what was
    under way then is committed by its successor is not known here."""


class Refusal(Exception):
    """An operation that may not be done: the error code and the message that the client is shown."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
