"""Admission of messages to a partition whose leadership has just begun.

`Admission` checks the first messages of a leadership for two things: whether a message is in the log already, because the
leader before received it sooner; and whether the ids of recent messages are known again (ingress/dedup_rebuild.py). From the
first message with an id or an expectation on, all messages wait for the ids, so that their order is kept. `Admissions` are
those of a topic's partitions: opened when a leadership begins or ids have to be read again, removed when nothing is left to
check. They also keep the messages of partitions that this broker is a replica of and whose logs are about to be opened: their
leaders are not known here yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from barnabas.nats.ingress.dedup import DedupWindow, message_id
from barnabas.nats.ingress.dedup_rebuild import DedupRebuild
from barnabas.nats.ingress.expectations import expects
from barnabas.runtime.slices import StepQueue

if TYPE_CHECKING:
    from barnabas.nats.ingress.lane import Lane
    from barnabas.nats.ingress.special_messages import Special
    from barnabas.nats.ingress.tail_matcher import TailMultiset
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.nats")


class WaitingMessages:
    """Messages of one partition, in the order in which they were received."""

    __slots__ = ("messages", "size")

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, Special | None]] = []
        self.size = 0

    def take(self, tail: bytes, special: Special | None = None) -> None:
        self.messages.append((tail, special))
        self.size += len(tail)

    def drain(self) -> list[tuple[bytes, Special | None]]:
        drained, self.messages, self.size = self.messages, [], 0
        return drained


class Admission:
    """See the module. `store_special(tail, special)` stores or refuses a special message."""

    __slots__ = (
        "_ahead",
        "_is_blocked",
        "_is_rebuilt",
        "_lane",
        "_store_special",
        "_waiting",
        "rebuild",
    )

    def __init__(
        self, lane: Lane, ahead: TailMultiset[None] | None, store_special: Callable[[bytes, Special], object]
    ) -> None:
        self.rebuild: DedupRebuild | None = None
        self._lane = lane
        self._ahead = ahead
        self._store_special = store_special
        self._is_rebuilt = False
        self._is_blocked = False
        self._waiting = WaitingMessages()

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return self._waiting.size

    @property
    def is_open(self) -> bool:
        """Whether nothing is left to check."""
        return self._is_rebuilt and not self._ahead

    @property
    def is_through(self) -> bool:
        """Whether all messages received are in the log, and all messages of its records were received."""
        return not self._waiting.messages and not self._ahead

    def take(self, tail: bytes, special: Special | None = None) -> None:
        if not (self._ahead and self._ahead.match(tail)):
            self.admit(tail, special)

    def admit(self, tail: bytes, special: Special | None) -> None:
        """Takes a message that is not in the log."""
        if special is not None and not self._is_rebuilt and (message_id(special[1]) or expects(special[1])):
            self._is_blocked = True
        if self._is_blocked:
            self._waiting.take(tail, special)
        elif special is None:
            self._lane.builder.tails.append(tail)
        else:
            self._store_special(tail, special)

    def rebuilt(self) -> None:
        """The ids are known: admits the messages that wait for them."""
        self._is_rebuilt = True
        self._is_blocked = False
        for tail, special in self._waiting.drain():
            self.admit(tail, special)

    def relearn(self) -> None:
        """The ids have to be read again."""
        self._is_rebuilt = False

    def close(self) -> list[tuple[bytes, Special | None]]:
        """The leadership has ended; returns the messages that still wait."""
        if self.rebuild is not None:
            self.rebuild.cancel()
        return self._waiting.drain()


def _log_failure(_result: object, error: BaseException | None) -> None:
    if error is not None:
        log.error("reading the ids of recent messages has failed", exc_info=error)


StoreSpecial = Callable[[int, bytes, "Special"], object]  # partition, tail


class Admissions:
    """Admissions of a topic, `by_index` of the partition, and messages of its `opening` partitions. `rebuilt()` is called when the messages that waited for ids are
    admitted."""

    def __init__(self, runtime: Runtime, store_special: StoreSpecial, rebuilt: Callable[[], object]) -> None:
        self.by_index: dict[int, Admission] = {}
        self.opening: dict[int, WaitingMessages] = {}
        self._runtime = runtime
        self._store_special = store_special
        self._rebuilt = rebuilt
        self._rebuilds = StepQueue(runtime)  # each takes a share of every turn of the loop

    @property
    def size(self) -> int:
        """Bytes that wait."""
        admitted = sum(admission.size for admission in self.by_index.values())
        return admitted + sum(waiting.size for waiting in self.opening.values())

    def serve(self, opening: frozenset[int]) -> dict[int, list[tuple[bytes, Special | None]]]:
        """Messages for the partitions in `opening` wait. Returns those that have waited for others, by partition."""
        opened = sorted(index for index in self.opening if index not in opening)
        messages = {index: self.opening.pop(index).messages for index in opened}
        for index in sorted(opening - self.opening.keys()):
            self.opening[index] = WaitingMessages()
        return messages

    def open(self, index: int, lane: Lane, ahead: TailMultiset[None] | None) -> Admission:
        """A leadership begins. `ahead`: records in the log whose messages may still be received."""
        admission = self.by_index[index] = Admission(lane, ahead, partial(self._store_special, index))
        return admission

    def close(self, index: int) -> list[tuple[bytes, Special | None]]:
        """The leadership has ended; returns the messages that still wait."""
        admission = self.by_index.pop(index, None)
        return [] if admission is None else admission.close()

    def learn_ids(self, index: int, lane: Lane) -> None:
        """Reads the ids of recent messages from the log."""
        admission = self.by_index[index]
        admission.rebuild = DedupRebuild(
            self._runtime, lane.partition, lane.dedup, lambda _error: self._learned(index, admission)
        )
        self._rebuilds.add(admission.rebuild.steps(), _log_failure)

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

    def remove_done(self) -> bool:
        """Removes those with nothing left to check; whether there were any."""
        done = [index for index, admission in self.by_index.items() if admission.is_open]
        for index in done:
            del self.by_index[index]
        return bool(done)

    def _learned(self, index: int, admission: Admission) -> None:
        if self.by_index.get(index) is admission:
            admission.rebuilt()
            self._rebuilt()
