"""Members of share groups as tests drive them: each follows its assignment as Kafka's client does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from barnabas.broker.groups.member import Client
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.share.group import ShareGroup
from barnabas.broker.groups.tests.conftest import GROUP, Answer, Bench, group_configs
from barnabas.broker.share_coordinator.state import SharePartitionKey
from barnabas.controller.metadata.image import GROUP_RESOURCE, MetadataDelta, MetadataImage
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.metadata_records import PartitionRecord, RemoveTopicRecord, TopicRecord
from barnabas.wire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

SESSION_MS = 45_000
_LOST = (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND)  # after these a member begins anew
Partition = tuple[bytes, int]


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"-")


class ShareGroups(Bench):
    """A shard with an image of topics and a share coordinator. The assignment interval is 0 unless `interval_ms` is given."""

    def __init__(self, settings: GroupSettings | None = None, seed: int = 0, interval_ms: int = 0) -> None:
        self.image = MetadataImage()
        self.image.configs[GROUP_RESOURCE, GROUP] = {"share.assignment.interval.ms": str(interval_ms)}
        super().__init__(settings, seed, group_configs(self.image))

    def create_topic(self, name: str, partitions: int, *, since: int = 0, identity: str = "") -> None:
        """Create a topic, or give it partitions. `identity`: in place of its name, for its id."""
        found = topic_id(identity or name)
        is_new = name not in self.image.topics
        if is_new:
            self.image.replay(TopicRecord(name, found), MetadataDelta())
        for index in range(since, partitions):
            self.image.replay(
                PartitionRecord(index, found, [1], [1], [], [], 1, leader_epoch=0, partition_epoch=0),
                MetadataDelta(),
            )
        self.image.offset += 1
        self.shard.topics_changed({name}, are_created=is_new, offset=self.image.offset)

    def delete_topic(self, name: str) -> None:
        found = self.image.topics[name].topic_id
        self.image.replay(RemoveTopicRecord(found), MetadataDelta())
        self.shard.topics_changed({name}, are_created=False, offset=self.image.offset)
        self.shard.share_groups.topics_deleted({found})

    @property
    def share_group(self) -> ShareGroup:
        group = self.shard.share_groups.find(GROUP)
        assert group is not None
        return group

    def heartbeat_of(self, request: ShareGroupHeartbeatRequest) -> Any:
        """The answer, perhaps one that waits."""
        answer = Answer()
        self.shard.share.heartbeat(request, Client("client", "/127.0.0.1", 1), answer)
        self.clock.run_until_idle()
        return answer

    def key(self, name: str, index: int) -> SharePartitionKey:
        return SharePartitionKey(GROUP, topic_id(name), index)

    def initialized(self) -> set[Partition]:
        return {
            (found, index)
            for found, each in self.share_group.state_topics.initialized.items()
            for index in each.partitions
        }

    def reload(self) -> None:
        """Another broker loads what the log holds."""
        batches = self.log.batches
        self.shard.unload()
        self.shard = self.make_shard()
        self.log.batches = batches
        self.load()


class ShareMember:
    """`assigned`: what its answers say that it has."""

    def __init__(self, groups: ShareGroups, member_id: str, *topics: str) -> None:
        self.groups = groups
        self.member_id = member_id
        self.topics = list(topics)
        self.epoch = 0
        self.assigned: set[Partition] = set()
        self.says_all = True  # in its next request

    def request(self, **fields: Any) -> ShareGroupHeartbeatRequest:
        names = self.topics if self.epoch == 0 or self.says_all else None
        request = ShareGroupHeartbeatRequest(GROUP, self.member_id, self.epoch, subscribed_topic_names=names)
        for name, value in fields.items():
            setattr(request, name, value)
        return request

    def heartbeat(self, *, lose_answer: bool = False) -> ShareGroupHeartbeatResponse:
        """Send one, and do what the answer says."""
        response: ShareGroupHeartbeatResponse = self.groups.heartbeat_of(self.request()).response
        self.says_all = lose_answer
        if not lose_answer:
            self.follow(response)
        return response

    def follow(self, response: ShareGroupHeartbeatResponse) -> None:
        if response.error_code in _LOST:
            self.epoch, self.assigned = 0, set()
            return
        assert response.error_code == E.NONE, response
        assert response.member_epoch >= self.epoch, "epochs never go back"
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.assigned = {
                (each.topic_id, index)
                for each in response.assignment.topic_partitions
                for index in each.partitions
            }

    def leave(self) -> ShareGroupHeartbeatResponse:
        response: ShareGroupHeartbeatResponse = self.groups.heartbeat_of(
            self.request(member_epoch=-1)
        ).response
        self.epoch, self.assigned = 0, set()
        return response


def partitions(name: str, indexes: Iterable[int]) -> set[Partition]:
    return {(topic_id(name), index) for index in indexes}


def settle(*members: ShareMember, rounds: int = 4) -> None:
    """Heartbeats until nothing changes."""
    for _ in range(rounds):
        for member in members:
            member.heartbeat()
