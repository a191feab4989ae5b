"""Barriers: places among a topic's messages that several brokers agree on.

A mark is a message on a subject of the topic's own, published and received on the connection that the topic's messages come
in on, so it has a place among them. nats-server fans a mark out within tens of microseconds; a message that is published in
exactly that time may come before the mark to one broker and after it to another.

`StandbyBarrier`: from where on a follower compares messages with records. A follower that begins to compare publishes a mark.
The leader appends the messages before it, and answers with the end of its log; records from there on belong to messages
behind the mark. If something is left over in the matcher (ingress/tail_matcher.py), another mark follows. A follower whose log
has reached that end lacks nothing, and reports this to the leader until it is in sync (ingress/standby.py). Where the account
may not publish marks, comparing begins anywhere, and is right as soon as nothing is left over, except for messages that
are all equal.

`ChangeBarrier`: where the brokers of a cluster apply a change of a binding that moves messages. With another key, or more
partitions, a message may belong to another partition, which another broker leads. If each broker applied the change when it
learns of it, messages of these milliseconds would be stored by both or by none. So all of them go on as before until the
mark, which the leader of the first partition publishes shortly after it has learned of the change. Without the mark (its
sender is gone, the account may not publish it) each broker applies the change after LATEST_S.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

import msgspec

from barnabas.nats.client.errors import NatsError
from barnabas.nats.ingress.standby import REPORT_EVERY_S, StandbyReport, StandbyReports

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.broker.partitions.alter_partition import AlterPartitionManager
    from barnabas.broker.partitions.partition import Partition
    from barnabas.controller.metadata.image import TopicImage
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.client.client import NatsClient, Subscription
    from barnabas.nats.ingress.gap_tracker import Backfill
    from barnabas.nats.ingress.ingest import Ingest
    from barnabas.nats.ingress.standby import Standby
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

LOOK_EVERY_S: Final = 0.1
LOOK_IDLE_S: Final = 1.0  # without followers, as on every single broker: there may be many bindings
SENDER_BYTES: Final = 8  # written in hexadecimal digits
_NO_JSON: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
_is_sender: Final = re.compile(f"[0-9a-f]{{{2 * SENDER_BYTES}}}").fullmatch


class Mark(msgspec.Struct):
    """What a mark says."""

    sender: str
    number: int


class Ends(msgspec.Struct):
    """A leader's answer: by partition, its leader epoch and where its log ended, -1 when that can't be told just now; and
    the number of its absence, if it has missed messages that the follower may have (ingress/gap_tracker.py), or 0."""

    number: int
    ends: dict[int, tuple[int, int, int]]


_read_ends: Final = msgspec.json.Decoder(Ends).decode
_read_report: Final = msgspec.json.Decoder(StandbyReport).decode


def _read_mark(payload: bytes) -> Mark | None:
    """None for anything else: any account may publish there, and the sender's name becomes part of a subject."""
    try:
        mark = msgspec.json.decode(payload, type=Mark)
    except _NO_JSON:
        return None
    return mark if _is_sender(mark.sender) else None


class _MarkSubjects:
    """The subjects `_BARNABAS.<cluster>.<topic>.<name>`, on the connection that the topic's messages come in on."""

    def __init__(self, client: NatsClient, cluster_id: str, topic: str) -> None:
        self._client = client
        self._prefix = f"_BARNABAS.{cluster_id}.{topic}"
        self._subscriptions: list[Subscription] = []

    def subscribe(self, name: str, received: Callable[[bytes], object]) -> None:
        """`received(payload)`; any account may publish there."""

        def take(_subject: bytes, _reply: bytes, _header_block: bytes, payload: bytes) -> None:
            received(payload)

        self._subscriptions.append(self._client.subscribe(f"{self._prefix}.{name}", take))

    def publish(self, name: str, payload: bytes) -> None:
        try:
            self._client.publish(f"{self._prefix}.{name}".encode(), payload)
        except (NatsError, ValueError) as error:
            log.debug("no mark on %s.%s: %s", self._prefix, name, error)

    def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.unsubscribe()
        self._subscriptions = []


class StandbyBarrier:
    """Of one binding on one broker. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        client: NatsClient,
        ingest: Ingest,
        cluster_id: str,
        proposals: AlterPartitionManager,
        is_listening: Callable[[], bool],
        backfill: Backfill | None = None,
    ) -> None:
        """`is_listening()`: the server has the binding's subscriptions. With `backfill`, followers may have messages that
        this broker has missed."""
        self._subjects = _MarkSubjects(client, cluster_id, ingest.binding.topic)
        self._backfill = backfill
        self.reports = StandbyReports(runtime, ingest.binding.topic)
        self._proposals = proposals
        self._is_listening = is_listening
        self._runtime = runtime
        self._client = client
        self._ingest = ingest
        self._me = runtime.random_bytes(SENDER_BYTES).hex()
        self._number = 0
        self._timer: Timer | None = None

    def start(self) -> None:
        self._subjects.subscribe("mark", self._mark_came)
        self._subjects.subscribe(f"ends.{self._me}", self._answer_came)
        self._subjects.subscribe("standby", self._report_came)
        self._subjects.subscribe("call", self._call_came)
        self._look_later(LOOK_EVERY_S)

    def stop(self) -> None:
        self._subjects.close()
        if self._timer is not None:
            self._timer.cancel()

    def roles_changed(self) -> None:
        """Looks soon: this broker may follow partitions now."""
        if self._timer is not None:
            self._timer.cancel()
            self._look_later(LOOK_EVERY_S)

    def _look_later(self, after_s: float) -> None:
        self._timer = self._runtime.call_later(after_s, self._look)

    def _look(self) -> None:
        ingest = self._ingest
        self._look_later(LOOK_EVERY_S if ingest.standbys or ingest.joining else LOOK_IDLE_S)
        if ingest.joining:
            ingest.begin_standbys()
        followed = [standby for index, standby in ingest.standbys.items() if index not in ingest.lanes]
        if not followed:
            return
        now_s = self._runtime.monotonic()
        for standby in followed:  # replication goes on without a connection, and its records expire
            standby.tick(now_s)
        if not self._client.is_connected or not self._is_listening():
            return
        self._report_to_leaders(now_s)
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

    def _mark_came(self, payload: bytes) -> None:
        mark = _read_mark(payload)
        if mark is None:
            return
        ingest = self._ingest
        if mark.sender == self._me:
            for standby in ingest.standbys.values():
                standby.mark_received(mark.number)
            return
        if not self._is_listening():
            return
        ingest.close()
        ends = {
            index: (
                lane.partition.leader_epoch,
                ingest.end_of(index),
                self._backfill.number_for(index) if self._backfill is not None else 0,
            )
            for index, lane in ingest.lanes.items()
        }
        if ends:
            self._subjects.publish(f"ends.{mark.sender}", msgspec.json.encode(Ends(mark.number, ends)))

    def _answer_came(self, payload: bytes) -> None:
        try:
            answer = _read_ends(payload)
        except _NO_JSON:
            return
        ingest = self._ingest
        for index, (leader_epoch, offset, absence) in answer.ends.items():
            standby = ingest.standbys.get(index)
            if standby is None or index in ingest.lanes or standby.partition.leader_epoch != leader_epoch:
                continue
            standby.leader_answered()
            if absence and standby.may_have(absence):
                self._fill(standby, offset, absence)
                continue
            if absence:
                self._report(standby.partition, -absence)
            if offset >= 0:
                standby.mark_found(answer.number, leader_epoch, offset)

    # -- what a leader has missed

    def call_standbys(self) -> None:
        """Has the followers of partitions that are led here send marks."""
        self._subjects.publish("call", b"")

    def _call_came(self, _payload: bytes) -> None:
        for index, standby in self._ingest.standbys.items():
            if index not in self._ingest.lanes:
                standby.is_called = True

    def _fill(self, standby: Standby, offset: int, absence: int) -> None:
        """The leader, whose log ends at `offset`, was absent and may lack messages that are here."""
        partition = standby.partition
        if not standby.matcher.pending and 0 <= offset <= partition.log.log_end_offset:
            self._report(partition, absence)
        else:
            self._ask_to_lead(standby, "has missed")

    def _report(self, partition: Partition, absence: int) -> None:
        proposals = self._proposals
        report = StandbyReport(proposals.node_id, proposals.broker_epoch(), [partition.partition], absence)
        self._subjects.publish("standby", msgspec.json.encode(report))

    def _ask_to_lead(self, standby: Standby, why: str) -> None:
        partition = standby.partition
        if self._proposals.node_id in partition.state.isr and partition.leader_id >= 0:
            log.info(
                "%s: this broker asks to lead, as broker %d %s messages that are here",
                partition.log.name,
                partition.leader_id,
                why,
            )
            standby.asks_to_lead()
            self._proposals.propose_leadership(partition, partition.state.isr)

    # -- standbys

    def _report_to_leaders(self, now_s: float) -> None:
        """Reports the partitions that this broker could lead and whose ISR it is not in yet."""
        proposals = self._proposals
        ready: list[int] = []
        for index, standby in self._ingest.standbys.items():
            partition = standby.partition
            if (
                index not in self._ingest.lanes
                and standby.lapse is None
                and proposals.node_id not in partition.state.isr
                and now_s - standby.reported_at_s >= REPORT_EVERY_S
            ):
                standby.reported_at_s = now_s
                ready.append(index)
        if ready:
            report = StandbyReport(proposals.node_id, proposals.broker_epoch(), ready)
            self._subjects.publish("standby", msgspec.json.encode(report))

    def _report_came(self, payload: bytes) -> None:
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
            lane = self._ingest.lanes.get(index)
            if (
                lane is not None and report.broker in lane.partition.state.replicas
            ):  # any account may publish there
                self.reports.received(report, index)
                if lane.partition.leadership is not None:
                    lane.partition.leadership.reconsider(report.broker)

    def may_take_over(self, index: int, broker: int, broker_epoch: int | None) -> bool:
        """Whether a follower of a partition that is led here may join the ISR. While this broker receives nothing, no follower
        can catch up with it, so any may."""
        return not self._is_listening() or self.reports.may_take_over(index, broker, broker_epoch)


SENT_AFTER_S: Final = 0.2  # by then the other brokers know of the change
LATEST_S: Final = 1.5
EARLY_S: Final = 5.0  # a mark counts for so long before its change is known
EARLY_MAX: Final = 100
VERSION_BYTES_MAX: Final = 200


class BindingChange(NamedTuple):
    """A change by its version, which is the same on all brokers, and whether this broker sends the mark."""

    version: str
    is_sender: bool


def change_of(host: ExtensionHost, topic: TopicImage, binding: Binding) -> BindingChange | None:
    """The change to this binding and the topic's partitions; None when no other broker applies it."""
    states = topic.partitions.values()
    brokers = {broker for state in states for broker in state.replicas}
    if binding.topic_template is not None:
        brokers.update(host.controller.image.brokers)
    if brokers <= {host.node_id}:
        return None
    first = next((state.leader for state in states if state.leader >= 0), -1)
    version = f"{crc32(repr(binding).encode()):08x}-{len(states)}"
    return BindingChange(version, first == host.node_id)


class _Planned(NamedTuple):
    version: str
    apply: Callable[[], object]
    timer: Timer


class ChangeBarrier:
    """Of one topic on one broker. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, client: NatsClient, topic: str, cluster_id: str) -> None:
        self._runtime = runtime
        self._client = client
        self._topic = topic
        self._subjects = _MarkSubjects(client, cluster_id, topic)
        self._planned: list[_Planned] = []
        self._early: dict[str, float] = {}  # marks of changes that are not known here: when they came
        self._waiting: list[Callable[[], object]] = []

    def start(self) -> None:
        self._subjects.subscribe("turn", self._mark_came)

    def stop(self) -> None:
        """Planned changes are not applied any more."""
        self._subjects.close()
        for planned in self._planned:
            planned.timer.cancel()
        self._planned.clear()
        self._call_waiting()

    @property
    def has_planned(self) -> bool:
        return bool(self._planned)

    def plan(self, change: BindingChange, apply: Callable[[], object]) -> None:
        """Has `apply` called at the mark, after all changes that were planned before."""
        runtime, version = self._runtime, change.version
        timer = runtime.call_later(LATEST_S, lambda: self._too_late(version))
        self._planned.append(_Planned(version, apply, timer))
        came_s = self._early.pop(version, None)
        if not self._client.is_connected or (came_s is not None and came_s + EARLY_S > runtime.monotonic()):
            self._apply(version)
        elif change.is_sender:
            runtime.call_later(SENT_AFTER_S, lambda: self._send(version))

    def when_done(self, callback: Callable[[], object]) -> None:
        """Calls back when no change is planned, perhaps now."""
        if self._planned:
            self._waiting.append(callback)
        else:
            callback()

    def _send(self, version: str) -> None:
        if any(planned.version == version for planned in self._planned):
            self._subjects.publish("turn", version.encode())

    def _mark_came(self, payload: bytes) -> None:
        version = payload[:VERSION_BYTES_MAX].decode(errors="replace")
        if any(planned.version == version for planned in self._planned):
            self._apply(version)
            return
        if len(self._early) >= EARLY_MAX:
            self._early.clear()
        self._early[version] = self._runtime.monotonic()

    def _too_late(self, version: str) -> None:
        log.warning(
            "topic %s: the mark of a change has not come, so the change is applied without it; brokers that do so one after the "
            "other may miss messages of this moment, or store them twice",
            self._topic,
        )
        self._apply(version)

    def _apply(self, version: str) -> None:
        """Applies all changes up to this one."""
        while self._planned:
            planned = self._planned.pop(0)
            planned.timer.cancel()
            planned.apply()
            if planned.version == version:
                break
        if not self._planned:
            self._call_waiting()

    def _call_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()
