"""The group APIs while partitions of __consumer_offsets come to this broker and go: a real node among several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.tests.one_of_several import TOPIC_ID, View, state
from barnabas.controller.metadata.image import partition_record
from barnabas.runtime.slices import Steps
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.metadata_records import PartitionChangeRecord, RemoveTopicRecord
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
    OffsetFetchRequestTopics,
)
from barnabas.wire.messages.sync_group import SyncGroupRequest

COMMIT, FETCH, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE, OFFSET_DELETE = (
    8,
    9,
    11,
    12,
    13,
    14,
    15,
    16,
    42,
    47,
)


class Coordinators(View):
    """Node 1 leads __consumer_offsets-0, whose other replica is broker 2."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.register(2)
        self.partitions(state(2, [2]))
        assert self.find().error_code == 0
        self.offsets_id = self.node.services.controller.image.topics["__consumer_offsets"].topic_id
        self.commit(
            PartitionChangeRecord(
                topic_id=self.offsets_id,
                partition_id=0,
                replicas=[1, 2],
                isr=[1, 2],
                leader=1,
                directories=[bytes(16), bytes(16)],
            )
        )
        self.other_follows()

    @property
    def hosted(self) -> Any:
        return self.node.services.partitions.get("__consumer_offsets", 0)

    def other_follows(self) -> None:
        """Broker 2 has everything now."""
        self.hosted.follower_fetched(2, 102, self.hosted.log.log_end_offset, 0)
        self.runtime.advance(0)

    def lead(self, leader: int, isr: list[int] | None = None) -> None:
        self.commit(self.change(leader, isr))

    def change(self, leader: int, isr: list[int] | None = None) -> PartitionChangeRecord:
        return PartitionChangeRecord(topic_id=self.offsets_id, partition_id=0, leader=leader, isr=isr)

    def commit_offset(self, offset: int) -> Any:
        topic = OffsetCommitRequestTopic(
            name="t",
            partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)],
        )
        request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=[topic])
        return self.ask_later(COMMIT, request, 9)

    def ask_offset(self, require_stable: bool = False) -> Any:
        topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        groups = [OffsetFetchRequestGroup(group_id="g", topics=topics)]
        request = OffsetFetchRequest(groups=groups, require_stable=require_stable)
        return self.ask_later(FETCH, request, 9)

    def offset(self) -> tuple[E, int]:
        return offset_of(self.ask_offset())

    def errors(self) -> dict[int, E]:
        """What each API says of a group that is not there, by its key."""
        errors = {FETCH: self.offset()[0], COMMIT: committed(self.commit_offset(1))}
        asked: dict[int, tuple[Any, int]] = {
            JOIN: (
                JoinGroupRequest(
                    group_id="g",
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=10_000,
                    protocol_type="consumer",
                    protocols=[JoinGroupRequestProtocol(name="range")],
                ),
                9,
            ),
            SYNC: (SyncGroupRequest(group_id="g", protocol_type="consumer", protocol_name="range"), 5),
            HEARTBEAT: (HeartbeatRequest(group_id="g"), 4),
            LEAVE: (LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")]), 5),
            LIST: (ListGroupsRequest(), 5),
        }
        for key, (request, version) in asked.items():
            errors[key] = E(self.ask(key, request, version).error_code)
        errors[DESCRIBE] = E(self.ask(DESCRIBE, DescribeGroupsRequest(groups=["g"]), 6).groups[0].error_code)
        errors[DELETE] = E(self.ask(DELETE, DeleteGroupsRequest(groups_names=["g"]), 2).results[0].error_code)
        topic = OffsetDeleteRequestTopic(
            name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)]
        )
        request = OffsetDeleteRequest(group_id="g", topics=[topic])
        errors[OFFSET_DELETE] = E(self.ask(OFFSET_DELETE, request, 0).error_code)
        return errors


def offset_of(reply: Any) -> tuple[E, int]:
    """(error, offset)"""
    (response,) = reply.responses
    (group,) = response.groups
    if group.error_code:
        return E(group.error_code), -1
    return E.NONE, group.topics[0].partitions[0].committed_offset


def committed(reply: Any) -> E:
    (response,) = reply.responses
    return E(response.topics[0].partitions[0].error_code)


ALL = (COMMIT, FETCH, JOIN, SYNC, HEARTBEAT, LEAVE, LIST, DESCRIBE, DELETE, OFFSET_DELETE)


@pytest.fixture
def view(tmp_path: Path) -> Iterator[Coordinators]:
    view = Coordinators(tmp_path)
    yield view
    view.node.stop()


def test_a_commit_is_answered_when_the_other_replica_has_it(view: Coordinators) -> None:
    reply = view.commit_offset(5)
    assert (reply.responses, view.offset()) == ([], (E.NONE, -1))
    view.other_follows()
    assert (committed(reply), view.offset()) == (E.NONE, (E.NONE, 5))


def test_a_commit_that_does_not_end_is_answered(view: Coordinators) -> None:
    reply = view.commit_offset(5)
    view.runtime.advance(4.9)
    assert reply.responses == []
    view.runtime.advance(0.1)
    assert committed(reply) == E.COORDINATOR_NOT_AVAILABLE


def test_waiting_requests_get_not_coordinator_when_the_partition_moves(view: Coordinators) -> None:
    reply = view.commit_offset(5)
    view.lead(2)
    assert committed(reply) == E.NOT_COORDINATOR
    errors = view.errors()
    assert errors.pop(LIST) == E.NONE  # of the groups that are here
    assert errors == dict.fromkeys(set(ALL) - {LIST}, E.NOT_COORDINATOR)


def test_offsets_are_returned_when_all_loaded_records_are_committed(view: Coordinators) -> None:
    view.commit_offset(5)
    view.other_follows()
    view.commit_offset(6)
    view.lead(2)
    view.lead(1)  # with the offset that was not committed, as the script has it
    fetched = view.ask_offset()
    committed_next = view.commit_offset(7)
    (group,) = view.ask(LIST, ListGroupsRequest(), 5).groups
    assert group.group_id == "g"
    assert (fetched.responses, committed_next.responses) == ([], [])
    end = view.hosted.log.log_end_offset
    view.hosted.follower_fetched(2, 102, end - 1, 0)
    assert offset_of(fetched) == (E.NONE, 6)
    assert committed_next.responses == []
    view.other_follows()
    assert (committed(committed_next), view.offset()) == (E.NONE, (E.NONE, 7))


def test_stable_offsets_are_returned_by_a_confirmed_leader(view: Coordinators) -> None:
    view.commit_offset(5)
    view.other_follows()
    fetched = view.ask_offset(require_stable=True)
    assert fetched.responses == []
    view.other_follows()
    assert offset_of(fetched) == (E.NONE, 5)
    fetched = view.ask_offset(require_stable=True)
    view.lead(2)  # by now somebody may have committed there
    assert offset_of(fetched) == (E.NOT_COORDINATOR, -1)
    view.lead(1)
    view.other_follows()
    fetched = view.ask_offset(require_stable=True)
    view.runtime.advance(5)
    assert offset_of(fetched) == (E.COORDINATOR_LOAD_IN_PROGRESS, -1)
    view.other_follows()
    assert view.offset() == (E.NONE, 5)


def test_offsets_that_are_not_committed_in_time(view: Coordinators) -> None:
    view.commit_offset(5)
    view.lead(2)
    view.lead(1)
    fetched = view.ask_offset()
    view.runtime.advance(5)
    assert offset_of(fetched) == (E.COORDINATOR_LOAD_IN_PROGRESS, -1)
    assert view.offset() == (E.COORDINATOR_LOAD_IN_PROGRESS, -1)
    view.other_follows()
    assert view.offset() == (E.NONE, 5)
    view.commit_offset(6)
    view.lead(2)
    view.lead(1)
    fetched = view.ask_offset()
    view.lead(2)
    assert offset_of(fetched) == (E.NOT_COORDINATOR, -1)


def test_groups_that_are_being_loaded(view: Coordinators, busy: Busy) -> None:
    view.lead(2)
    view.lead(1)
    errors = view.errors()
    assert errors.pop(HEARTBEAT) == E.NONE
    assert errors == dict.fromkeys(set(ALL) - {HEARTBEAT}, E.COORDINATOR_LOAD_IN_PROGRESS)
    busy.end()
    view.runtime.advance(0)
    assert view.offset() == (E.NONE, -1)


class Busy:
    """Another partition that is being loaded: a thread reads for it until `end`."""

    def __init__(self, view: Coordinators, monkeypatch: pytest.MonkeyPatch) -> None:
        self._done: list[Callable[[None, None], object]] = []

        def steps() -> Steps[None]:
            yield lambda: None

        with monkeypatch.context() as patch:
            patch.setattr(view.runtime, "run_in_thread", lambda _work, done, **_: self._done.append(done))
            coordinator_log: Any = view.node.services.groups._log
            coordinator_log._loadings.add(steps(), lambda _result, _error: None)

    def end(self) -> None:
        (done,) = self._done
        done(None, None)


@pytest.fixture
def busy(view: Coordinators, monkeypatch: pytest.MonkeyPatch) -> Busy:
    return Busy(view, monkeypatch)


def test_a_partition_led_in_the_next_epoch_is_not_loaded_again(view: Coordinators) -> None:
    view.commit_offset(5)
    view.other_follows()
    shard = view.node.services.groups.shards.of("g")
    view.lead(1, [1])  # a new epoch all the same
    assert view.node.services.groups.shards.of("g") is shard
    view.commit(view.change(2), view.change(1))  # in one go: somebody else may have led in between
    assert view.node.services.groups.shards.of("g") is not shard
    assert view.offset() == (E.NONE, 5)


def test_a_topic_deleted_while_its_offsets_are_loaded(view: Coordinators, busy: Busy) -> None:
    view.commit_offset(5)
    view.other_follows()
    view.commit_offset(6)
    view.lead(2)
    view.lead(1)
    assert view.errors()[FETCH] == E.COORDINATOR_LOAD_IN_PROGRESS
    view.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
    busy.end()
    view.runtime.advance(0)
    view.other_follows()
    assert view.offset() == (E.NONE, -1)


def test_no_partition_no_groups(view: Coordinators) -> None:
    view.commit_offset(5)
    view.other_follows()
    view.commit(RemoveTopicRecord(topic_id=view.offsets_id))
    assert view.offset() == (E.NOT_COORDINATOR, -1)
    other = b"others".ljust(16)
    view.partitions(state(1, [1]), name="__consumer_offsets", topic_id=other)
    assert view.offset() == (E.NONE, -1)
    view.commit(partition_record(other, 0, state(-1, [1])))
    assert view.offset() == (E.NOT_COORDINATOR, -1)
