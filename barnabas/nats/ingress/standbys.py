"""The standbys of a topic on this broker, and the messages by which followers and leaders agree about them.

A follower that begins to match publishes a mark (ingress/marks.py). The leader appends the messages before it, and answers
with the end of its log; records from there on belong to messages after the mark. If something is left over in the matcher
(ingress/tail_matcher.py), another mark follows. A follower whose log has reached that end lacks nothing, and reports this to
the leader until it is in the ISR. Where the account may not publish marks, matching begins anywhere, and is right as soon
as nothing is left over, except for messages that are all equal.

The leader lets a follower that has reported into the ISR (`may_take_over`), so a clean election finds such a replica, and a
reassignment completes when the new replica is one. A follower that does not get so far (its account may not publish marks, it
finds no server) may join after WAIT_S, because the topic's Kafka clients need its copy, and so may one that comes while the
leader itself is not subscribed. Whether messages are missing does not depend on that: a follower that becomes the leader
before it has matched, or after an interruption, records a gap.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.ingress.marks import MarkSubjects
from barnabas.nats.ingress.standby import RACE_S, Lapse, Standby

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.ingress.gap_tracker import Backfill
    from barnabas.nats.ingress.roles import Roles
    from barnabas.nats.ingress.special_messages import Special
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

WAIT_S: Final = 10.0
REPORT_EVERY_S: Final = 0.5  # by a follower that is not in the ISR yet
REPORT_VALID_S: Final = 3.0
TICK_S: Final = 0.1
IDLE_TICK_S: Final = 1.0  # without standbys: there may be many bindings
SENDER_BYTES: Final = 8  # written in hexadecimal digits
_NO_JSON: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
_is_sender: Final = re.compile(f"[0-9a-f]{{{2 * SENDER_BYTES}}}").fullmatch


OnLapses = Callable[[list[tuple["Partition", Lapse]]], object]
_TOO_EARLY: Final = (
    "this broker became the leader before it had caught up with what the leader before had received"
)


class Mark(msgspec.Struct):
    """The payload of a mark."""

    sender: str
    number: int


class Ends(msgspec.Struct):
    """A leader's answer to a mark: by partition, its leader epoch, the end of its log, -1 when that is not known now, and the
    number of its absence if it has missed messages that the follower may have (ingress/gap_tracker.py), or 0."""

    number: int
    ends: dict[int, tuple[int, int, int]]


class StandbyReport(msgspec.Struct):
    """A follower's report to leaders: it could lead these partitions. With the number of an absence (ingress/gap_tracker.py)
    it lacks nothing of that time; with the negative number it was absent itself."""

    broker: int
    broker_epoch: int
    partitions: list[int]
    absence: int = 0


_read_ends: Final = msgspec.json.Decoder(Ends).decode
_read_report: Final = msgspec.json.Decoder(StandbyReport).decode


def _read_mark(payload: bytes) -> Mark | None:
    """None for anything else: any account may publish marks, and the sender's name becomes part of a subject."""
    try:
        mark = msgspec.json.decode(payload, type=Mark)
    except _NO_JSON:
        return None
    return mark if _is_sender(mark.sender) else None


class StandbyReports:
    """Reports of followers to the leader of a topic's partitions. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, topic: str) -> None:
        self._runtime = runtime
        self._topic = topic
        self._ready: dict[tuple[int, int], tuple[int, float]] = {}  # (partition, broker): broker epoch, when
        self._waiting: dict[tuple[int, int], tuple[int | None, float]] = {}  # the same, since when

    def received(self, report: StandbyReport, partition: int) -> None:
        """A follower reports that it could lead the partition."""
        self._ready[partition, report.broker] = report.broker_epoch, self._runtime.monotonic()

    def may_take_over(self, partition: int, broker: int, broker_epoch: int | None) -> bool:
        """Whether a follower that has reached the end of the leader's log may join the ISR."""
        key = partition, broker
        now_s = self._runtime.monotonic()
        epoch, reported_s = self._ready.get(key, (None, 0.0))
        is_ready = epoch is not None and broker_epoch in (-1, epoch) and now_s - reported_s <= REPORT_VALID_S
        if not is_ready:
            waiting_epoch, since_s = self._waiting.get(key, (None, now_s))
            if waiting_epoch != broker_epoch or now_s - since_s > 2 * WAIT_S:  # restarted, or long ago
                since_s = now_s
            self._waiting[key] = broker_epoch, since_s
            if now_s - since_s < WAIT_S:
                return False
            log.warning(
                "%s-%d: broker %d joins the ISR, and may have missed messages from NATS that only this broker received; "
                "if it leads before it has caught up with them, that is a gap",
                self._topic,
                partition,
                broker,
            )
        self._ready.pop(key, None)
        self._waiting.pop(key, None)
        return True


class Standbys:
    """The standbys of one topic. All calls on the loop's thread."""

    def __init__(
        self,
        host: ExtensionHost,
        client: NatsClient,
        topic: str,
        bytes_max: int,
        append_all: Callable[[], Mapping[int, int]],
        on_begin: Callable[[], object],
        on_lapses: OnLapses,
        *,
        is_new: bool = False,
        backfill: Backfill | None = None,
    ) -> None:
        """`append_all()` appends all messages received and returns the end of the log of each partition that is led here, -1
        while messages wait, or are in the log and still to be received. `on_begin()` is called when a standby begins later than
        `serve`, `on_lapses` with partitions that this broker begins to lead and whose standbys lack messages. `is_new`: the
        binding is, so a standby that is created first has missed nothing. With `backfill`, followers may have messages that
        this broker has missed."""
        self.by_index: dict[int, Standby] = {}
        self.reports = StandbyReports(host.runtime, topic)
        self._joining: dict[int, Partition] = {}  # followed, not in the ISR, and without a standby yet
        self._leading: Mapping[int, Partition] = {}
        self._opening: Container[int] = ()
        self._runtime = host.runtime
        self._proposals = host.partitions.proposals
        self._client = client
        self._bytes_max = bytes_max
        self._append_all = append_all
        self._on_begin = on_begin
        self._on_lapses = on_lapses
        self._is_new = is_new
        self._backfill = backfill
        self._begun_ms = self._runtime.time_ms()
        self._subscribed_ms = 0  # since when, 0 while not
        self._interruption = self._begun_ms, _TOO_EARLY  # since when it is not subscribed, and why
        self._subjects = MarkSubjects(client, host.cluster_id, topic)
        self._me = self._runtime.random_bytes(SENDER_BYTES).hex()
        self._number = 0
        self._timer: Timer | None = None  # from the first standby on

    def serve(self, roles: Roles, begun: Iterable[int]) -> dict[int, Standby]:
        """Keeps standbys for these roles. Returns those that the partitions in `begun`, which this broker begins to lead, have
        had, also when such a partition has no other replica any more, and so no standby."""
        known = self.by_index
        joined = {index: each for index, each in roles.joining.items() if index in known}
        self._joining = {index: each for index, each in roles.joining.items() if index not in joined}
        before = {index: known[index] for index in begun if index in known}
        hosted = {**roles.leading, **roles.following, **joined}
        wanted = {index: each for index, each in hosted.items() if len(each.state.replicas) > 1}
        for index in [index for index, each in known.items() if wanted.get(index) is not each.partition]:
            known.pop(index).close()
        for index in sorted(wanted):
            if index not in known:
                lapse = None if index in roles.leading else self._first_lapse(index)
                known[index] = self._new_standby(wanted[index], lapse)
        self._is_new = False
        self._leading, self._opening = roles.leading, roles.opening
        if self._timer is None and (known or self._joining):
            self._subscribe()
            self._tick_later(TICK_S)
        elif self._timer is not None and self._joining:
            self._timer.cancel()
            self._tick_later(TICK_S)
        return before

    def resize(self, bytes_max: int) -> None:
        """Bounds the bytes that a standby keeps, from the next one on."""
        self._bytes_max = bytes_max

    def take_back(self, partition: Partition, messages: Iterable[tuple[bytes, Special | None]]) -> bool:
        """Keeps messages of a partition that this broker stops leading: they are in no log yet, unless others have led
        meanwhile. Returns whether the partition has a standby."""
        standby = self.by_index.get(partition.partition)
        if standby is None or standby.partition is not partition:
            return False
        now_s = self._runtime.monotonic()
        for tail, special in messages:
            standby.matcher.received(tail, now_s, special)
        standby.resume()
        if not self.is_subscribed:
            standby.begin_lapse(*self._interruption)
        return True

    def note_lapses(self, begun: Mapping[int, Standby]) -> None:
        """Reports what standbys lack whose partitions are led here from now on."""
        found = [(each.partition, each.lapse) for each in begun.values() if each.lapse is not None]
        for standby in begun.values():
            standby.clear_lapse()
        if found:
            self._on_lapses(found)

    def clear_lapse(self, index: int) -> None:
        """The partition lacks nothing, or its lapse is recorded as a gap."""
        if index in self.by_index:
            self.by_index[index].clear_lapse()

    def stop(self) -> None:
        for standby in self.by_index.values():
            standby.close()
        self.by_index.clear()
        self._joining = {}
        self._subjects.close()
        if self._timer is not None:
            self._timer.cancel()

    # -- the subscriptions to the topic's messages

    @property
    def is_subscribed(self) -> bool:
        return self._subscribed_ms > 0

    def resubscribed(self) -> None:
        """The connection is new: messages published before are not delivered any more."""
        for standby in self.by_index.values():
            standby.restart()

    def interrupted(self, since_ms: int, cause: str) -> None:
        """Messages may be missed from then on, until `subscribed`."""
        self._subscribed_ms = 0
        self._interruption = since_ms, cause
        for standby in self.by_index.values():
            standby.begin_lapse(since_ms, cause)

    def subscribed(self, now_ms: int, held: Container[int]) -> None:
        """All messages published from now on are received. What partitions led here lack is recorded as a gap, except for those
        in `held`: another broker may have these messages, and this one lacks them until it has replicated them."""
        self._subscribed_ms = self._subscribed_ms or now_ms
        for index, standby in self.by_index.items():
            standby.end_lapse(now_ms)
            if index in self._leading and index not in held:
                standby.clear_lapse()

    def may_take_over(self, index: int, broker: int, broker_epoch: int | None) -> bool:
        """Whether a follower of a partition that is led here may join the ISR. While this broker receives nothing, no follower
        can catch up with it, so any may."""
        return not self.is_subscribed or self.reports.may_take_over(index, broker, broker_epoch)

    def call(self) -> None:
        """Asks the followers of partitions that are led here for a mark."""
        self._subjects.publish("call", b"")

    # -- begin

    def _new_standby(self, partition: Partition, lapse: Lapse | None) -> Standby:
        runtime = self._runtime
        return Standby(partition, runtime.monotonic(), runtime.time_ms(), self._bytes_max, lapse)

    def _first_lapse(self, index: int) -> Lapse:
        """Until it is known that a new standby lacks nothing."""
        if self._is_new or index in self._opening:
            return Lapse(self._begun_ms, self._subscribed_ms, _TOO_EARLY)
        now_ms = self._runtime.time_ms()
        return Lapse(now_ms, now_ms if self.is_subscribed else 0, _TOO_EARLY, is_older=True)

    def _begin_joining(self) -> None:
        """Begins standbys of followers that have what is committed; earlier ones would keep much for nothing."""
        begun = [index for index, partition in self._joining.items() if partition.is_caught_up]
        for index in begun:
            self.by_index[index] = self._new_standby(self._joining.pop(index), self._first_lapse(index))
        if begun:
            self._on_begin()

    # -- marks

    def _subscribe(self) -> None:
        self._subjects.subscribe("mark", self._mark_received)
        self._subjects.subscribe(f"ends.{self._me}", self._answer_received)
        self._subjects.subscribe("standby", self._report_received)
        self._subjects.subscribe("call", self._call_received)

    def _tick_later(self, after_s: float) -> None:
        self._timer = self._runtime.call_later(after_s, self._tick)

    def _followed(self) -> list[Standby]:
        return [standby for index, standby in self.by_index.items() if index not in self._leading]

    def _tick(self) -> None:
        self._tick_later(TICK_S if self.by_index or self._joining else IDLE_TICK_S)
        self._begin_joining()
        followed = self._followed()
        now_s = self._runtime.monotonic()
        for standby in followed:  # replication continues without a connection, and its records expire
            standby.tick(now_s)
        if not followed or not self._client.is_connected or not self.is_subscribed:
            return
        self._report_ready(followed, now_s)
        for standby in followed:
            if standby.leader_is_silent():
                self._ask_to_lead(standby, "does not receive")
        wanting = [standby for standby in followed if standby.wants_mark()]
        if not wanting:
            return
        self._number += 1
        for standby in wanting:
            standby.mark_sent(self._number)
        self._subjects.publish("mark", msgspec.json.encode(Mark(self._me, self._number)))

    def _mark_received(self, payload: bytes) -> None:
        mark = _read_mark(payload)
        if mark is None:
            return
        if mark.sender == self._me:
            until_ms = self._runtime.time_ms() + int(RACE_S * 1000)
            for standby in self.by_index.values():
                standby.mark_received(mark.number)
                standby.extend_lapse(until_ms)
            return
        if not self.is_subscribed:
            return
        number_for = self._backfill.number_for if self._backfill is not None else lambda _index: 0
        ends = {
            index: (self._leading[index].leader_epoch, end_offset, number_for(index))
            for index, end_offset in self._append_all().items()
        }
        if ends:
            self._subjects.publish(f"ends.{mark.sender}", msgspec.json.encode(Ends(mark.number, ends)))

    def _answer_received(self, payload: bytes) -> None:
        try:
            answer = _read_ends(payload)
        except _NO_JSON:
            return
        for index, (leader_epoch, offset, absence) in answer.ends.items():
            standby = self.by_index.get(index)
            if standby is None or index in self._leading or standby.partition.leader_epoch != leader_epoch:
                continue
            standby.leader_answered()
            if absence and standby.may_have(absence):
                self._fill(standby, offset, absence)
                continue
            if absence:
                self._report([index], -absence)
            if offset >= 0:
                standby.mark_found(answer.number, leader_epoch, offset)

    # -- what a leader has missed

    def _call_received(self, _payload: bytes) -> None:
        for standby in self._followed():
            standby.request_mark()

    def _fill(self, standby: Standby, offset: int, absence: int) -> None:
        """The leader, whose log ends at `offset`, was absent and may lack messages that are here."""
        partition = standby.partition
        if not standby.matcher.pending and 0 <= offset <= partition.log.log_end_offset:
            self._report([partition.partition], absence)
        else:
            self._ask_to_lead(standby, "has missed")

    def _ask_to_lead(self, standby: Standby, why: str) -> None:
        partition = standby.partition
        if self._proposals.node_id in partition.state.isr and partition.leader_id >= 0:
            log.info(
                "%s: this broker asks to lead, as broker %d %s messages that are here",
                partition.log.name,
                partition.leader_id,
                why,
            )
            standby.leader_answered()  # it takes a moment to become the leader; then this broker may ask again
            self._proposals.propose_leadership(partition, partition.state.isr)

    # -- reports

    def _report(self, partitions: list[int], absence: int = 0) -> None:
        report = StandbyReport(self._proposals.node_id, self._proposals.broker_epoch(), partitions, absence)
        self._subjects.publish("standby", msgspec.json.encode(report))

    def _report_ready(self, followed: Iterable[Standby], now_s: float) -> None:
        """Reports the partitions that this broker could lead and whose ISR it is not in yet."""
        ready: list[int] = []
        for standby in followed:
            partition = standby.partition
            is_due = now_s - standby.reported_at_s >= REPORT_EVERY_S
            if standby.lapse is None and self._proposals.node_id not in partition.state.isr and is_due:
                standby.reported(now_s)
                ready.append(partition.partition)
        if ready:
            self._report(ready)

    def _report_received(self, payload: bytes) -> None:
        try:
            report = _read_report(payload)
        except _NO_JSON:
            return
        if report.absence:
            if self._backfill is not None and report.absence > 0:
                self._backfill.complete(report.absence, report.partitions)
            elif self._backfill is not None:
                self._backfill.follower_absent(-report.absence, report.broker, report.partitions)
            return
        for index in report.partitions:
            partition = self._leading.get(index)
            # Any account may publish reports.
            if partition is not None and report.broker in partition.state.replicas:
                self.reports.received(report, index)
                if partition.leadership is not None:
                    partition.leadership.reconsider(report.broker)
