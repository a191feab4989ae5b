"""Whether a core binding was there for its messages, and which gaps it has because it was not (core/gaps.py):

- without a connection: from the last answer of the server to the subscriptions of the next connection;
- before a partition came to be led here that this broker did not follow in sync: from its last message in the log, or from
  what was written down before a restart;
- before one came to be led here that it followed, of what its shadow lacks (core/standbys.py);
- while the server refuses a subscription.

What other replicas have received meanwhile is none (core/refill.py).

Who leads nothing has no gaps: what others lead is theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.nats.core.refill import Refill
from barnabas.nats.jetstream.positions import find_last
from barnabas.nats.jetstream.steps import Steps
from barnabas.nats.records.parts import SUBJECT_HEADER

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.client.errors import Cause
    from barnabas.nats.connections import Intake
    from barnabas.nats.core.gaps import GapLog
    from barnabas.nats.core.shadow import Lapse
    from barnabas.runtime.interface import Runtime
    from barnabas.wire.record_batch import Record

log = logging.getLogger("barnabas.nats")

NOBODY_LED: Final = "nobody who was in sync led"
# A leader may have been so far behind with reading when it took its last message: then the server cuts it off.
BEHIND_MS_MAX: Final = 10_000
_ASIDE: Final = "aside"
_SUBJECT: Final = SUBJECT_HEADER.decode()


class Presence:
    """Of one binding. `leads()`: whether it has messages to miss; `is_whole()`: whether what came is in the logs."""

    def __init__(
        self,
        runtime: Runtime,
        intake: Intake,
        topic: str,
        gaps: GapLog,
        leads: Callable[[], bool],
        is_whole: Callable[[], bool],
        *,
        has_standbys: bool = True,
    ) -> None:
        """`has_standbys`: followers of its partitions may have what it missed."""
        self._runtime = runtime
        self._intake = intake
        self._topic = topic
        self._gaps = gaps
        self._leads = leads
        self._is_whole = is_whole
        self.is_listening = False  # the server has the subscriptions
        self.absent_since_ms = 0  # without a connection: since when
        self._absent_causes: dict[str, str] = {}  # and why: the first of each kind
        self._waits_since_ms = 0  # for the first connection
        self._attended: frozenset[int] = frozenset()  # partitions that are led here, or may be at any time
        self._searches: list[Steps] = []
        self.refill = Refill(runtime, gaps)
        self._has_standbys = has_standbys
        self._led: Mapping[int, Partition] = {}

    @property
    def absence(self) -> str:
        """Why there is no connection."""
        return "; then ".join(self._absent_causes.values())

    @property
    def heard_until_ms(self) -> int:
        """What the server had taken by then has come here."""
        return self._intake.heartbeat.until_ms or self._runtime.time_ms()

    def start(self, new: Iterable[int]) -> None:
        """The subscriptions are being made; of these partitions nothing can have been missed."""
        client = self._intake.client
        if not client.is_connected:
            self._waits_since_ms = self._runtime.time_ms()
            if client.last_cause is not None:
                self.absent_since_ms = self._waits_since_ms
                self._absent_causes = {client.last_cause.kind: str(client.last_cause)}
        self._attended = frozenset(new)
        self._intake.heartbeat.on_beat.append(self._beat)

    def stop(self) -> None:
        self.refill.spoil()
        for search in self._searches:
            search.cancel()
            self._gaps.found(None)
        self._searches = []
        self._intake.heartbeat.on_beat.remove(self._beat)

    # -- the connection

    def connected(self) -> bool:
        """Whether it is another one after the first."""
        was_absent = bool(self._absent_causes)
        self.absent_since_ms, self._waits_since_ms = 0, 0
        self._absent_causes = {}
        return was_absent

    def listens(self) -> None:
        """The server knows all subscriptions, and refuses none."""
        self.is_listening = True
        self.refill.wait()
        self._gaps.end(is_whole=self._is_whole())

    def disconnected(self, cause: Cause) -> None:
        self.is_listening = False
        self.absent_since_ms = self.absent_since_ms or self.heard_until_ms
        self._absent_causes[cause.kind] = str(self._intake.heartbeat.explained(cause))
        self._note_absence()

    def stepped_aside(self, why: str) -> None:
        """There are no subscriptions for now, whatever the connection does; till `connected`."""
        self.is_listening = False
        self.absent_since_ms = self.absent_since_ms or self.heard_until_ms
        self._absent_causes[_ASIDE] = why
        self._note_absence()

    def unreachable(self, cause: Cause) -> None:
        """The first connection takes longer than whoever made the binding has waited for it, or there is no other one, for
        one reason more."""
        since_ms = self.absent_since_ms or self._waits_since_ms
        if since_ms and cause.kind not in self._absent_causes:
            self.absent_since_ms = since_ms
            self._absent_causes[cause.kind] = str(cause)
            self._note_absence()

    def refused(self, why: str) -> None:
        """A subscription is."""
        self.is_listening = False
        if self._leads():
            self.refill.spoil()
            self._gaps.begin(self.heard_until_ms, why)

    def ends(self, cause: str) -> None:
        """Nothing is taken any more, and what waits for a log is dropped; `cause`: why though it ought to be taken, "" when
        it is for others to take it."""
        self.refill.spoil()
        is_whole = self._is_whole()
        if cause and self._leads():
            in_log_ms = 0 if is_whole else self._gaps.until_ms
            self._gaps.begin(in_log_ms or self.heard_until_ms, cause)
        elif not cause:
            self._gaps.end(is_whole=is_whole)

    def _note_absence(self) -> None:
        if self._absent_causes and self._leads():
            if _ASIDE in self._absent_causes:
                self.refill.spoil()
            for kind, cause in self._absent_causes.items():
                if self._has_standbys and self._led and kind != _ASIDE:
                    self.refill.begin(self.absent_since_ms, cause, self._led)
                else:
                    self._gaps.begin(self.absent_since_ms, cause)

    def _beat(self, until_ms: int) -> None:
        """What the server had taken by then has been read."""
        if self.is_listening and self._gaps.open is None and self._leads() and self._is_whole():
            self._gaps.until_ms = until_ms

    # -- partitions

    def serves(
        self,
        leading: Mapping[int, Partition],
        others: Iterable[int],
        missed: str = NOBODY_LED,
        since_ms: int = 0,
    ) -> None:
        """`leading` are led here now; `others` may be at any time. What it was not there for has been missed for the
        reason `missed`, since `since_ms` or what the log says."""
        begun = [leading[index] for index in sorted(leading) if index not in self._attended]
        self._attended = frozenset((*leading, *others))
        self._led = dict(leading)
        self.refill.led(leading)
        self._note_absence()
        self.missed(begun, missed, since_ms)

    def attends(self, others: Iterable[int]) -> None:
        """These may be led here as well at any time."""
        self._attended = self._attended.union(others)

    def lapses(self, found: Sequence[tuple[Partition, Lapse]]) -> None:
        """These are led here from now on, and what is lacking may be in no log."""
        now_ms = self._runtime.time_ms()
        self.refill.spoil()
        for cause in dict.fromkeys(lapse.cause for _, lapse in found):
            self._gaps.begin(min(lapse.since_ms or now_ms for _, lapse in found), cause)
        older = [partition for partition, lapse in found if lapse.is_older]
        if older:
            self._search(older, 0)
        if self.is_listening:
            ended_ms = max(lapse.until_ms or now_ms for _, lapse in found)
            self._gaps.end(is_whole=self._is_whole(), at_ms=ended_ms)

    def missed(self, begun: Iterable[Partition], why: str, since_ms: int) -> None:
        """These are led here from now on; what came for them since `since_ms`, or since their last message, is missing."""
        begun = [each for each in begun if since_ms or each.log.log_end_offset > each.log.log_start_offset]
        if not begun:
            return
        self.refill.spoil()
        is_alone = all(len(each.state.replicas) == 1 for each in begun)
        if since_ms and is_alone:
            self._gaps.begin(since_ms, why)
        else:  # another may have led since
            self._gaps.begin(self._runtime.time_ms(), why)
            self._search(begun, since_ms)
        if self.is_listening:
            self._gaps.end(is_whole=self._is_whole())

    def _search(self, begun: list[Partition], since_ms: int) -> None:
        """Each of these has had all messages up to its last one, and up to `since_ms`."""
        found: list[int] = []
        is_over = False
        steps: Steps | None = None

        async def search() -> None:
            for partition in begun:
                time_ms = await find_last(self._runtime, partition, SUBJECT_HEADER, _time_of)
                if time_ms is not None:
                    found.append(time_ms)

        def ended(error: Exception | None) -> None:
            nonlocal is_over
            is_over = True
            if steps is not None:
                self._searches.remove(steps)
            if error is not None:
                log.warning("topic %s: where its gap begins can't be seen in the log: %s", self._topic, error)
            begins_ms = max(since_ms, min(found) - BEHIND_MS_MAX) if found else since_ms
            self._gaps.found(begins_ms or None)

        self._gaps.search()
        steps = Steps(search(), ended)
        if not is_over:
            self._searches.append(steps)


def _time_of(record: Record) -> int | None:
    """When a message came; None for a record that was none."""
    is_message = any(name == _SUBJECT for name, _ in record.headers)
    return record.timestamp if is_message else None
