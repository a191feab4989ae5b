"""The group APIs over a whole node: real controller, partitions and files, a clock that the test moves.

Every request and response passes through its wire form, so that each version's encoding is part of the test.
What the answers should be was asked of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.tests.one_node import OneNode
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

UNKNOWN_ID = b"\x07" * 16


class Cluster(OneNode):
    """One node, with group g."""

    def find(self, key: str = "g") -> None:
        assert self.ask(FindCoordinatorRequest(coordinator_keys=[key]), 4).coordinators[0].error_code == 0

    def join(self, version: int = 9, member_id: str = "") -> Any:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\x00\x00\x00\x00\x00\x01\x00\x01t")],
        )
        return self.ask(request, version)

    def member(self) -> str:
        """One member in a Stable group g, generation 1."""
        member_id: str = self.join().member_id
        assert self.join(member_id=member_id).generation_id == 1
        request = SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"a")],
        )
        assert self.ask(request, 5).assignment == b"a"
        return member_id

    def commit(
        self,
        version: int,
        topics: dict[tuple[str, bytes], dict[int, int]],
        *,
        group: str = "g",
        member_id: str = "",
        generation: int = -1,
    ) -> dict[tuple[str, bytes, int], E]:
        request = OffsetCommitRequest(
            group_id=group,
            member_id=member_id,
            generation_id_or_member_epoch=generation,
            topics=[
                OffsetCommitRequestTopic(
                    name=name,
                    topic_id=topic_id,
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
                        for index, offset in partitions.items()
                    ],
                )
                for (name, topic_id), partitions in topics.items()
            ],
        )
        return {
            (topic.name, topic.topic_id, each.partition_index): E(each.error_code)
            for topic in self.ask(request, version).topics
            for each in topic.partitions
        }


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(
        f"log.dirs={tmp_path}", "offsets.topic.num.partitions=3", "offsets.retention.minutes=10"
    )
    yield cluster
    cluster.node.stop()


def test_before_the_first_find_coordinator_there_is_no_coordinator(cluster: Cluster) -> None:
    cluster.create("t", 2)
    assert cluster.join().error_code == E.NOT_COORDINATOR
    assert cluster.ask(HeartbeatRequest(group_id="g"), 4).error_code == E.NOT_COORDINATOR
    assert cluster.ask(SyncGroupRequest(group_id="g"), 3).error_code == E.NOT_COORDINATOR
    assert cluster.ask(LeaveGroupRequest(group_id="g"), 5).error_code == E.NOT_COORDINATOR
    assert set(cluster.commit(9, {("t", bytes(16)): {0: 1}}).values()) == {E.NOT_COORDINATOR}
    (described,) = cluster.ask(DescribeGroupsRequest(groups=["g"]), 6).groups
    assert (described.error_code, described.group_state) == (E.NOT_COORDINATOR, "")
    assert cluster.ask(ListGroupsRequest(), 5).groups == []
    (deleted,) = cluster.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results
    assert deleted.error_code == E.NOT_COORDINATOR
    fetch = OffsetFetchRequest(
        group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    )
    assert cluster.ask(fetch, 1).topics[0].partitions[0].error_code == E.NOT_COORDINATOR
    assert cluster.ask(fetch, 2).error_code == E.NOT_COORDINATOR


def test_the_first_find_coordinator_creates_the_topic_and_is_answered(cluster: Cluster) -> None:
    for version in range(4):
        found = cluster.ask(FindCoordinatorRequest(key="g"), version)
        assert (found.error_code, found.node_id, found.host) == (E.NONE, 1, "127.0.0.1")
        assert found.error_message == ("NONE" if version else "")
    for version in range(4, 7):
        coordinators = cluster.ask(FindCoordinatorRequest(coordinator_keys=["a", "b"]), version).coordinators
        assert [(each.key, each.error_code, each.node_id) for each in coordinators] == [
            ("a", E.NONE, 1),
            ("b", E.NONE, 1),
        ]
    topic = cluster.node.services.controller.image.topics["__consumer_offsets"]
    assert len(topic.partitions) == 3
    configs = cluster.node.services.controller.image.topic_configs("__consumer_offsets")
    assert configs["cleanup.policy"] == "compact"


@pytest.mark.parametrize(
    ("key_type", "key", "error"),
    [
        (2, "no-share-key", E.INVALID_REQUEST),
        (3, "k", E.INVALID_REQUEST),
    ],
)
def test_groups_that_another_broker_coordinates(cluster: Cluster, key_type: int, key: str, error: E) -> None:
    old = cluster.ask(FindCoordinatorRequest(key=key, key_type=key_type), 3)
    assert (old.error_code, old.node_id, old.host, old.port) == (error, -1, "", -1)
    assert old.error_message == error.message
    (new,) = cluster.ask(FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type), 6).coordinators
    assert (new.error_code, new.node_id, new.host, new.port) == (error, -1, "", -1)


@pytest.mark.parametrize("version", range(10))
def test_join_in_every_version(cluster: Cluster, version: int) -> None:
    cluster.find()
    joined = cluster.join(version)
    if version >= 4:
        assert joined.error_code == E.MEMBER_ID_REQUIRED
        assert joined.protocol_name == (None if version >= 7 else "")
        joined = cluster.join(version, joined.member_id)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (E.NONE, 1, "range")
    assert joined.protocol_type == ("consumer" if version >= 7 else None)
    sync_version = min(version, 5)
    request = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"a")],
    )
    assert cluster.ask(request, sync_version).assignment == b"a"
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    assert cluster.ask(beat, min(version, 4)).error_code == E.NONE
    leave = LeaveGroupRequest(
        group_id="g",
        member_id=joined.member_id,
        members=[] if version < 3 else [MemberIdentity(member_id=joined.member_id)],
    )
    left = cluster.ask(leave, min(version, 5))
    assert left.error_code == E.NONE
    assert [each.error_code for each in left.members] == ([E.NONE] if version >= 3 else [])


def test_empty_group_id(cluster: Cluster) -> None:
    cluster.create("t", 2)
    cluster.find()
    assert cluster.ask(JoinGroupRequest(), 9).error_code == E.INVALID_GROUP_ID
    assert cluster.ask(HeartbeatRequest(), 4).error_code == E.INVALID_GROUP_ID
    assert cluster.ask(SyncGroupRequest(), 4).error_code == E.INVALID_GROUP_ID
    assert cluster.ask(LeaveGroupRequest(), 5).error_code == E.INVALID_GROUP_ID
    assert cluster.ask(OffsetDeleteRequest(), 0).error_code == E.INVALID_GROUP_ID
    # Old consumers without a group stored offsets under the empty id; it still serves them.
    assert set(cluster.commit(8, {("t", bytes(16)): {0: 1}}, group="").values()) == {E.NONE}


def test_sync_v5_requires_the_protocol(cluster: Cluster) -> None:
    assert cluster.ask(SyncGroupRequest(group_id="g"), 5).error_code == E.INCONSISTENT_GROUP_PROTOCOL


def test_leave_v0_to_2_puts_the_error_on_top(cluster: Cluster) -> None:
    cluster.find()
    left = cluster.ask(LeaveGroupRequest(group_id="g", member_id="who"), 2)
    assert (left.error_code, left.members) == (E.UNKNOWN_MEMBER_ID, [])


@pytest.mark.parametrize("version", range(2, 11))
def test_commit_and_fetch_in_every_version(cluster: Cluster, version: int) -> None:
    topic_id = cluster.create("t", 2)
    cluster.find()
    by_id = version >= 10
    name, wire_id = ("", topic_id) if by_id else ("t", bytes(16))
    other = ("", UNKNOWN_ID) if by_id else ("nix", bytes(16))
    unknown = E.UNKNOWN_TOPIC_ID if by_id else E.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.commit(version, {(name, wire_id): {0: 5, 9: 5}, other: {0: 1}}) == {
        (name, wire_id, 0): E.NONE,
        (name, wire_id, 9): E.UNKNOWN_TOPIC_OR_PARTITION,
        (*other, 0): unknown,
    }
    assert cluster.commit(version, {other: {0: 1}}) == {(*other, 0): unknown}
    assert cluster.commit(version, {}) == {}
    for everything in (False, True):
        assert fetch(cluster, version, topic_id, everything) == ({0: 5} if everything else {0: 5, 1: -1})


def fetch(cluster: Cluster, version: int, topic_id: bytes, everything: bool) -> dict[int, int]:
    if version < 8:
        topics = None if everything else [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
        response = cluster.ask(OffsetFetchRequest(group_id="g", topics=topics), version)
        assert response.error_code == E.NONE
        answered = response.topics
    else:
        asked = OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[0, 1])
        groups = [
            OffsetFetchRequestGroup(group_id=group, topics=None if everything else [asked])
            for group in ("g", "none")
        ]
        response = cluster.ask(OffsetFetchRequest(groups=groups, require_stable=True), version)
        assert [(group.group_id, group.error_code) for group in response.groups] == [("g", 0), ("none", 0)]
        assert all(
            part.committed_offset == -1 for each in response.groups[1].topics for part in each.partitions
        )
        answered = response.groups[0].topics
    (topic,) = answered
    assert topic.name == ("t" if version < 10 else "")
    assert all(each.error_code == E.NONE for each in topic.partitions)
    return {each.partition_index: each.committed_offset for each in topic.partitions}


def test_fetch_by_an_unknown_topic_id(cluster: Cluster) -> None:
    cluster.find()
    asked = OffsetFetchRequestTopics(topic_id=UNKNOWN_ID, partition_indexes=[3])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[asked])])
    (partition,) = cluster.ask(request, 10).groups[0].topics[0].partitions
    assert (partition.error_code, partition.committed_offset) == (E.UNKNOWN_TOPIC_ID, -1)


def test_members_commit_and_describe_and_list(cluster: Cluster) -> None:
    cluster.create("t", 2)
    cluster.find()
    member_id = cluster.member()
    committed = cluster.commit(9, {("t", bytes(16)): {0: 1}}, member_id=member_id, generation=1)
    assert set(committed.values()) == {E.NONE}
    for version in range(7):
        request = DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=version >= 3)
        group, missing = cluster.ask(request, version).groups
        assert (group.group_state, group.protocol_type, group.protocol_data) == (
            "Stable",
            "consumer",
            "range",
        )
        assert [(each.client_id, each.client_host, each.member_assignment) for each in group.members] == [
            ("client", "/127.0.0.1", b"a")
        ]
        assert group.authorized_operations == (3400 if version >= 3 else -(1 << 31))
        assert missing.group_state == "Dead"
        assert missing.error_code == (E.GROUP_ID_NOT_FOUND if version >= 6 else E.NONE)
        assert missing.error_message == ("Group none not found." if version >= 6 else None)
    for version in range(6):
        (listed,) = cluster.ask(ListGroupsRequest(), version).groups
        assert (listed.group_id, listed.protocol_type) == ("g", "consumer")
        assert listed.group_state == ("Stable" if version >= 4 else "")
        assert listed.group_type == ("classic" if version >= 5 else "")


@pytest.mark.parametrize(
    ("states", "types", "count"),
    [(["stable"], [], 1), (["EMPTY"], [], 0), ([], ["Classic"], 1), ([], ["consumer"], 0), (["?"], ["?"], 0)],
)
def test_list_filters(cluster: Cluster, states: list[str], types: list[str], count: int) -> None:
    cluster.find()
    cluster.member()
    request = ListGroupsRequest(states_filter=states, types_filter=types)
    assert len(cluster.ask(request, 5).groups) == count


def test_offset_delete(cluster: Cluster) -> None:
    cluster.create("t", 2)
    cluster.create("u", 2)
    cluster.find()
    member_id = cluster.member()
    cluster.commit(9, {("t", bytes(16)): {0: 1}, ("u", bytes(16)): {0: 1}}, member_id=member_id, generation=1)
    topics = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=each) for each in (0, 9)]
        )
        for name in ("t", "u", "nix")
    ]
    response = cluster.ask(OffsetDeleteRequest(group_id="g", topics=topics), 0)
    assert response.error_code == E.NONE
    found = {
        (topic.name, each.partition_index): E(each.error_code)
        for topic in response.topics
        for each in topic.partitions
    }
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert found == {
        ("t", 0): E.GROUP_SUBSCRIBED_TO_TOPIC,
        ("t", 9): unknown,
        ("u", 0): E.NONE,
        ("u", 9): unknown,
        ("nix", 0): unknown,
        ("nix", 9): unknown,
    }
    missing = cluster.ask(OffsetDeleteRequest(group_id="none", topics=topics), 0)
    assert (missing.error_code, missing.topics) == (E.GROUP_ID_NOT_FOUND, [])


def test_delete_groups(cluster: Cluster) -> None:
    cluster.create("t", 2)
    cluster.find()
    cluster.member()
    for version in range(3):
        cluster.commit(9, {("t", bytes(16)): {0: 1}}, group="simple")
        request = DeleteGroupsRequest(groups_names=["g", "simple", "none", "g"])
        results = {each.group_id: E(each.error_code) for each in cluster.ask(request, version).results}
        assert results == {"g": E.NON_EMPTY_GROUP, "simple": E.NONE, "none": E.GROUP_ID_NOT_FOUND}


def test_everything_survives_a_restart(cluster: Cluster) -> None:
    topic_id = cluster.create("t", 2)
    cluster.find()
    member_id = cluster.member()
    cluster.commit(9, {("t", bytes(16)): {0: 7}}, member_id=member_id, generation=1)
    cluster.restart()
    assert fetch(cluster, 9, topic_id, True) == {0: 7}
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
    assert cluster.ask(beat, 4).error_code == E.NONE
    cluster.runtime.advance(35)  # session timeout, then the rebalance that nobody joins
    (group,) = cluster.ask(ListGroupsRequest(), 5).groups
    assert group.group_state == "Empty"


def test_deleting_a_topic_deletes_its_offsets(cluster: Cluster) -> None:
    cluster.create("t", 2)
    cluster.find()
    cluster.commit(9, {("t", bytes(16)): {0: 7}})
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)
    assert cluster.ask(request, 6).responses[0].error_code == E.NONE
    everything = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    assert cluster.ask(everything, 9).groups[0].topics == []
    cluster.create("t", 2)
    cluster.restart()
    assert cluster.ask(everything, 9).groups[0].topics == []


def test_offsets_expire_by_the_check(cluster: Cluster) -> None:
    cluster.create("t", 2)
    cluster.find()
    cluster.commit(9, {("t", bytes(16)): {0: 7}})
    cluster.runtime.advance(9 * 60)
    assert len(cluster.ask(ListGroupsRequest(), 5).groups) == 1
    cluster.runtime.advance(12 * 60)  # checks come every ten minutes
    assert cluster.ask(ListGroupsRequest(), 5).groups == []


@pytest.mark.parametrize("version", [2, 7, 9])
def test_a_coordinator_whose_session_has_ended_returns_no_offsets(cluster: Cluster, version: int) -> None:
    """Another may coordinate by now, and hold newer ones."""
    cluster.create("t", 2)
    cluster.find()
    cluster.commit(8, {("t", bytes(16)): {0: 7}})
    if version < 8:
        request = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic("t", [0])])
    else:
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id="g", topics=[OffsetFetchRequestTopics("t", partition_indexes=[0])]
                )
            ]
        )

    def fetch() -> tuple[int, list[int]]:
        answer = cluster.ask(request, version)
        group = answer if version < 8 else answer.groups[0]
        return group.error_code, [
            each.committed_offset for topic in group.topics for each in topic.partitions
        ]

    assert fetch() == (E.NONE, [7])
    cluster.node.services.partitions.has_session = lambda: False
    assert fetch() == (E.NOT_COORDINATOR, [])
    cluster.node.services.partitions.has_session = lambda: True
    assert fetch() == (E.NONE, [7])


def test_offsets_do_not_expire_by_a_clock_that_differs_from_the_others(cluster: Cluster) -> None:
    cluster.create("t", 2)
    cluster.find()
    cluster.commit(9, {("t", bytes(16)): {0: 7}})
    wall_clock = cluster.node.services.log_manager.wall_clock
    for node_id in (2, 3):
        wall_clock.heard(node_id, cluster.runtime.time_ms())
    cluster.runtime.wall_offset_ms = 400 * 86_400_000
    cluster.runtime.advance(25 * 60)
    assert len(cluster.ask(ListGroupsRequest(), 5).groups) == 1
    for node_id in (2, 3):
        wall_clock.heard(node_id, cluster.runtime.time_ms())
    cluster.runtime.advance(12 * 60)
    assert cluster.ask(ListGroupsRequest(), 5).groups == []
