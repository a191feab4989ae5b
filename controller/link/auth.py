"""Mutual authentication with the cluster's secret, and a seal on every frame.

Both hellos carry a nonce. Each side derives two keys, one for each direction, from the secret and the bytes of both hellos. It
seals every later frame: HMAC-SHA256, cut to 16 bytes, over the frame's number, header and payload. The first sealed frame of a
side authenticates it. A frame that was recorded on another link, repeated, reordered, reflected or changed does not verify. The
content is not encrypted: TLS does that.

The inter-broker listener authenticates in the same way (broker/cluster/inter_broker_authentication.py) with other keys: a seal
of one kind of listener does not verify on the other.

Sources: RFC 2104 (HMAC), RFC 5869 (extract and expand).
"""

from __future__ import annotations

import hmac
from typing import Final

SEAL_BYTES: Final = 16
NONCE_BYTES: Final = 16

CONTROLLER_LINK: Final = b"barnabas controller link 1"
INTER_BROKER_LISTENER: Final = b"barnabas inter-broker listener 1"
_DIALER: Final = b"dialer to listener"
_LISTENER: Final = b"listener to dialer"


class Seal:
    """Computes or verifies the seals of one direction of one link."""

    __slots__ = ("_key", "_number")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def next(self, head: bytes, payload: bytes) -> bytes:
        """The seal of the next frame."""
        content = self._number.to_bytes(8, "big") + head + payload
        self._number += 1
        return hmac.digest(self._key, content, "sha256")[:SEAL_BYTES]

    def verify(self, head: bytes, payload: bytes, seal: bytes) -> bool:
        """Whether the next frame is this one."""
        return hmac.compare_digest(self.next(head, payload), seal)


def seals(
    secret: bytes,
    dialer_hello: bytes,
    listener_hello: bytes,
    *,
    dialed: bool,
    purpose: bytes = CONTROLLER_LINK,
) -> tuple[Seal, Seal]:
    """The seals of (sent frames, received frames). `dialed`: this side has made the connection."""
    extracted = hmac.digest(purpose, secret, "sha256")
    hellos = b"".join(len(hello).to_bytes(4, "big") + hello for hello in (dialer_hello, listener_hello))
    to_listener = Seal(hmac.digest(extracted, _DIALER + b"\0" + hellos, "sha256"))
    to_dialer = Seal(hmac.digest(extracted, _LISTENER + b"\0" + hellos, "sha256"))
    return (to_listener, to_dialer) if dialed else (to_dialer, to_listener)
