"""What has come for a partition that this broker is a replica of and that is about to be opened: it waits until it is
known who leads.

The way into a partition whose leadership has just begun, until nothing is left to look at.

Two things are looked at: whether a message is in the log already, because the leader before was faster with it than the
server was with us; and whether the ids of the messages that came lately are known yet (ingress/dedup_rebuild.py). From the first
message with an id or an expectation on, everything waits for that, so that nothing overtakes it; before, nothing has to.


The admissions of a binding's partitions (ingress/admission.py): opened when a leadership begins or ids have to be learned
anew, taken away when there is nothing left to look at."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from barnabas.nats.ingress.dedup import DedupWindow, message_id
from barnabas.nats.ingress.dedup_rebuild import DedupRebuild, RebuildQueue
from barnabas.nats.ingress.expectations import expects

if TYPE_CHECKING:
    from barnabas.nats.ingress.dedup_rebuild import DedupRebuild
    from barnabas.nats.ingress.lane import Lane
    from barnabas.nats.ingress.standby import Asked
    from barnabas.nats.ingress.tail_matcher import TailMultiset
    from barnabas.runtime.interface import Runtime


class OpeningPartition:
    """Of one partition, in the order in which it came."""

    __slots__ = ("size", "waiting")

    def __init__(self) -> None:
        self.waiting: list[tuple[bytes, Asked | None]] = []
        self.size = 0

    def take(self, tail: bytes) -> None:
        """A message of which nothing is asked."""
        self.waiting.append((tail, None))
        self.size += len(tail)

    def take_asking(self, tail: bytes, asked: Asked) -> None:
        self.waiting.append((tail, asked))
        self.size += len(tail)


class Admission:
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


StoreAsking = Callable[[int, bytes, "Asked"], object]  # partition, tail, what is asked


class Admissions:
    """By partition, as `by_index`. `rebuilt()`: what waited for ids has gone its way."""

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
        """The leadership begins. `ahead`: what is in the log and may be received yet."""
        admission = self.by_index[index] = Admission(lane, ahead, partial(self._store_asking, index))
        return admission

    def close(self, index: int) -> list[tuple[bytes, Asked | None]]:
        """The leadership has ended; what still waits."""
        admission = self.by_index.pop(index, None)
        return [] if admission is None else admission.close()

    def learn_ids(self, index: int, lane: Lane) -> None:
        """Read from the log which ids came lately."""
        admission = self.by_index[index]
        admission.rebuild = DedupRebuild(
            self._runtime, lane.partition, lane.dedup, lambda _error: self._learned(index, admission)
        )
        self._rebuilds.add(admission.rebuild)

    def learn_ids_anew(self, index: int, lane: Lane, window_ms: int) -> None:
        """The window has another length: what is in it, the log knows."""
        before = lane.dedup
        lane.dedup = DedupWindow(window_ms, before.name)
        for identity, place in before.dropped().items():
            lane.dedup.open(identity, place)
        admission = self.by_index.get(index)
        if admission is None or admission.rebuild is None:
            self.open(index, lane, None)
        else:
            admission.rebuild.cancel()
            admission.learn_anew()
        self.learn_ids(index, lane)

    def take_away(self) -> bool:
        """Those with nothing left to look at; whether there were any."""
        done = [index for index, admission in self.by_index.items() if admission.is_open]
        for index in done:
            del self.by_index[index]
        return bool(done)

    def _learned(self, index: int, admission: Admission) -> None:
        if self.by_index.get(index) is admission:
            admission.rebuilt()
            self._rebuilt()
