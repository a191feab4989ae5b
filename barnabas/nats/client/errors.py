"""Errors of a NATS client's calls, and causes of a connection's end."""

from __future__ import annotations

from typing import Final

import msgspec


class NatsError(Exception):
    """Base of the errors that the client's calls raise or pass to callbacks."""


class NotConnected(NatsError):
    """There is no connection to a server now, or it ended while something waited for an answer."""


class OutputFull(NatsError):
    """Too much waits to be written; try again when it has been written (ClientListener.drained)."""


class NoResponders(NatsError):
    """The subject of a request has no subscriber."""


class RequestTimedOut(NatsError):
    """No reply arrived in time."""


class NatsSettingsError(NatsError):
    """Invalid settings of a connection, such as a missing credentials file. The text says what to do."""


# Kinds of causes.
SLOW_CONSUMER: Final = (
    "slow consumer"  # the server ended the connection, because the client did not read fast enough
)
AUTHORIZATION: Final = "authorization"
SERVER_GONE: Final = "server gone"  # the connection ended, or could not be made again
NOT_REACHED: Final = "not reached"  # no server could be reached since the start
STALE: Final = "stale"  # nothing arrives any more, not even answers to pings
LAME_DUCK: Final = "lame duck"  # the server has announced that it shuts down
PROTOCOL: Final = "protocol"  # the server does not speak the NATS protocol
REFUSED: Final = "refused"  # an -ERR of another kind, its text in the detail
SETTINGS: Final = "settings"  # NatsSettingsError
STOPPED: Final = "stopped"  # NatsClient.stop


class Cause(msgspec.Struct, frozen=True):
    """Why a connection ended, or was not made: one of the kinds above, and details for a log."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


_AUTHORIZATION_TEXTS: Final = (
    "authorization violation",
    "authentication",  # User Authentication Expired, Account Authentication Expired, Authentication Timeout ...
    "no credentials",
)
TOO_MANY_SUBSCRIPTIONS: Final = "maximum subscriptions exceeded"  # how it begins, in lower case
_KEPT_TEXTS: Final = (
    "permissions violation",
    "invalid subject",
    "invalid publish subject",
    TOO_MANY_SUBSCRIPTIONS,
)


def cause_of(error_text: str) -> Cause | None:
    """The cause of the connection's end that follows from the server's -ERR; None when the connection stays (a subscription
    or a message was refused)."""
    text = error_text.lower()
    if text.startswith(_KEPT_TEXTS):
        return None
    if "slow consumer" in text:
        return Cause(SLOW_CONSUMER, error_text)
    if any(known in text for known in _AUTHORIZATION_TEXTS):
        return Cause(AUTHORIZATION, error_text)
    if "stale connection" in text:
        return Cause(STALE, f"the server has had no answer to its pings: {error_text}")
    return Cause(REFUSED, error_text)
