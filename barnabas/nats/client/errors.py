"""What can go wrong between the broker and a nats-server: errors of single calls, and why a connection has ended."""

from __future__ import annotations

from typing import Final

import msgspec


class NatsError(Exception):
    """Base of what the client's calls raise and hand to callbacks."""


class NotConnected(NatsError):
    """There is no connection to a server now, or it ended while something waited for an answer."""


class OutputFull(NatsError):
    """So much waits to be written already that no more is taken; try again when it has been written."""


class NoResponders(NatsError):
    """Nobody is subscribed to the subject of a request."""


class RequestTimedOut(NatsError):
    """No reply came in time."""


class NatsSettingsError(NatsError):
    """The settings of a connection can't be used, such as a credentials file that is not there. The text says what to do."""


# Kinds of causes
SLOW_CONSUMER: Final = "slow consumer"  # the server cut us off, because we did not read fast enough
AUTHORIZATION: Final = "authorization"
SERVER_GONE: Final = "server gone"  # the connection ended, or could not be made again
NOT_REACHED: Final = "not reached"  # there has been no connection yet, to no server
STALE: Final = "stale"  # nothing came any more, not even answers to our pings
LAME_DUCK: Final = "lame duck"  # the server said that it will go, and the client went elsewhere
PROTOCOL: Final = "protocol"  # what came is not the NATS protocol
REFUSED: Final = "refused"  # an -ERR of another kind, its text in the detail
SETTINGS: Final = "settings"  # our own
STOPPED: Final = "stopped"  # by us


class Cause(msgspec.Struct, frozen=True):
    """Why a connection ended, or was not made: one of the kinds above, and words for a log."""

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
    """What an -ERR of the server means for the connection; None when it lives on (a subscription or a message was refused)."""
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
