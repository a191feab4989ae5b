"""Refusing a peer: the codes, and a log that says each thing once and not at every attempt."""

from __future__ import annotations

import logging
from typing import Final

from barnabas.controller.link.messages import Refused
from barnabas.storage.runtime import Runtime

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
REPEAT_S: Final = 60.0
KINDS_MAX: Final = 1000  # different lines remembered

log = logging.getLogger("barnabas.link")


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


class RefusalLog:
    """Warnings about peers; the same one again only after REPEAT_S, with how often it has been true since."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._said: dict[tuple[str, str], tuple[float, int]] = {}

    def warn(self, where: str, text: str) -> None:
        """`where`: the peer's host, without the port that changes with each connection."""
        now = self._runtime.monotonic()
        said_at, count = self._said.get((where, text), (-REPEAT_S, 0))
        if now - said_at < REPEAT_S:
            self._said[where, text] = said_at, count + 1
            return
        if len(self._said) >= KINDS_MAX:
            self._said.clear()
        self._said[where, text] = now, 0
        log.warning("%s: %s%s", where, text, f" ({count} times more since)" if count else "")
