"""Refusing a peer: the codes, and the error."""

from __future__ import annotations

from typing import Final

from barnabas.controller.link.messages import Refused

VERSION: Final = "version"
AUTHENTICATION: Final = "authentication"
MALFORMED: Final = "malformed"
CLUSTER: Final = "cluster"
NODE_ID: Final = "node_id"
VOTERS: Final = "voters"
DIRECTORY: Final = "directory"
BUSY: Final = "busy"
SELF: Final = "self"  # the node has reached itself
GENESIS: Final = "genesis"

REASON_LENGTH_MAX: Final = 1000


class LinkRefused(Exception):
    """A link is not to be: by this side, unless `by_peer`."""

    def __init__(self, code: str, reason: str, *, passing: bool = False, by_peer: bool = False) -> None:
        reason = "".join(letter if letter.isprintable() else "?" for letter in reason[:REASON_LENGTH_MAX])
        super().__init__(reason)
        self.code = code
        self.reason = reason  # parts of it may come from the peer
        self.passing = passing
        self.by_peer = by_peer

    @classmethod
    def from_peer(cls, refused: Refused) -> LinkRefused:
        return cls(refused.code, refused.reason, passing=refused.passing, by_peer=True)

    def message(self) -> Refused:
        return Refused(self.code, self.reason, self.passing)


def busy(reason: str) -> LinkRefused:
    """Not now."""
    return LinkRefused(BUSY, reason, passing=True)
