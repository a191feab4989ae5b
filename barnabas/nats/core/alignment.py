"""From where on a follower counts messages against records: a mark that it and the leader receive among the messages.

Every broker of a binding listens to the binding's marks, on the connection that its messages come in on, so a mark has a
place among the messages. A follower that begins to count sends one. The leader appends what it has received before it,
and answers where its log ends then; records from there on belong to the messages behind the mark. Both are server
work of the same moment, so what is published at exactly that time may be on different sides of it; then something is left
over in the ledger, and another mark follows. A follower whose log has come to that end lacks nothing (core/standbys.py),
and tells the leader so until it is in sync.

Where the account may not publish marks, counting begins anywhere, and is right as soon as nothing is left over, but for
messages that are all alike.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.client.errors import NatsError
from barnabas.nats.core.standbys import TOLD_EVERY_S, Standby, Standbys

if TYPE_CHECKING:
    from barnabas.broker.partitions.alter_partition import AlterPartitionManager
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.client.client import NatsClient, Subscription
    from barnabas.nats.core.refill import Refill
    from barnabas.nats.core.shadow import Shadow
    from barnabas.nats.ingest.ingest import Ingest
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

LOOK_EVERY_S: Final = 0.1
LOOK_IDLE_S: Final = (
    1.0  # where nobody follows anything, as on every single broker: there may be many bindings
)
SENDER_BYTES: Final = 8  # written in hexadecimal digits
_NO_JSON: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
_is_sender: Final = re.compile(f"[0-9a-f]{{{2 * SENDER_BYTES}}}").fullmatch


class Mark(msgspec.Struct):
    """What a mark says."""

    sender: str
    number: int


class Ends(msgspec.Struct):
    """A leader's answer: by partition, its leader epoch and where its log ended, -1 when that can't be told just now; and
    the number of its absence, if it has missed messages that the follower may have (core/refill.py), or 0."""

    number: int
    ends: dict[int, tuple[int, int, int]]


_read_ends: Final = msgspec.json.Decoder(Ends).decode
_read_standby: Final = msgspec.json.Decoder(Standby).decode


def _read_mark(payload: bytes) -> Mark | None:
    """Anybody may publish anything there, and what the sender's name makes of a subject can end a connection."""
    try:
        mark = msgspec.json.decode(payload, type=Mark)
    except _NO_JSON:
        return None
    return mark if _is_sender(mark.sender) else None


class Alignment:
    """Of one binding on one broker. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        client: NatsClient,
        ingest: Ingest,
        cluster_id: str,
        proposals: AlterPartitionManager,
        is_listening: Callable[[], bool],
    ) -> None:
        """`is_listening()`: the server has the binding's subscriptions."""
        prefix = f"_BARNABAS.{cluster_id}.{ingest.binding.topic}"
        self._marks = f"{prefix}.mark"
        self._answers = f"{prefix}.ends"
        self._standby = f"{prefix}.standby"
        self._calls = f"{prefix}.call"
        self.refill: Refill | None = None
        self.standbys = Standbys(runtime, ingest.binding.topic)
        self._proposals = proposals
        self._is_listening = is_listening
        self._runtime = runtime
        self._client = client
        self._ingest = ingest
        self._me = runtime.random_bytes(SENDER_BYTES).hex()
        self._number = 0
        self._subscriptions: list[Subscription] = []
        self._timer: Timer | None = None

    def start(self) -> None:
        self._subscriptions = [
            self._client.subscribe(self._marks, self._mark_came),
            self._client.subscribe(f"{self._answers}.{self._me}", self._answer_came),
            self._client.subscribe(self._standby, self._standby_came),
            self._client.subscribe(self._calls, self._call_came),
        ]
        self._look_later(LOOK_EVERY_S)

    def stop(self) -> None:
        for subscription in self._subscriptions:
            subscription.unsubscribe()
        if self._timer is not None:
            self._timer.cancel()

    def roles_changed(self) -> None:
        """A follower does not wait for the next look of one that had nothing to follow."""
        if self._timer is not None:
            self._timer.cancel()
            self._look_later(LOOK_EVERY_S)

    def _look_later(self, after_s: float) -> None:
        self._timer = self._runtime.call_later(after_s, self._look)

    def _look(self) -> None:
        ingest = self._ingest
        self._look_later(LOOK_EVERY_S if ingest.shadows or ingest.joining else LOOK_IDLE_S)
        if ingest.joining:
            ingest.begin_shadows()
        followed = [shadow for index, shadow in ingest.shadows.items() if index not in ingest.lanes]
        if not followed:
            return
        now_s = self._runtime.monotonic()
        for shadow in followed:  # replication goes on without a connection, and what it brings gets old
            shadow.tick(now_s)
        if not self._client.is_connected or not self._is_listening():
            return
        self._tell_leaders(now_s)
        for shadow in followed:
            if shadow.leader_is_deaf():
                self._ask_to_lead(shadow, "does not receive")
        wanting = [shadow for shadow in followed if shadow.wants_mark()]
        if not wanting:
            return
        self._number += 1
        for shadow in wanting:
            shadow.mark_sent(self._number)
        self._publish(self._marks, msgspec.json.encode(Mark(self._me, self._number)))

    def _mark_came(self, _subject: bytes, _reply: bytes, _headers: bytes, payload: bytes) -> None:
        mark = _read_mark(payload)
        if mark is None:
            return
        ingest = self._ingest
        if mark.sender == self._me:
            for shadow in ingest.shadows.values():
                shadow.mark_received(mark.number)
            return
        if not self._is_listening():
            return
        ingest.close()
        ends = {
            index: (
                lane.partition.leader_epoch,
                ingest.end_of(index),
                self.refill.number_for(index) if self.refill is not None else 0,
            )
            for index, lane in ingest.lanes.items()
        }
        if ends:
            self._publish(f"{self._answers}.{mark.sender}", msgspec.json.encode(Ends(mark.number, ends)))

    def _answer_came(self, _subject: bytes, _reply: bytes, _headers: bytes, payload: bytes) -> None:
        try:
            answer = _read_ends(payload)
        except _NO_JSON:
            return
        ingest = self._ingest
        for index, (leader_epoch, offset, absence) in answer.ends.items():
            shadow = ingest.shadows.get(index)
            if shadow is None or index in ingest.lanes or shadow.partition.leader_epoch != leader_epoch:
                continue
            shadow.leader_answered()
            if absence and shadow.may_have(absence):
                self._fill(shadow, offset, absence)
                continue
            if absence:
                self._tell(shadow.partition, -absence)
            if offset >= 0:
                shadow.mark_found(answer.number, leader_epoch, offset)

    # -- what a leader has missed

    def call_standbys(self) -> None:
        """Have those that follow what is led here send marks."""
        self._publish(self._calls, b"")

    def _call_came(self, _subject: bytes, _reply: bytes, _headers: bytes, _payload: bytes) -> None:
        for index, shadow in self._ingest.shadows.items():
            if index not in self._ingest.lanes:
                shadow.is_called = True

    def _fill(self, shadow: Shadow, offset: int, absence: int) -> None:
        """The leader may lack what is here: it has been absent, and its log ends there now."""
        partition = shadow.partition
        if not shadow.ledger.pending and 0 <= offset <= partition.log.log_end_offset:
            self._tell(partition, absence)
        else:
            self._ask_to_lead(shadow, "has missed")

    def _tell(self, partition: Partition, absence: int) -> None:
        proposals = self._proposals
        standby = Standby(proposals.node_id, proposals.broker_epoch(), [partition.partition], absence)
        self._publish(self._standby, msgspec.json.encode(standby))

    def _ask_to_lead(self, shadow: Shadow, why: str) -> None:
        partition = shadow.partition
        if self._proposals.node_id in partition.state.isr and partition.leader_id >= 0:
            log.info(
                "%s: this broker asks to lead, as broker %d %s messages that are here",
                partition.log.name,
                partition.leader_id,
                why,
            )
            shadow.asks_to_lead()
            self._proposals.propose_leadership(partition, partition.state.isr)

    # -- standbys

    def _tell_leaders(self, now_s: float) -> None:
        """Which partitions this broker could lead that it is not in sync with yet, as far as the metadata says."""
        proposals = self._proposals
        ready: list[int] = []
        for index, shadow in self._ingest.shadows.items():
            partition = shadow.partition
            if (
                index not in self._ingest.lanes
                and shadow.lapse is None
                and proposals.node_id not in partition.state.isr
                and now_s - shadow.told_at_s >= TOLD_EVERY_S
            ):
                shadow.told_at_s = now_s
                ready.append(index)
        if ready:
            standby = Standby(proposals.node_id, proposals.broker_epoch(), ready)
            self._publish(self._standby, msgspec.json.encode(standby))

    def _standby_came(self, _subject: bytes, _reply: bytes, _headers: bytes, payload: bytes) -> None:
        try:
            standby = _read_standby(payload)
        except _NO_JSON:
            return
        if standby.absence:
            if self.refill is not None and standby.absence > 0:
                self.refill.whole(standby.absence, standby.partitions)
            elif self.refill is not None:
                self.refill.absent(-standby.absence, standby.broker, standby.partitions)
            return
        for index in standby.partitions:
            lane = self._ingest.lanes.get(index)
            if (
                lane is not None and standby.broker in lane.partition.state.replicas
            ):  # anybody may publish there
                self.standbys.told(standby, index)
                if lane.partition.leadership is not None:
                    lane.partition.leadership.reconsider(standby.broker)

    def may_take_over(self, index: int, broker: int, broker_epoch: int | None) -> bool:
        """Whether a follower of a partition that is led here may join the ISR. Where this broker receives nothing, nobody can
        catch up with it."""
        return not self._is_listening() or self.standbys.may_take_over(index, broker, broker_epoch)

    def _publish(self, subject: str, payload: bytes) -> None:
        try:
            self._client.publish(subject.encode(), payload)
        except (NatsError, ValueError) as error:
            log.debug("no mark on %s: %s", subject, error)
