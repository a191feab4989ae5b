"""The way into a partition whose leadership has just begun, until nothing is left to look at.

Two things are looked at: whether a message is in the log already, because the leader before was faster with it than the
server was with us; and whether the ids of the messages that came lately are known yet (ingest/dedup_rebuild.py). From the first
message with an id or an expectation on, everything waits for that, so that nothing overtakes it; before, nothing has to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.nats.ingest.dedup import message_id
from barnabas.nats.ingest.expectations import expects

if TYPE_CHECKING:
    from barnabas.nats.core.ledger import Side
    from barnabas.nats.core.shadow import Asked
    from barnabas.nats.ingest.dedup_rebuild import DedupRebuild
    from barnabas.nats.ingest.lane import Lane


class Entrance:
    """See the module. `store_asking(tail, asked)` deals with messages that ask for something."""

    __slots__ = (
        "_ahead",
        "_is_blocked",
        "_is_rebuilt",
        "_lane",
        "_store_asking",
        "_waiting",
        "rebuild",
        "size",
    )

    def __init__(
        self, lane: Lane, ahead: Side[None] | None, store_asking: Callable[[bytes, Asked], object]
    ) -> None:
        self.rebuild: DedupRebuild | None = None
        self.size = 0  # bytes that wait
        self._lane = lane
        self._ahead = ahead
        self._store_asking = store_asking
        self._is_rebuilt = False
        self._is_blocked = False
        self._waiting: list[tuple[bytes, Asked | None]] = []

    @property
    def is_open(self) -> bool:
        """Whether it is of no use any more."""
        return self._is_rebuilt and not self._ahead

    @property
    def is_through(self) -> bool:
        """Whether all that has come is in the log, and what is there has come."""
        return not self._waiting and not self._ahead

    def take(self, tail: bytes) -> None:
        """A message of which nothing is asked."""
        if not (self._ahead and self._ahead.match(tail)):
            self.pass_on(tail)

    def take_asking(self, tail: bytes, asked: Asked) -> None:
        if not (self._ahead and self._ahead.match(tail)):
            self.pass_on_asking(tail, asked)

    def pass_on(self, tail: bytes) -> None:
        """It is not in the log."""
        if self._is_blocked:
            self._wait(tail, None)
        else:
            self._lane.builder.tails.append(tail)

    def pass_on_asking(self, tail: bytes, asked: Asked) -> None:
        if self._is_blocked or (not self._is_rebuilt and (message_id(asked[1]) or expects(asked[1]))):
            self._is_blocked = True
            self._wait(tail, asked)
        else:
            self._store_asking(tail, asked)

    def rebuilt(self) -> None:
        """The ids are known."""
        self._is_rebuilt = True
        self._is_blocked = False
        waiting, self._waiting = self._waiting, []
        self.size = 0
        for tail, asked in waiting:
            if asked is None:
                self.pass_on(tail)
            else:
                self.pass_on_asking(tail, asked)

    def learn_anew(self) -> None:
        """The ids are not known any more."""
        self._is_rebuilt = False

    def close(self) -> list[tuple[bytes, Asked | None]]:
        """The leadership has ended; what still waits."""
        if self.rebuild is not None:
            self.rebuild.cancel()
        waiting, self._waiting = self._waiting, []
        return waiting

    def _wait(self, tail: bytes, asked: Asked | None) -> None:
        self._waiting.append((tail, asked))
        self.size += len(tail)
