"""Gaps of a core binding: times in which messages may have been published that were never received.

Core NATS keeps no messages for a subscriber that is not connected. A gap begins with the last moment up to which all messages are
known to be in the log (client/heartbeat.py), not when the failure is noticed, and ends when the server has the subscriptions
again. Outside of gaps no message is missing. Times are those at which the server received the messages, by this machine's
clock. A gap belongs to the binding and not to one of its subscriptions: it may begin with one connection, continue over a pause
or a restart, and end with another. `GapLog` keeps the gaps while this broker knows the binding.

`GapTracker` records them:
- without a connection: from the last answer of the server to the subscriptions of the next connection;
- before this broker leads a partition that it did not follow in sync: from the partition's last message in the log, or from
  the time in the gap checkpoint (ingress/gap_checkpoint.py) before a restart;
- before it leads one that it followed: the lapse of its standby (ingress/standby.py);
- while the server refuses a subscription.
A broker that leads no partition has no gaps: gaps of other brokers' partitions are theirs.

`Backfill` prevents a gap where followers have received what the leader has missed. When only the leader's connection breaks, its
followers continue to receive. One that lacks nothing learns of the absence in two ways: the leader answers no marks any more;
or it is back, calls for marks, and answers them with the number of its absence. Such a follower asks the controller for the
leadership and appends the missing messages, as any new leader does, or it reports that none is missing. A follower that was absent
as well reports that. Until then, for WAIT_S at most, a leader that is back appends nothing, so that the order is kept, and its
gap is not logged. There is no gap if each partition that it led then has another leader or is known to be complete. (A new
leader that lacks messages itself records its own gap.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from barnabas.nats.carrier import Gap
from barnabas.nats.records.log_scan import find_last
from barnabas.nats.records.parts import SUBJECT_HEADER
from barnabas.runtime.procedures import Procedure

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.client.errors import Cause
    from barnabas.nats.connections import Intake
    from barnabas.nats.ingress.standby import Lapse
    from barnabas.runtime.interface import Runtime, Timer
    from barnabas.wire.records import Record

log = logging.getLogger("barnabas.nats")

CAUSE_CHARACTERS_MAX: Final = 400  # of a gap with many causes


def shown_time(time_ms: int) -> str:
    """A time in ms since the epoch in ISO 8601."""
    return (
        datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


class GapLog:
    """The gaps of one binding on this broker. `until_ms`: messages that the server received by then are in the log, except in
    the gaps; 0 when that is not known."""

    def __init__(
        self,
        topic: str,
        stats: CarrierStats,
        now_ms: Callable[[], int],
        on_known: Callable[[], object],
        *,
        until_ms: int = 0,
    ) -> None:
        """`on_known()` is called when `until_ms` is known for the first time."""
        self.until_ms = until_ms
        self._on_known = on_known
        self.open: Gap | None = None
        self._topic = topic
        self._stats = stats
        self._now_ms = now_ms
        self._searches = 0  # for where the open gap begins
        self._ends_ms = 0  # to be its end when the last search is over
        self._ends_whole = True
        self._is_left = False

    def begin(self, begin_ms: int, cause: str) -> None:
        """A gap begins. An open gap gets a further cause and the earlier beginning."""
        gap = self.open
        self._ends_ms = 0
        if gap is None:
            self.open = Gap(begin_ms, 0, cause)
            self._stats.gaps.append(self.open)
            self._stats.gap_count += 1
            log.warning(
                "topic %s: messages published from %s on may be missing: %s",
                self._topic,
                shown_time(begin_ms),
                cause,
            )
            return
        gap.begin_ms = min(gap.begin_ms, begin_ms)
        if cause not in gap.cause and len(gap.cause) + len(cause) < CAUSE_CHARACTERS_MAX:
            gap.cause += f"; then {cause}"

    def end(self, *, is_whole: bool = True, at_ms: int = 0) -> None:
        """Messages come from now on, or from `at_ms` on. `is_whole`: those that have come are in the log. If some still wait for
        it, `until_ms` stays as it is: they are lost if the broker fails."""
        self._end(at_ms or self._now_ms(), is_whole)

    def fill(self) -> None:
        """Removes the open gap: other brokers had the messages, and have appended them."""
        gap, self.open = self.open, None
        self._ends_ms = 0
        if gap is not None:
            if gap in self._stats.gaps:
                self._stats.gaps.remove(gap)
            log.info(
                "topic %s: none of the messages published from %s on is missing: another broker has received them",
                self._topic,
                shown_time(gap.begin_ms),
            )

    def leave(self) -> None:
        """The broker stops: an open gap continues."""
        self._is_left = True
        if self.open is not None:
            log.warning(
                "topic %s: the broker stops while messages published from %s on may be missing: %s",
                self._topic,
                shown_time(self.open.begin_ms),
                self.open.cause,
            )

    def search(self) -> None:
        """A search for the beginning of the open gap starts; the gap is not logged before `found`."""
        self._searches += 1

    def found(self, begin_ms: int | None) -> None:
        """A search ends: the gap may have begun at `begin_ms`; None when the search has found nothing."""
        self._searches -= 1
        if self.open is not None and begin_ms is not None:
            self.open.begin_ms = min(self.open.begin_ms, begin_ms)
        if not self._searches and self._ends_ms:
            self._end(self._ends_ms, self._ends_whole)

    def _end(self, end_ms: int, is_whole: bool) -> None:
        gap = self.open
        if self._is_left:
            return
        if gap is not None and self._searches:
            if not self._ends_ms:
                self._ends_ms, self._ends_whole = end_ms, is_whole
            return
        if is_whole:
            is_news = not self.until_ms
            self.until_ms = max(self.until_ms, end_ms)
            if is_news:
                self._on_known()
        if gap is None:
            return
        self.open = None
        self._ends_ms = 0
        gap.end_ms = max(end_ms, gap.begin_ms)
        self._stats.gap_ms += gap.end_ms - gap.begin_ms
        log.warning(
            "topic %s: messages published from %s to %s (%.3f s) may be missing: %s",
            self._topic,
            shown_time(gap.begin_ms),
            shown_time(gap.end_ms),
            (gap.end_ms - gap.begin_ms) / 1000,
            gap.cause,
        )


WAIT_S: Final = 3.0


class Backfill:
    """Has followers append the messages that a leader has missed: see the module. Of one binding on one broker."""

    def __init__(
        self,
        runtime: Runtime,
        gaps: GapLog,
        on_wait: Callable[[Iterable[int]], object],
        on_end: Callable[[bool], object],
    ) -> None:
        """`on_wait(partitions)` makes followers send marks, and holds appends to these partitions until `on_end(is_noted)`; with
        `is_noted` these partitions lack nothing, or a gap is recorded."""
        self._on_wait = on_wait
        self._on_end = on_end
        self._runtime = runtime
        self._gaps = gaps
        self._gap: Gap | None = None  # one with no other cause than absences
        self._lacking: dict[int, Partition] = {}
        self._absent: dict[int, set[int]] = {}  # by partition: followers that were absent as well
        self._last_number = 0
        self._number = 0  # of the absence that followers may fill now, or 0
        self._timer: Timer | None = None

    def begin(self, begin_ms: int, cause: str, led: Mapping[int, Partition]) -> None:
        """A gap of these partitions begins; followers may receive its messages."""
        is_own = self._gaps.open is None or self._gaps.open is self._gap
        if self._gaps.open is None:
            self._lacking.clear()
        self._gaps.begin(begin_ms, cause)
        self._end_wait(is_noted=False)
        self._gap = self._gaps.open if is_own else None
        self._lacking.update(led)

    def give_up(self) -> None:
        """The gap has another cause as well, which followers can't fill."""
        self._gap = None
        self._lacking.clear()
        self._end_wait()

    def wait(self) -> None:
        """The leader receives messages again."""
        if self._gap is None or self._gaps.open is not self._gap or self._number:
            return
        if not any(len(partition.isr) > 1 for partition in self._lacking.values()):
            return
        self._absent.clear()
        self._number = self._last_number = max(self._last_number + 1, int(self._runtime.monotonic() * 1000))
        self._gaps.search()
        self._timer = self._runtime.call_later(WAIT_S, self._too_late)
        self._on_wait(self._lacking)

    def number_for(self, partition: int) -> int:
        """The number of the absence that a follower of the partition may fill, 0 when there is none."""
        return self._number if partition in self._lacking else 0

    def led(self, leading: Iterable[int]) -> None:
        """These partitions are led here; others have other leaders."""
        self._filled(self._lacking.keys() - set(leading))

    def complete(self, number: int, partitions: Iterable[int]) -> None:
        """A follower reports that nothing is missing in these partitions."""
        if number == self._number:
            self._filled(partitions)

    def follower_absent(self, number: int, broker: int, partitions: Iterable[int]) -> None:
        """A follower reports that it has not received all messages either."""
        if not self._number or number != self._number:
            return
        for index in partitions:
            if index in self._lacking and broker in self._lacking[index].isr:
                self._absent.setdefault(index, set()).add(broker)
        if all(
            len(self._absent.get(index, ())) >= len(partition.isr) - 1
            for index, partition in self._lacking.items()
        ):
            self._too_late()

    def _filled(self, partitions: Iterable[int]) -> None:
        if not self._lacking:
            return
        for index in partitions:
            self._lacking.pop(index, None)
        if not self._lacking and self._gap is not None:
            if self._gaps.open is self._gap:
                self._gaps.fill()
            self._gap = None
            self._end_wait()

    def _too_late(self) -> None:
        self._gap = None
        self._lacking.clear()
        self._end_wait()

    def _end_wait(self, *, is_noted: bool = True) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._number = 0
            self._gaps.found(None)
            self._on_end(is_noted)


NO_LEADER_IN_SYNC: Final = "no broker that was in sync led"
# A leader may have been so far behind with reading when it received its last message; the server disconnects slower ones.
BEHIND_MS_MAX: Final = 10_000
_UNSUBSCRIBED: Final = "unsubscribed"
_SUBJECT: Final = SUBJECT_HEADER.decode()


class GapTracker:
    """Tracks the gaps of one binding. `leads()`: whether this broker is responsible for messages; `is_whole()`: whether all
    messages received are in the logs."""

    def __init__(
        self,
        runtime: Runtime,
        intake: Intake,
        topic: str,
        gaps: GapLog,
        backfill: Backfill,
        leads: Callable[[], bool],
        is_whole: Callable[[], bool],
        *,
        has_standbys: bool = True,
    ) -> None:
        """`has_standbys`: followers of its partitions may have messages that it missed."""
        self._runtime = runtime
        self._intake = intake
        self._topic = topic
        self._gaps = gaps
        self._leads = leads
        self._is_whole = is_whole
        self.is_subscribed = False  # the server has the subscriptions
        self.absent_since_ms = 0  # without a connection: since when
        self._absent_causes: dict[str, str] = {}  # and why: the first of each kind
        self._waits_since_ms = 0  # for the first connection
        self._covered: frozenset[int] = frozenset()  # partitions that are led here, or may be at any time
        self._searches: list[Procedure] = []
        self._backfill = backfill
        self._has_standbys = has_standbys
        self._led: Mapping[int, Partition] = {}

    @property
    def absence(self) -> str:
        """Why there is no connection."""
        return "; then ".join(self._absent_causes.values())

    @property
    def heard_until_ms(self) -> int:
        """Messages that the server received by then have come here."""
        return self._intake.heartbeat.until_ms or self._runtime.time_ms()

    def start(self, new: Iterable[int]) -> None:
        """The binding subscribes; no messages for the `new` partitions can have been missed."""
        client = self._intake.client
        if not client.is_connected:
            self._waits_since_ms = self._runtime.time_ms()
            if client.last_cause is not None:
                self.absent_since_ms = self._waits_since_ms
                self._absent_causes = {client.last_cause.kind: str(client.last_cause)}
        self._covered = frozenset(new)
        self._intake.heartbeat.on_beat.append(self._beat)

    def stop(self) -> None:
        self._backfill.give_up()
        for search in self._searches:
            search.cancel()
            self._gaps.found(None)
        self._searches = []
        self._intake.heartbeat.on_beat.remove(self._beat)

    # -- the connection

    def connected(self) -> bool:
        """Returns whether there was a connection before."""
        was_absent = bool(self._absent_causes)
        self.absent_since_ms, self._waits_since_ms = 0, 0
        self._absent_causes = {}
        return was_absent

    def subscribed(self) -> None:
        """The server knows all subscriptions, and refuses none."""
        self.is_subscribed = True
        self._backfill.wait()
        self._gaps.end(is_whole=self._is_whole())

    def disconnected(self, cause: Cause) -> None:
        self.is_subscribed = False
        self.absent_since_ms = self.absent_since_ms or self.heard_until_ms
        self._absent_causes[cause.kind] = str(self._intake.heartbeat.explained(cause))
        self._note_absence()

    def unsubscribed(self, why: str) -> None:
        """The binding has no subscriptions until `connected`."""
        self.is_subscribed = False
        self.absent_since_ms = self.absent_since_ms or self.heard_until_ms
        self._absent_causes[_UNSUBSCRIBED] = why
        self._note_absence()

    def unreachable(self, cause: Cause) -> None:
        """An attempt to connect has failed for this reason."""
        since_ms = self.absent_since_ms or self._waits_since_ms
        if since_ms and cause.kind not in self._absent_causes:
            self.absent_since_ms = since_ms
            self._absent_causes[cause.kind] = str(cause)
            self._note_absence()

    def refused(self, why: str) -> None:
        """The server refuses a subscription."""
        self.is_subscribed = False
        if self._leads():
            self._backfill.give_up()
            self._gaps.begin(self.heard_until_ms, why)

    def ends(self, cause: str) -> None:
        """No messages are taken any more, and those that wait for a log are dropped. `cause`: why they are missed, "" when other
        brokers take them or the binding ends."""
        self._backfill.give_up()
        is_whole = self._is_whole()
        if cause and self._leads():
            in_log_ms = 0 if is_whole else self._gaps.until_ms
            self._gaps.begin(in_log_ms or self.heard_until_ms, cause)
        elif not cause:
            self._gaps.end(is_whole=is_whole)

    def _note_absence(self) -> None:
        if self._absent_causes and self._leads():
            if _UNSUBSCRIBED in self._absent_causes:
                self._backfill.give_up()
            for kind, cause in self._absent_causes.items():
                if self._has_standbys and self._led and kind != _UNSUBSCRIBED:
                    self._backfill.begin(self.absent_since_ms, cause, self._led)
                else:
                    self._gaps.begin(self.absent_since_ms, cause)

    def _beat(self, until_ms: int) -> None:
        """Messages that the server received by then have been read."""
        if self.is_subscribed and self._gaps.open is None and self._leads() and self._is_whole():
            self._gaps.until_ms = until_ms

    # -- partitions

    def roles_changed(
        self,
        leading: Mapping[int, Partition],
        others: Iterable[int],
        missed: str = NO_LEADER_IN_SYNC,
        since_ms: int = 0,
    ) -> None:
        """`leading` are led here now; `others` may be at any time. Messages for partitions that were neither have been missed
        for the reason `missed`, since `since_ms` or the last message in the log."""
        begun = [leading[index] for index in sorted(leading) if index not in self._covered]
        self._covered = frozenset((*leading, *others))
        self._led = dict(leading)
        self._backfill.led(leading)
        self._note_absence()
        self.missed(begun, missed, since_ms)

    def covers(self, others: Iterable[int]) -> None:
        """These may be led here at any time as well."""
        self._covered = self._covered.union(others)

    def lapsed(self, found: Sequence[tuple[Partition, Lapse]]) -> None:
        """These are led here from now on, and messages that their standbys lack may be in no log."""
        now_ms = self._runtime.time_ms()
        self._backfill.give_up()
        for cause in dict.fromkeys(lapse.cause for _, lapse in found):
            self._gaps.begin(min(lapse.since_ms or now_ms for _, lapse in found), cause)
        older = [partition for partition, lapse in found if lapse.is_older]
        if older:
            self._search(older, 0)
        if self.is_subscribed:
            ended_ms = max(lapse.until_ms or now_ms for _, lapse in found)
            self._gaps.end(is_whole=self._is_whole(), at_ms=min(ended_ms, now_ms))

    def missed(self, begun: Iterable[Partition], why: str, since_ms: int) -> None:
        """These are led here from now on; messages for them since `since_ms`, or since the last in their logs, are missed."""
        begun = [each for each in begun if since_ms or each.log.log_end_offset > each.log.log_start_offset]
        if not begun:
            return
        self._backfill.give_up()
        is_alone = all(len(each.state.replicas) == 1 for each in begun)
        if since_ms and is_alone:
            self._gaps.begin(since_ms, why)
        else:  # another broker may have led since
            self._gaps.begin(self._runtime.time_ms(), why)
            self._search(begun, since_ms)
        if self.is_subscribed:
            self._gaps.end(is_whole=self._is_whole())

    def _search(self, begun: list[Partition], since_ms: int) -> None:
        """Searches where the open gap begins: each partition has all messages up to its last one, and up to `since_ms`."""
        found: list[int] = []

        async def search() -> None:
            for partition in begun:
                time_ms = await find_last(self._runtime, partition, SUBJECT_HEADER, _time_of)
                if time_ms is not None:
                    found.append(time_ms)

        def ended(error: Exception | None) -> None:
            self._searches.remove(procedure)
            if error is not None:
                log.warning("topic %s: can't read in the log where its gap begins: %s", self._topic, error)
            begins_ms = max(since_ms, min(found) - BEHIND_MS_MAX) if found else since_ms
            self._gaps.found(begins_ms or None)

        self._gaps.search()
        procedure = Procedure(search(), ended)
        self._searches.append(procedure)
        procedure.start()


def _time_of(record: Record) -> int | None:
    """When the message was received; None for a record that was no message."""
    is_message = any(name == _SUBJECT for name, _ in record.headers)
    return record.timestamp if is_message else None
