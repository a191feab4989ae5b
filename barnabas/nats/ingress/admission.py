"""Admission of messages to a partition whose leadership has just begun.

`OpeningPartition` keeps the messages of a partition that this broker is a replica of, while its log is being opened and the
leader is not known here yet. `Admission` checks the first messages of a leadership, for two things: whether a message is in
the log already, because the leader before received it sooner; and whether the ids of recent messages are known again
(ingress/dedup_rebuild.py). From the first message with an id or an expectation on, all messages wait for the ids, so that
their order is kept. `Admissions` are those of a binding's partitions: opened when a leadership begins or ids have to be read
again, removed when nothing is left to check.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from barnabas.nats.ingress.dedup import DedupWindow, message_id
from barnabas.nats.ingress.dedup_rebuild import DedupRebuild, RebuildQueue
from barnabas.nats.ingress.expectations import expects

if TYPE_CHECKING:
    from barnabas.nats.ingress.lane import Lane
    from barnabas.nats.ingress.standby import Asked
    from barnabas.nats.ingress.tail_matcher import TailMultiset
    from barnabas.runtime.interface import Runtime


class OpeningPartition:
    """Messages of one partition, in the order in which they were received."""

    __slots__ = ("size", "waiting")

    def __init__(self) -> None:
        self.waiting: list[tuple[bytes, Asked | None]] = []
        self.size = 0

    def take(self, tail: bytes) -> None:
        """A message that asks for nothing."""
        self.waiting.append((tail, None))
        self.size += len(tail)

    def take_asking(self, tail: bytes, asked: Asked) -> None:
        self.waiting.append((tail, asked))
        self.size += len(tail)


class Admission:
    """See the module. `store_asking(tail, asked)` stores or refuses a message that asks for something."""

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
        self, lane: Lane, ahead: TailMultiset[None] | None, store_asking: Callable[[bytes, Asked], object]
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
        """Whether nothing is left to check."""
        return self._is_rebuilt and not self._ahead

    @property
    def is_through(self) -> bool:
        """Whether all messages received are in the log, and all records there were received."""
        return not self._waiting and not self._ahead

    def take(self, tail: bytes) -> None:
        """A message that asks for nothing."""
        if not (self._ahead and self._ahead.match(tail)):
            self.pass_on(tail)

    def take_asking(self, tail: bytes, asked: Asked) -> None:
        if not (self._ahead and self._ahead.match(tail)):
            self.pass_on_asking(tail, asked)

    def pass_on(self, tail: bytes) -> None:
        """A message that is not in the log."""
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
        """The ids are known: waiting messages go on."""
        self._is_rebuilt = True
        self._is_blocked = False
        waiting, self._waiting = self._waiting, []
        self.size = 0
        for tail, asked in waiting:
            if asked is None:
                self.pass_on(tail)
            else:
                self.pass_on_asking(tail, asked)

    def relearn(self) -> None:
        """The ids have to be read again."""
        self._is_rebuilt = False

    def close(self) -> list[tuple[bytes, Asked | None]]:
        """The leadership has ended; returns the messages that still wait."""
        if self.rebuild is not None:
            self.rebuild.cancel()
        waiting, self._waiting = self._waiting, []
        return waiting

    def _wait(self, tail: bytes, asked: Asked | None) -> None:
        self._waiting.append((tail, asked))
        self.size += len(tail)


StoreAsking = Callable[[int, bytes, "Asked"], object]  # partition, tail, what is asked


class Admissions:
    """By partition, in `by_index`. `rebuilt()` is called when messages that waited for ids have gone on."""

    def __init__(self, runtime: Runtime, store_asking: StoreAsking, rebuilt: Callable[[], object]) -> None:
        self.by_index: dict[int, Admission] = {}
        self._runtime = runtime
        self._store_asking = store_asking
        self._rebuilt = rebuilt
        self._rebuilds = RebuildQueue()

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return sum(admission.size for admission in self.by_index.values())

    def open(self, index: int, lane: Lane, ahead: TailMultiset[None] | None) -> Admission:
        """The leadership begins. `ahead`: records in the log whose messages may still be received."""
        admission = self.by_index[index] = Admission(lane, ahead, partial(self._store_asking, index))
        return admission

    def close(self, index: int) -> list[tuple[bytes, Asked | None]]:
        """The leadership has ended; returns the messages that still wait."""
        admission = self.by_index.pop(index, None)
        return [] if admission is None else admission.close()

    def learn_ids(self, index: int, lane: Lane) -> None:
        """Reads the ids of recent messages from the log."""
        admission = self.by_index[index]
        admission.rebuild = DedupRebuild(
            self._runtime, lane.partition, lane.dedup, lambda _error: self._learned(index, admission)
        )
        self._rebuilds.add(admission.rebuild)

    def relearn_ids(self, index: int, lane: Lane, window_ms: int) -> None:
        """The window has another length: its ids are read from the log again."""
        before = lane.dedup
        lane.dedup = DedupWindow(window_ms, before.name)
        for identity, place in before.dropped().items():
            lane.dedup.open(identity, place)
        admission = self.by_index.get(index)
        if admission is None or admission.rebuild is None:
            self.open(index, lane, None)
        else:
            admission.rebuild.cancel()
            admission.relearn()
        self.learn_ids(index, lane)

    def take_away(self) -> bool:
        """Removes those with nothing left to check; whether there were any."""
        done = [index for index, admission in self.by_index.items() if admission.is_open]
        for index in done:
            del self.by_index[index]
        return bool(done)

    def _learned(self, index: int, admission: Admission) -> None:
        if self.by_index.get(index) is admission:
            admission.rebuilt()
            self._rebuilt()
