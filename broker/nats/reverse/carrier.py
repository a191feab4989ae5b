"""Records out: a topic's committed records as messages, for the partitions that are led here.

The position is that of an ordinary consumer group without members (nats.publish.group), so every tool of Kafka shows
the lag and can move it, best while nats.paused=true. A topic whose group has no position yet is published from its first record. The next leader of
a partition goes on from the group's position: what was under way comes again, with the same Nats-Msg-Id.

One request commits the positions of all partitions, every second and whenever much has been published.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.broker.nats.announcements import publishing
from barnabas.broker.nats.carrier import CarrierStats
from barnabas.broker.nats.client.client import ClientListener
from barnabas.broker.nats.cluster.positions import Position, Positions
from barnabas.broker.nats.kv.bucket import subject_prefix
from barnabas.broker.nats.kv.outgoing import BucketOutgoing
from barnabas.broker.nats.kv.synced import SyncedOutgoing
from barnabas.broker.nats.records.partitioners import compile_partitioner
from barnabas.broker.nats.reverse.outgoing import SubjectOutgoing
from barnabas.broker.nats.reverse.partition import PartitionPublisher
from barnabas.controller.nats.binding import KV
from barnabas.controller.nats.subjects import matches
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barnabas.broker.nats.client.client import NatsClient, Subscription
    from barnabas.broker.nats.client.errors import Cause
    from barnabas.broker.nats.client.server_info import ServerInfo
    from barnabas.broker.nats.reverse.outgoing import Outgoing
    from barnabas.broker.partition import Partition
    from barnabas.broker.services import Services
    from barnabas.controller.nats.binding import Binding
    from barnabas.storage.runtime import Timer

log = logging.getLogger("barnabas.nats")

DEFAULT_GROUP_PREFIX: Final = "nats-"
COMMIT_EVERY_S: Final = 1.0
# The leader before may commit last, having heard late that it is none: then the group stands further back than it should.
COMMIT_AGAIN_S: Final = 10.0
COMMIT_AFTER: Final = 10_000  # records of one partition
# A group without members loses positions that are old (offsets.retention.minutes, a week), so they are renewed.
RENEW_S: Final = 3600.0  # at the latest
# Under way at a time. A stream refuses more than 10,000 messages that it has not dealt with yet.
MESSAGES_MAX: Final = 4096
BYTES_MAX: Final = 8 * 1024 * 1024
MESSAGES_MIN: Final = 32  # of each partition, however many there are
BYTES_MIN: Final = 128 * 1024
ASK_AGAIN_S: Final = 0.5


class ReverseBinding(ClientListener):
    """Carries out nats.publish.subject, or the way into a key-value bucket, on one broker (a Carrier)."""

    def __init__(
        self, binding: Binding, services: Services, client: NatsClient, positions: Positions | None = None
    ) -> None:
        """`positions` is shared by the broker's bindings; None: this one has its own."""
        self.binding = binding
        self.group = binding.publish_group or DEFAULT_GROUP_PREFIX + binding.topic
        self.client = client
        self.runtime = services.runtime
        self.inbox = b""
        self.messages_max = MESSAGES_MAX
        self.bytes_max = BYTES_MAX
        self.publishers: dict[int, PartitionPublisher] = {}
        self.stats = CarrierStats()
        self._services = services
        self._positions = positions if positions is not None else Positions(services)
        self._owns_positions = positions is None
        self._subscription: Subscription | None = None
        self._tick_timer: Timer | None = None
        self._ask_timer: Timer | None = None
        self._again_at_s: dict[
            PartitionPublisher, float
        ] = {}  # when those that have begun lately commit once more
        self._asking: set[PartitionPublisher] = set()  # whose position is on its way
        self._is_committing = False
        self._ask_problem = ""
        self._commit_problem = ""
        self._renewed_at = 0.0
        self._renew_s = min(RENEW_S, services.config.offsets_retention_minutes * 60 / 4)
        self._is_stopped = False
        self._partition_count = 1
        self._partition_of = compile_partitioner(binding.partitioner, 1)

    # -- as a Carrier

    @property
    def state(self) -> str:
        """ "running", "starting", "connecting: <why>", "waiting: <why>" or "blocked: <why, and what to do>"."""
        if self._subscription is not None and self._subscription.refused:
            return f"blocked: this user may not hear acknowledgements: {self._subscription.refused}"
        problems = [each.problem for _, each in sorted(self.publishers.items()) if each.problem]
        if problems:
            return sorted(problems)[0]
        if not self.client.is_connected:
            cause = self.client.last_cause
            return f"connecting: {cause}" if cause is not None else "connecting"
        if self._commit_problem:
            return self._commit_problem
        if any(not each.is_begun for each in self.publishers.values()):
            return self._ask_problem or "starting"
        return "running"

    def start(self, leading: Mapping[int, Partition]) -> None:
        if self.binding.mode == KV or self.binding.publish_jetstream:
            self.inbox = self.client.new_inbox() + b"."
            self._subscription = self.client.subscribe((self.inbox + b">").decode(), self._take_ack)
        self.client.listeners.append(self)
        self._renewed_at = self.runtime.monotonic()
        log.info("topic %s %s", self.binding.topic, publishing(self.binding, self.group, leading))
        self._tick()
        self.roles_changed(leading)

    def roles_changed(self, leading: Mapping[int, Partition]) -> None:
        """A partition that was led by another one in between begins anew."""
        if self._is_stopped:
            return
        gone = [
            index
            for index, publisher in self.publishers.items()
            if leading.get(index) is not publisher.partition
            or publisher.partition.leader_epoch != publisher.leader_epoch
        ]
        if gone:
            self._commit(at_last=True)
        for index in gone:
            publisher = self.publishers.pop(index)
            publisher.stop()
            self._asking.discard(publisher)
            self._again_at_s.pop(publisher, None)
        for index, partition in sorted(leading.items()):
            if index not in self.publishers:
                self.publishers[index] = PartitionPublisher(self, partition, self._outgoing(index))
        share = max(1, len(self.publishers))
        self.messages_max = max(MESSAGES_MIN, MESSAGES_MAX // share)
        self.bytes_max = max(BYTES_MIN, BYTES_MAX // share)
        self._ask([each for each in self.publishers.values() if not each.is_begun])

    def stop(self) -> None:
        if self._is_stopped:
            return
        for publisher in self.publishers.values():
            publisher.stop()
        self._commit(at_last=True)
        self._is_stopped = True
        if self in self.client.listeners:
            self.client.listeners.remove(self)
        for timer in (self._tick_timer, self._ask_timer):
            if timer is not None:
                timer.cancel()
        if self._subscription is not None:
            self._subscription.unsubscribe()
            self._subscription = None
        if self._owns_positions:
            self.runtime.call_later(COMMIT_EVERY_S, self._positions.close)

    def _outgoing(self, partition: int) -> Outgoing:
        binding, cluster_id = self.binding, self._services.cluster_id
        if binding.mode == KV:
            where = (
                binding.bucket,
                self.client.settings.jetstream_domain,
                cluster_id,
                binding.topic,
                partition,
            )
            if not binding.ingests:
                return BucketOutgoing(*where)
            return SyncedOutgoing(
                *where,
                client=self.client,
                stats=self.stats,
                is_home=lambda key: self._home_of(key) == partition,
            )
        assert binding.publish_subject is not None
        return SubjectOutgoing(binding.publish_subject, cluster_id, binding.topic, partition)

    def _home_of(self, key: bytes) -> int:
        """The partition that the bucket's values of this key go to, -1 when the topic is gone."""
        topic = self._services.controller.image.topics.get(self.binding.topic)
        if topic is None:
            return -1
        count = len(topic.partitions)
        if count != self._partition_count:
            self._partition_count = count
            self._partition_of = compile_partitioner(self.binding.partitioner, count)
        return self._partition_of(subject_prefix(self.binding.bucket) + key, key)

    # -- the group's position

    def ask_position(self, publisher: PartitionPublisher) -> None:
        """See Publishing."""
        self._ask([publisher])

    def _ask(self, publishers: list[PartitionPublisher]) -> None:
        wanted = [each for each in publishers if each not in self._asking]
        if not wanted or self._is_stopped:
            return
        self._asking.update(wanted)
        topic_id = wanted[0].partition.topic_id
        indexes = [each.partition.partition for each in wanted]
        self._positions.fetch(self.group, topic_id, indexes, partial(self._told, wanted))

    def _told(
        self, publishers: list[PartitionPublisher], error: ErrorCode, positions: dict[int, Position]
    ) -> None:
        asked = [each for each in publishers if each in self._asking]
        self._asking.difference_update(asked)
        if not error:
            self._ask_problem = ""
        if self._is_stopped:
            return
        for publisher in asked:
            position = positions.get(publisher.partition.partition)
            if publisher.is_begun:
                publisher.moved_to(position)
            elif not error:
                publisher.begin(position)
                self._again_at_s[publisher] = self.runtime.monotonic() + COMMIT_AGAIN_S
        if error and any(not each.is_begun for each in asked):
            problem = f"waiting: where group {self.group} stands is not known yet: {error.name}"
            if problem != self._ask_problem:
                log.info("%s", problem)
            self._ask_problem = problem
            if self._ask_timer is not None:
                self._ask_timer.cancel()
            delay_s = ASK_AGAIN_S * self.runtime.random.uniform(0.5, 1)
            self._ask_timer = self.runtime.call_later(delay_s, self._ask_again)

    def _ask_again(self) -> None:
        self._ask_timer = None
        self._ask([each for each in self.publishers.values() if not each.is_begun])

    def has_confirmed(self, publisher: PartitionPublisher) -> None:
        """See Publishing."""
        moved = publisher.confirmed - publisher.committed
        # One that stands still may be moved by an admin next, and nothing of ours should come behind that.
        if moved >= COMMIT_AFTER or (moved and publisher.problem and not publisher.is_under_way):
            self._commit()

    def how_to_move(self, partition: Partition, offset: int) -> str:
        """See Publishing."""
        endpoints = self._services.endpoints.values()
        address = next((f"{each.host}:{each.port}" for each in endpoints), "HOST:9092")
        return (
            f"kafka-consumer-groups.sh --bootstrap-server {address} --group {self.group} "
            f"--topic {partition.topic}:{partition.partition} --reset-offsets --to-offset {offset} --execute"
        )

    def _commit(self, *, at_last: bool = False) -> None:
        """Commit what has moved, unless that is under way; `at_last` in any case."""
        if (self._is_committing and not at_last) or self._is_stopped:
            return
        now = self.runtime.monotonic()
        renews = now - self._renewed_at >= self._renew_s
        moved: dict[int, Position] = {}
        for index, publisher in sorted(self.publishers.items()):
            offset = publisher.confirmed
            if publisher.has_position and (
                renews or offset != publisher.committed or self._commits_again(publisher, now)
            ):
                epoch = publisher.partition.log.epoch_for_offset(offset - 1) if offset > 0 else -1
                moved[index] = Position(offset, epoch, publisher.metadata())
        if not moved:
            return
        if renews:
            self._renewed_at = now
        self._is_committing = True
        topic_id = next(iter(self.publishers.values())).partition.topic_id
        publishers = dict(self.publishers)
        self._positions.commit(self.group, topic_id, moved, partial(self._committed, publishers, moved))

    def _commits_again(self, publisher: PartitionPublisher, now_s: float) -> bool:
        """Once. Not where an admin may be about to move the group."""
        if publisher.problem or self._again_at_s.get(publisher, now_s + 1) > now_s:
            return False
        del self._again_at_s[publisher]
        return True

    def _committed(
        self, publishers: dict[int, PartitionPublisher], moved: dict[int, Position], error: ErrorCode
    ) -> None:
        self._is_committing = False
        if error:
            problem = _why_not_committed(self.group, error)
            if problem != self._commit_problem:
                log.warning("%s", problem)
            self._commit_problem = problem
            return
        self._commit_problem = ""
        for index, position in moved.items():
            if self.publishers.get(index) is publishers[index]:
                publishers[index].committed_to(position.offset)

    def _tick(self) -> None:
        self._tick_timer = self.runtime.call_later(COMMIT_EVERY_S, self._tick)
        now = self.runtime.monotonic()
        for publisher in self.publishers.values():
            if publisher.is_begun:
                publisher.check_patience(now)
        self.stats.lag = sum(each.lag for each in self.publishers.values() if each.is_begun)
        self._commit()

    # -- acknowledgements of streams

    def _take_ack(self, subject: bytes, _reply: bytes, header_block: bytes, payload: bytes) -> None:
        """The sink of the inbox: <inbox>.<partition>.<attempt>.<offset>."""
        try:
            partition, attempt, offset = map(int, subject[len(self.inbox) :].split(b"."))
        except ValueError:
            return  # nothing of ours
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
        """The server has refused a message of somebody, such as `Permissions Violation for Publish to "a.b"`. In core
        NATS that is all there is to be heard of it: the PONG behind it comes all the same."""
        pattern = self.binding.published_pattern
        subject = text.partition('"')[2].partition('"')[0]
        if "ublish" not in text or pattern is None or not matches(pattern, subject.encode()):
            return
        for publisher in self.publishers.values():
            publisher.refused(text)


def _why_not_committed(group: str, error: ErrorCode) -> str:
    if error == ErrorCode.UNKNOWN_MEMBER_ID:
        return (
            f"blocked: the position can't be committed: group {group} has members of its own. Stop them, or choose another "
            "group by nats.publish.group"
        )
    return f"waiting: the position of group {group} can't be committed now: {error.name}"
