"""Members of consumer groups as tests drive them: each follows its assignment as Kafka's client does."""

from __future__ import annotations

from typing import Any

from barnabas.broker.groups.consumer.group import ConsumerGroup
from barnabas.broker.groups.member import Client
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.tests.conftest import GROUP, Answer, Bench, group_configs
from barnabas.controller.metadata.image import GROUP_RESOURCE, MetadataDelta, MetadataImage
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from barnabas.wire.messages.metadata_records import PartitionRecord, RemoveTopicRecord, TopicRecord

SESSION_MS = 45_000
# After these a member begins anew. UNRELEASED_INSTANCE_ID: its former self has not left, and its session has to end first.
_LOST = (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND, E.UNRELEASED_INSTANCE_ID)
Partition = tuple[bytes, int]


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"-")


class Groups(Bench):
    """A shard with an image of topics. The assignment interval is 0 unless `interval_ms` is given."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        seed: int = 0,
        interval_ms: int = 0,
        *,
        is_slow: bool = False,
    ) -> None:
        self.image = MetadataImage()
        self.interval_ms = interval_ms
        self.image.configs[GROUP_RESOURCE, GROUP] = {"consumer.assignment.interval.ms": str(interval_ms)}
        super().__init__(settings, seed, group_configs(self.image), is_slow=is_slow)

    def create_topic(self, name: str, partitions: int, *, since: int = 0) -> None:
        """Create a topic, or give it partitions."""
        is_new = name not in self.image.topics
        if is_new:
            self.image.replay(TopicRecord(name, topic_id(name)), MetadataDelta())
        for index in range(since, partitions):
            self.image.replay(
                PartitionRecord(
                    index, topic_id(name), [1], [1], [], [], 1, leader_epoch=0, partition_epoch=0
                ),
                MetadataDelta(),
            )
        self.image.offset += 1
        self.shard.topics_changed({name}, are_created=is_new, offset=self.image.offset)

    def delete_topic(self, name: str) -> None:
        self.image.replay(RemoveTopicRecord(topic_id(name)), MetadataDelta())
        self.shard.topics_changed({name}, are_created=False, offset=self.image.offset)

    @property
    def consumer_group(self) -> ConsumerGroup:
        group = self.shard.store.consumer(GROUP)
        assert group is not None
        return group

    def heartbeat_of(self, request: ConsumerGroupHeartbeatRequest, *, api_version: int = 1) -> Any:
        """The answer, perhaps one that waits."""
        answer = Answer()
        client = Client("client", "/127.0.0.1", api_version)
        renewed = self.shard.consumer.renewed(request, client)
        self.shard.consumer.heartbeat(request, client, answer)
        if renewed is not None:
            assert answer.waiting or answer.response == renewed, "the decision would be another one"
        self.shard.expressions.refresh(request.group_id, lambda _: True)
        self.clock.run_until_idle()
        return answer

    def reload(self) -> None:
        """Another broker loads what the log holds."""
        batches, clock = self.log.batches, self.clock
        self.shard.unload()
        self.shard = self.make_shard()
        assert self.clock is clock
        self.log.batches = batches
        self.load()


class ConsumerMember:
    """A member that owns what it was assigned, and says so with each heartbeat."""

    def __init__(self, groups: Groups, member_id: str, *topics: str, **options: Any) -> None:
        self.groups = groups
        self.member_id = member_id
        self.topics = list(topics)
        self.options = options
        self.epoch = 0
        self.owned: set[Partition] = set()
        self.heard_at = 0.0
        self.is_slow = False  # it gives up and takes partitions just before its next heartbeat
        self._assigned: set[Partition] | None = None  # what it has not followed yet
        self.has_missed = False  # an answer: then the next request says everything, as the client's does

    def request(self) -> ConsumerGroupHeartbeatRequest:
        owned: dict[bytes, list[int]] = {}
        for topic, index in sorted(self.owned):
            owned.setdefault(topic, []).append(index)
        request = ConsumerGroupHeartbeatRequest(
            GROUP,
            self.member_id,
            self.epoch,
            topic_partitions=[TopicPartitions(topic, indexes) for topic, indexes in owned.items()],
            instance_id=self.options.get("instance_id"),
        )
        if self.epoch == 0 or self.has_missed:
            request.rebalance_timeout_ms = 60_000
            request.subscribed_topic_names = self.topics
            for name, value in self.options.items():
                setattr(request, name, value)
        return request

    def heartbeat(self, *, lose_answer: bool = False) -> ConsumerGroupHeartbeatResponse:
        """Send one, and do what the answer says."""
        if self._assigned is not None:
            self.owned, self._assigned = self._assigned, None
        answer = self.groups.heartbeat_of(self.request())
        self.heard_at = self.groups.clock.monotonic()
        self.has_missed = lose_answer
        if not lose_answer:
            self.follow(answer.response)
        return answer.response  # type: ignore[no-any-return]

    def follow(self, response: ConsumerGroupHeartbeatResponse) -> None:
        if response.error_code in _LOST:
            self.epoch, self.owned, self._assigned = 0, set(), None
            return
        assert response.error_code == E.NONE, response
        assert response.member_epoch >= self.epoch, "epochs never go back"
        self.epoch = response.member_epoch
        if response.assignment is not None:
            assigned = {
                (each.topic_id, index)
                for each in response.assignment.topic_partitions
                for index in each.partitions
            }
            if self.is_slow:
                self._assigned = assigned
            else:
                self.owned = assigned

    def leave(self, epoch: int = -1) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(
            GROUP, self.member_id, epoch, instance_id=self.options.get("instance_id")
        )
        self.epoch, self.owned, self._assigned = 0, set(), None
        return self.groups.heartbeat_of(request).response  # type: ignore[no-any-return]


def all_partitions(groups: Groups, *topics: str) -> set[Partition]:
    return {(topic_id(name), index) for name in topics for index in groups.image.topics[name].partitions}


def settle(groups: Groups, *members: ConsumerMember, rounds: int = 8) -> None:
    """Heartbeats until the group is Stable."""
    for _ in range(rounds):
        for member in members:
            member.heartbeat()
            if groups.work is not None:
                groups.work.go_on()
        if groups.consumer_group.state_name == "Stable":
            return
    raise AssertionError(groups.consumer_group.state_name)
