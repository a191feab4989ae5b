"""Publishes a topic's committed records as messages, for the partitions that are led here.

The position is that of an ordinary consumer group without members (nats.publish.group, egress/group_positions.py). So Kafka's
tools show the lag and can move the position, best while nats.paused=true. A topic whose group has no position is published
from its first record. The next leader of a partition starts at the group's position: messages that were in flight are
published again, with the same Nats-Msg-Id.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from barnabas.nats.announcements import publishing
from barnabas.nats.binding.binding import KV
from barnabas.nats.binding.subjects import matches
from barnabas.nats.carrier import CarrierStats
from barnabas.nats.client.client import ClientListener
from barnabas.nats.cluster.positions import Positions
from barnabas.nats.egress.group_positions import GroupPositions
from barnabas.nats.egress.message import SubjectOutgoing
from barnabas.nats.egress.partition_publisher import PartitionPublisher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barnabas.broker.extension import ExtensionHost
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.client.client import NatsClient, Subscription
    from barnabas.nats.client.errors import Cause
    from barnabas.nats.client.protocol import ServerInfo
    from barnabas.nats.egress.message import Outgoing
    from barnabas.runtime.interface import Timer

    MakeOutgoing = Callable[[Partition, CarrierStats], Outgoing]

log = logging.getLogger("barnabas.nats")

DEFAULT_GROUP_PREFIX: Final = "nats-"
COMMIT_EVERY_S: Final = 1.0
COMMIT_AFTER: Final = 10_000  # records of one partition
# In flight. A stream refuses more than 10,000 messages that it has not stored yet.
MESSAGES_MAX: Final = 4096
BYTES_MAX: Final = 8 * 1024 * 1024
MESSAGES_MIN: Final = 32  # of each partition, however many there are
BYTES_MIN: Final = 128 * 1024


class TopicPublisher(ClientListener):
    """The Carrier of nats.publish.subject, or of a topic published to a key-value bucket, on one broker."""

    def __init__(
        self,
        binding: Binding,
        host: ExtensionHost,
        client: NatsClient,
        positions: Positions | None = None,
        outgoing: MakeOutgoing | None = None,
    ) -> None:
        """`positions`: shared by the broker's bindings; None: own ones. `outgoing` makes the messages of a partition; None:
        those of nats.publish.subject."""
        self.binding = binding
        self.group = binding.publish_group or DEFAULT_GROUP_PREFIX + binding.topic
        self.client = client
        self.runtime = host.runtime
        self.inbox = b""
        self.messages_max = MESSAGES_MAX
        self.bytes_max = BYTES_MAX
        self.publishers: dict[int, PartitionPublisher] = {}
        self.stats = CarrierStats()
        self._host = host
        self._positions = positions if positions is not None else Positions(host)
        self._owns_positions = positions is None
        self._subscription: Subscription | None = None
        self._tick_timer: Timer | None = None
        retention_s = host.config.offsets_retention_minutes * 60
        self._group_positions = GroupPositions(
            self.runtime, self._positions, self.group, self.publishers, retention_s
        )
        self._outgoing = outgoing or self._to_subjects
        self._is_stopped = False

    # -- as a Carrier

    @property
    def state(self) -> str:
        """ "running", "starting", "connecting: <why>", "waiting: <why>" or "blocked: <why, and what to do>"."""
        if self._subscription is not None and self._subscription.refused:
            return f"blocked: this user may not receive acknowledgements: {self._subscription.refused}"
        problems = [each.problem for _, each in sorted(self.publishers.items()) if each.problem]
        if problems:
            return sorted(problems)[0]
        if not self.client.is_connected:
            cause = self.client.last_cause
            return f"connecting: {cause}" if cause is not None else "connecting"
        if self._group_positions.commit_problem:
            return self._group_positions.commit_problem
        if any(not each.is_begun for each in self.publishers.values()):
            return self._group_positions.fetch_problem or "starting"
        return "running"

    def start(self, leading: Mapping[int, Partition]) -> None:
        if self.binding.mode == KV or self.binding.publish_jetstream:
            self.inbox = self.client.new_inbox() + b"."
            self._subscription = self.client.subscribe((self.inbox + b">").decode(), self._take_ack)
        self.client.listeners.append(self)
        log.info("topic %s %s", self.binding.topic, publishing(self.binding, self.group, leading))
        self._tick()
        self.roles_changed(leading)

    def roles_changed(self, leading: Mapping[int, Partition]) -> None:
        """A partition that was led by another broker meanwhile starts again at the group's position."""
        if self._is_stopped:
            return
        gone = [
            index
            for index, publisher in self.publishers.items()
            if leading.get(index) is not publisher.partition
            or publisher.partition.leader_epoch != publisher.leader_epoch
        ]
        if gone:
            self._group_positions.commit(is_last=True)
        for index in gone:
            publisher = self.publishers.pop(index)
            publisher.stop()
            self._group_positions.forget(publisher)
        for index, partition in sorted(leading.items()):
            if index not in self.publishers:
                self.publishers[index] = PartitionPublisher(
                    self, partition, self._outgoing(partition, self.stats)
                )
        share = max(1, len(self.publishers))
        self.messages_max = max(MESSAGES_MIN, MESSAGES_MAX // share)
        self.bytes_max = max(BYTES_MIN, BYTES_MAX // share)
        self._group_positions.fetch_for_new()

    def stop(self) -> None:
        if self._is_stopped:
            return
        for publisher in self.publishers.values():
            publisher.stop()
        self._group_positions.commit(is_last=True)
        self._group_positions.stop()
        self._is_stopped = True
        if self in self.client.listeners:
            self.client.listeners.remove(self)
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        if self._subscription is not None:
            self._subscription.unsubscribe()
            self._subscription = None
        if self._owns_positions:
            self.runtime.call_later(COMMIT_EVERY_S, self._positions.close)

    def _to_subjects(self, partition: Partition, _stats: CarrierStats) -> Outgoing:
        binding = self.binding
        assert binding.publish_subject is not None
        return SubjectOutgoing(
            binding.publish_subject,
            self._host.cluster_id,
            binding.topic,
            partition.topic_id,
            partition.partition,
        )

    # -- the group's position: a PublishingBinding

    def ask_position(self, publisher: PartitionPublisher) -> None:
        self._group_positions.fetch([publisher])

    def has_confirmed(self, publisher: PartitionPublisher) -> None:
        moved = publisher.confirmed - publisher.committed
        # A publisher with a problem commits at once: later commits could undo a reset by an administrator.
        if moved >= COMMIT_AFTER or (moved and publisher.problem and not publisher.is_in_flight):
            self._group_positions.commit()

    def reset_command(self, partition: Partition, offset: int) -> str:
        endpoints = self._host.endpoints.values()
        address = next((f"{each.host}:{each.port}" for each in endpoints), "HOST:9092")
        return (
            f"kafka-consumer-groups.sh --bootstrap-server {address} --group {self.group} "
            f"--topic {partition.topic}:{partition.partition} --reset-offsets --to-offset {offset} --execute"
        )

    def _tick(self) -> None:
        self._tick_timer = self.runtime.call_later(COMMIT_EVERY_S, self._tick)
        now = self.runtime.monotonic()
        for publisher in self.publishers.values():
            if publisher.is_begun:
                publisher.check_timeout(now)
        self.stats.lag = sum(each.lag for each in self.publishers.values() if each.is_begun)
        self._group_positions.commit()

    # -- acknowledgements of streams

    def _take_ack(self, subject: bytes, _reply: bytes, header_block: bytes, payload: bytes) -> None:
        """The sink of the inbox: <inbox>.<partition>.<attempt>.<offset>."""
        try:
            partition, attempt, offset = map(int, subject[len(self.inbox) :].split(b"."))
        except ValueError:
            return  # not an answer to a message from here
        publisher = self.publishers.get(partition)
        if publisher is not None:
            publisher.answered(attempt, offset, header_block, payload)

    # -- as a ClientListener

    def connected(self, info: ServerInfo) -> None:  # noqa: ARG002
        for publisher in self.publishers.values():
            publisher.connected()

    def drained(self) -> None:
        for publisher in self.publishers.values():
            publisher.connected()

    def disconnected(self, cause: Cause) -> None:  # noqa: ARG002
        self.stats.reconnects += 1
        for publisher in self.publishers.values():
            publisher.disconnected()

    def refused(self, text: str) -> None:
        """The server has refused a message of this connection, as in `Permissions Violation for Publish to "a.b"`. In core
        NATS nothing else shows it: the PONG behind the message comes all the same."""
        pattern = self.binding.published_pattern
        subject = text.partition('"')[2].partition('"')[0]
        if "ublish" not in text or pattern is None or not matches(pattern, subject.encode()):
            return
        for publisher in self.publishers.values():
            publisher.refused(text)
