"""What the SASL mechanisms have in common: how one authentication proceeds and ends, and what a listener is configured with.

A mechanism is a state machine without I/O (plain.py, scram.py, oauthbearer.py). broker/network/sasl_authenticator.py carries its
tokens in Kafka's requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias

import msgspec

from barnabas.broker.security.caller import Principal

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
SASL_NAME: Final = rb"[^,\x00]++"  # the pattern of a name in a message; see sasl_name


class SaslFailure(Exception):
    """The client is refused. `text` is for the client; None: it learns only that its credentials are invalid, whatever is wrong.
    `reason`: for the log, where it says more."""

    def __init__(self, text: str | None = None, reason: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.reason = reason or text


class ThreadNeeded(Exception):
    """`work` takes milliseconds: after a thread has done it, `evaluate` is called again with the same token."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.work = work


def sasl_name(text: bytes) -> str:
    """A name of a message, in which `,` is written =2C and `=` is written =3D (RFC 5802). SaslFailure."""
    if text.count(b"=") != text.count(b"=2C") + text.count(b"=3D"):
        raise SaslFailure
    try:
        return text.replace(b"=2C", b",").replace(b"=3D", b"=").decode()
    except UnicodeDecodeError:
        raise SaslFailure from None


class Identity(msgspec.Struct, frozen=True):
    """Who a client has proven to be."""

    principal: Principal
    expires_at_ms: int | None = None  # wall-clock time at which the credential ends; None: never
    is_token: bool = False  # a delegation token


class SaslServer(Protocol):
    """The server's side of one authentication."""

    identity: Identity | None  # once the exchange is complete

    def evaluate(self, token: bytes) -> bytes:
        """The answer to the client's next token. SaslFailure ends the exchange; ThreadNeeded leaves it as it is."""
        ...


NewSaslServer: TypeAlias = Callable[[], SaslServer]


class Mechanism(msgspec.Struct, frozen=True):
    """One mechanism of one listener."""

    new_server: NewSaslServer
    max_reauth_ms: int  # connections.max.reauth.ms; 0: no limit


class SaslListener(msgspec.Struct, frozen=True):
    """What a listener asks of its clients."""

    mechanisms: Mapping[str, Mechanism]  # by name
    receive_max_bytes: int  # of a frame before its client is authenticated
    failure_delay_s: float  # before a failure is answered
