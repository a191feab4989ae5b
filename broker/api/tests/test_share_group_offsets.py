"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets: what is answered beside positions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.requests.repetitions import PARTITIONS_NAMED_MAX
from barnabas.broker.security.caller import Principal
from barnabas.broker.tests.one_node import OneNode
from barnabas.controller.metadata.acls import Operation, ResourceType
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages import alter_share_group_offsets as altering
from barnabas.wire.messages import delete_share_group_offsets as deleting
from barnabas.wire.messages import describe_share_group_offsets as describing
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.share_group_describe import ShareGroupDescribeRequest
from barnabas.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from barnabas.wire.primitives import ZERO_UUID

LITERAL, ALLOW = 3, 3
ROOT, USER = Principal("User", "root"), Principal("User", "user")
SETTINGS = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:root",
    "offsets.topic.num.partitions=1",
    "share.coordinator.state.topic.num.partitions=1",
)


class World:
    """A node with a topic of two partitions; `user` may describe and read the group `g`, and no topic."""

    def __init__(self, directory: Path) -> None:
        self.node = OneNode(f"log.dirs={directory}", *SETTINGS)
        self.topic_id = self.node.create("t", 2, ROOT)
        for key_type, key in ((0, "g"), (2, f"g:{'A' * 22}:0")):
            self.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]))
        rights = [
            AclCreation(ResourceType.GROUP, "g", LITERAL, "User:user", "*", operation, ALLOW)
            for operation in (Operation.READ, Operation.DELETE)
        ]
        self.ask(CreateAclsRequest(rights))

    def ask(self, request: Any, principal: Principal = ROOT) -> Any:
        return self.node.ask(request, principal=principal)

    def describe(self, *topics: tuple[str, list[int]], principal: Principal = ROOT) -> Any:
        named = [describing.DescribeShareGroupOffsetsRequestTopic(*each) for each in topics]
        group = describing.DescribeShareGroupOffsetsRequestGroup("g", named)
        return self.ask(describing.DescribeShareGroupOffsetsRequest([group]), principal).groups[0].topics

    def alter(self, topic: str, *offsets: tuple[int, int]) -> Any:
        partitions = [altering.AlterShareGroupOffsetsRequestPartition(*each) for each in offsets]
        named = altering.AlterShareGroupOffsetsRequestTopic(topic, partitions)
        answer = self.ask(altering.AlterShareGroupOffsetsRequest("g", [named]))
        assert not answer.error_code
        return answer.responses

    def delete(self, *topics: str, principal: Principal = ROOT) -> dict[str, int]:
        named = [deleting.DeleteShareGroupOffsetsRequestTopic(each) for each in topics]
        answer = self.ask(deleting.DeleteShareGroupOffsetsRequest("g", named), principal)
        assert not answer.error_code
        return {each.topic_name: each.error_code for each in answer.responses}

    def group(self) -> Any:
        return self.ask(ShareGroupDescribeRequest(["g"])).groups[0]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.node.node.stop()


def indexes(answers: Any) -> list[tuple[str, list[int]]]:
    return [(each.topic_name, [found.partition_index for found in each.partitions]) for each in answers]


def test_a_partition_is_described_once_and_a_topic_that_is_named_twice_with_all_its_partitions(
    world: World,
) -> None:
    assert indexes(world.describe(("t", [1, 1]), ("t", [0]))) == [("t", [1, 0])]
    assert indexes(world.describe(("absent", [0, 0]))) == [("absent", [0, 0])]


def test_a_topic_that_may_not_be_described_is_refused_without_its_id(world: World) -> None:
    for partitions in ([], [0, 7]):
        (topic,) = world.describe(("t", partitions), principal=USER)
        assert topic.topic_id == ZERO_UUID
        codes = [each.error_code for each in topic.partitions]
        assert codes == [E.TOPIC_AUTHORIZATION_FAILED] * len(partitions)
        assert world.describe(("t", partitions))[0].topic_id == world.topic_id


def test_more_topics_than_there_are_are_refused(world: World) -> None:
    names = [f"t{number}" for number in range(PARTITIONS_NAMED_MAX + 1)]
    topics = [describing.DescribeShareGroupOffsetsRequestTopic(name, []) for name in names]
    group = describing.DescribeShareGroupOffsetsRequestGroup("g", topics)
    (answer,) = world.ask(describing.DescribeShareGroupOffsetsRequest([group])).groups
    assert answer.error_code == E.INVALID_REQUEST
    named = [deleting.DeleteShareGroupOffsetsRequestTopic(name) for name in names]
    request = deleting.DeleteShareGroupOffsetsRequest("g", named)
    assert world.ask(request).error_code == E.INVALID_REQUEST


def test_an_existing_topic_without_partitions_is_answered_and_begins_the_group(world: World) -> None:
    assert indexes(world.alter("absent")) == []
    assert world.group().error_code == E.GROUP_ID_NOT_FOUND
    (topic,) = world.alter("t")
    assert (topic.topic_id, topic.partitions) == (world.topic_id, [])
    group = world.group()
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Empty", 1, 1)


def test_a_partition_that_is_not_there_begins_the_group_and_raises_no_epoch(world: World) -> None:
    for _ in range(2):
        ((partition,),) = [each.partitions for each in world.alter("t", (9, 0))]
        assert partition.error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert world.group().group_epoch == 1


def test_of_a_group_that_never_had_a_state_no_topic_is_answered(world: World) -> None:
    world.ask(ShareGroupHeartbeatRequest("g", "m", 0, subscribed_topic_names=["absent"]))
    world.ask(ShareGroupHeartbeatRequest("g", "m", -1))
    assert world.delete("t", "absent") == {}
    assert world.delete("t", principal=USER) == {"t": E.TOPIC_AUTHORIZATION_FAILED}
    world.alter("t", (0, 0))
    assert world.delete("t", "absent") == {"t": E.NONE, "absent": E.UNKNOWN_TOPIC_OR_PARTITION}
    assert world.delete("t") == {"t": E.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("start_offset", [-(1 << 63), -5, (1 << 63) - 1])
def test_a_lag_is_a_number_of_64_bits_wherever_the_group_begins(world: World, start_offset: int) -> None:
    (answer,) = world.alter("t", (0, start_offset))
    assert answer.partitions[0].error_code == 0
    (described,) = world.describe(("t", [0]))
    (found,) = described.partitions
    assert (found.error_code, found.start_offset) == (0, start_offset)
    assert found.lag == min(-start_offset, (1 << 63) - 1)
