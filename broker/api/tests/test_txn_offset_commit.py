"""TxnOffsetCommit on a node with real coordinators. Expected errors are Apache Kafka 4.3.1's answers to the same requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.tests.one_node import OneNode
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
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
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

UNSTABLE = (-1, E.UNSTABLE_OFFSET_COMMIT)


class GroupNode(OneNode):
    """A node with topic t of three partitions, a group g that it coordinates, and a producer."""

    def __init__(self, directory: Path, *settings: str) -> None:
        super().__init__(f"log.dirs={directory}", *settings)
        self.create("t", 3)
        self.producer_id, self.epoch = -1, -1

    def find(self) -> None:
        """The coordinators of the group and the producer, and the producer's id."""
        for kind, key in enumerate(("g", "id")):
            found = self.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 6)
            assert found.coordinators[0].error_code == E.NONE
        made = self.ask(InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000), 5)
        self.producer_id, self.epoch = made.producer_id, made.producer_epoch

    def commit(
        self,
        *topics: tuple[str, dict[int, int] | list[tuple[int, int, str]]],
        version: int = 5,
        group: str = "g",
        name: str = "id",
        **fields: Any,
    ) -> list[tuple[str, list[tuple[int, E]]]]:
        """Offsets by partition, or (partition, offset, metadata); errors in the order of the answer."""
        request = TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=group,
            producer_id=fields.pop("producer_id", self.producer_id),
            producer_epoch=fields.pop("epoch", self.epoch),
            topics=[
                TxnOffsetCommitRequestTopic(
                    topic,
                    [
                        TxnOffsetCommitRequestPartition(index, offset, committed_metadata=metadata)
                        for index, offset, metadata in (
                            [(index, offset, "") for index, offset in partitions.items()]
                            if isinstance(partitions, dict)
                            else partitions
                        )
                    ],
                )
                for topic, partitions in topics
            ],
            **fields,
        )
        answer = self.ask(request, version)
        return [
            (topic.name, [(each.partition_index, E(each.error_code)) for each in topic.partitions])
            for topic in answer.topics
        ]

    def error(self, version: int = 5, **fields: Any) -> E:
        """Of a commit for one partition."""
        [(_, [(_, error)])] = self.commit(("t", {0: 5}), version=version, **fields)
        return error

    def add(self) -> None:
        request = AddOffsetsToTxnRequest("id", self.producer_id, self.epoch, "g")
        assert self.ask(request, 3).error_code == E.NONE

    def end(self, version: int = 5, *, commit: bool = True) -> None:
        answer = self.ask(EndTxnRequest("id", self.producer_id, self.epoch, commit), version)
        assert answer.error_code == E.NONE
        if version >= 5:
            self.epoch = answer.producer_epoch
        self.runtime.run_until_idle()

    def offsets(
        self, partitions: list[int] | None = None, *, version: int = 9, stable: bool = True
    ) -> dict[int, tuple[int, E]]:
        """(offset, error) by partition of t; without `partitions`, of all that the group has."""
        old = None if partitions is None else [OffsetFetchRequestTopic("t", partitions)]
        new = None if partitions is None else [OffsetFetchRequestTopics("t", partition_indexes=partitions)]
        groups = [OffsetFetchRequestGroup("g", topics=new)]
        answer = self.ask(OffsetFetchRequest("g", old, groups, stable), version)
        answer = answer.groups[0] if version >= 8 else answer
        assert answer.error_code == E.NONE
        return {
            each.partition_index: (each.committed_offset, E(each.error_code))
            for topic in answer.topics
            for each in topic.partitions
        }


@pytest.fixture
def node(tmp_path: Path) -> Iterator[GroupNode]:
    node = GroupNode(tmp_path, "offsets.topic.num.partitions=5", "transaction.state.log.num.partitions=3")
    node.find()
    yield node
    node.node.stop()


def test_before_any_group_has_a_coordinator(tmp_path: Path) -> None:
    node = GroupNode(tmp_path)
    assert node.error(group="") == E.INVALID_GROUP_ID
    assert node.error() == E.COORDINATOR_NOT_AVAILABLE
    node.node.stop()


@pytest.mark.parametrize("version", range(6))
def test_offsets_are_pending_until_the_transaction_commits(node: GroupNode, version: int) -> None:
    for offset in (5, 6):
        if version < 5:
            node.add()
        assert node.commit(("t", {0: offset}), version=version) == [("t", [(0, E.NONE)])]
        assert node.offsets([0, 1]) == {0: UNSTABLE, 1: (-1, E.NONE)}
        before = {5: -1, 6: 5}[offset]
        assert node.offsets([0], stable=False) == {0: (before, E.NONE)}
        node.end(min(version, 5) if version == 5 else 3)
        assert node.offsets([0, 1]) == {0: (offset, E.NONE), 1: (-1, E.NONE)}


@pytest.mark.parametrize("version", [3, 4, 5])
def test_aborted_offsets_are_dropped(node: GroupNode, version: int) -> None:
    if version < 5:
        node.add()
    node.commit(("t", {0: 5}), version=version)
    node.end(version, commit=False)
    assert node.offsets([0]) == {0: (-1, E.NONE)}


@pytest.mark.parametrize("version", [7, 8, 9])
def test_all_partitions_are_those_with_a_committed_offset(node: GroupNode, version: int) -> None:
    node.commit(("t", {0: 5}))
    node.end()
    node.commit(("t", {0: 6, 1: 7}))
    assert node.offsets(version=version) == {0: UNSTABLE}
    assert node.offsets(version=version, stable=False) == {0: (5, E.NONE)}
    assert node.offsets([0, 1, 2], version=version) == {0: UNSTABLE, 1: UNSTABLE, 2: (-1, E.NONE)}


@pytest.mark.parametrize("version", range(6))
def test_errors_of_each_version(node: GroupNode, version: int) -> None:
    unknown = E.INVALID_PRODUCER_ID_MAPPING
    assert node.error(version, producer_id=node.producer_id + 1) == unknown
    assert node.error(version, name="unknown") == unknown
    assert node.error(version, name="") == E.INVALID_REQUEST
    assert node.error(version, epoch=node.epoch + 1) == E.INVALID_PRODUCER_EPOCH
    assert node.error(version, group="") == E.INVALID_GROUP_ID
    not_added = {4: E.TRANSACTION_ABORTABLE, 5: E.NONE}
    assert node.error(version) == not_added.get(version, E.INVALID_TXN_STATE)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_errors_of_the_group(node: GroupNode, version: int) -> None:
    if version < 5:
        node.add()
    assert node.error(version, generation_id=0) == E.ILLEGAL_GENERATION
    assert node.error(version) == E.NONE
    assert node.error(version, generation_id=0) == E.UNKNOWN_MEMBER_ID
    assert node.error(version, generation_id=0, member_id="x") == E.UNKNOWN_MEMBER_ID
    assert node.error(version, member_id="x") == E.NONE


def test_a_partition_that_comes_twice_has_two_errors(node: GroupNode) -> None:
    """Each time has its own, and the last offset that is accepted counts."""
    large = "x" * 5000
    topics: list[Any] = [
        ("t", [(0, 5, large), (0, 6, ""), (1, 7, ""), (1, 8, large)]),
        ("t", [(0, 9, large)]),
    ]
    refused = E.OFFSET_METADATA_TOO_LARGE
    assert node.commit(*topics) == [
        ("t", [(0, refused), (0, E.NONE), (1, E.NONE), (1, refused), (0, refused)])
    ]
    node.end()
    assert node.offsets([0, 1]) == {0: (6, E.NONE), 1: (7, E.NONE)}


def test_a_partition_that_comes_often_is_written_once(node: GroupNode) -> None:
    count = 30_000  # a record for each would not fit into a batch
    [(_, errors)] = node.commit(("t", [(0, offset, "") for offset in range(count)]))
    assert errors == [(0, E.NONE)] * count
    node.end()
    assert node.offsets([0]) == {0: (count - 1, E.NONE)}


def test_what_does_not_exist_fails_alone(node: GroupNode) -> None:
    missing = E.UNKNOWN_TOPIC_OR_PARTITION
    topics: list[Any] = [
        ("nope", {0: 1}),
        ("t", [(9, 1, ""), (0, 5, "m"), (2, 7, "x" * 5000), (-1, 7, ""), (0, 8, "m")]),
        ("t", [(1, 9, "")]),
    ]
    assert node.commit(*topics) == [
        ("nope", [(0, missing)]),
        (
            "t",
            [
                (9, missing),
                (-1, missing),
                (0, E.NONE),
                (2, E.OFFSET_METADATA_TOO_LARGE),
                (0, E.NONE),
                (1, E.NONE),
            ],
        ),
    ]
    node.end()
    assert node.offsets([0, 1, 2]) == {0: (8, E.NONE), 1: (9, E.NONE), 2: (-1, E.NONE)}
    wrong = node.commit(*topics[:2], group="")
    assert wrong[0] == ("nope", [(0, missing)])
    assert wrong[1][1][:3] == [(9, missing), (-1, missing), (0, E.INVALID_GROUP_ID)]


def test_topics_without_partitions(node: GroupNode) -> None:
    assert node.commit() == []
    assert node.commit(("t", {})) == []
    assert node.commit(("nope", {}), ("t", {})) == [("nope", [])]


@pytest.mark.parametrize(
    ("version", "error"), [(1, E.COORDINATOR_NOT_AVAILABLE), (2, E.COORDINATOR_LOAD_IN_PROGRESS)]
)
def test_a_group_that_is_loading(node: GroupNode, version: int, error: E) -> None:
    for led in node.node.services.groups.shards.led.values():
        led.is_loaded = False
    assert node.error(version) == error


def test_a_restart_keeps_what_is_pending(node: GroupNode) -> None:
    node.commit(("t", {0: 5}))
    node.restart()
    assert node.offsets([0]) == {0: UNSTABLE}
    assert node.commit(("t", {1: 6})) == [("t", [(1, E.NONE)])]
    node.end()
    node.restart()
    assert node.offsets([0, 1]) == {0: (5, E.NONE), 1: (6, E.NONE)}


def test_what_is_deleted_does_not_come_back(node: GroupNode) -> None:
    node.commit(("t", {0: 5, 1: 6, 2: 7}))
    partition = OffsetDeleteRequestPartition(0)
    answer = node.ask(OffsetDeleteRequest("g", [OffsetDeleteRequestTopic("t", [partition])]), 0)
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (E.NONE, E.NONE)
    assert node.offsets([0, 1]) == {0: (-1, E.NONE), 1: UNSTABLE}
    node.end()
    assert node.offsets([0, 1]) == {0: (-1, E.NONE), 1: (6, E.NONE)}
    node.commit(("t", {0: 8}))
    assert node.ask(DeleteGroupsRequest(["g"]), 2).results[0].error_code == E.NONE
    node.end()
    assert node.offsets() == {}
    node.commit(("t", {0: 9}))
    deleted = node.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000), 6)
    assert deleted.responses[0].error_code == E.NONE
    node.end()
    assert node.offsets([0]) == {0: (-1, E.NONE)}
