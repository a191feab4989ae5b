"""Requests that name the same thing several times; how they are answered limits their cost."""

from __future__ import annotations

from typing import Any

from barnabas.wire.messages import list_partition_reassignments as listing
from barnabas.wire.messages import metadata as metadata_messages
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.offset_commit import OffsetCommitRequest
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from barnabas.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from compat_tests.conform.batches import batch
from compat_tests.conform.case import case
from compat_tests.conform.cases.groups import coordinated, join_request, joined
from compat_tests.conform.cases.offsets import commit_request, fetch_request
from compat_tests.conform.cases.produce import produce
from compat_tests.conform.session import Session

TOPIC, GROUP = 2, 32


@case("DescribeConfigs")
def repeated_resources(session: Session) -> None:
    topic = session.create_topic()

    def ask(note: str, *resources: tuple[int, str, list[str] | None]) -> None:
        wanted = [
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name, keys in resources
        ]
        session.ask(DescribeConfigsRequest(resources=wanted), note=note)

    once = TOPIC, topic.name, ["retention.ms"]
    ask("topic three times", once, once, once)
    ask("with other keys", once, (TOPIC, topic.name, ["cleanup.policy"]))
    ask("around another", once, (TOPIC, session.name("unknown"), None), once)
    ask("unknown twice", (TOPIC, session.name("unknown"), None), (TOPIC, session.name("unknown"), None))
    ask("keys twice", (TOPIC, topic.name, ["retention.ms", "retention.ms"]))


@case("DescribeGroups")
def repeated_groups(session: Session) -> None:
    member = joined(session, session.name("g"))
    session.ask(DescribeGroupsRequest(groups=[member.group] * 3), note="three times")
    unknown = session.name("unknown")
    session.ask(DescribeGroupsRequest(groups=[unknown, member.group, unknown]), note="around another")


@case("DeleteGroups")
def repeated_groups_to_delete(session: Session) -> None:
    unknown = session.name("unknown")
    coordinated(session, unknown)
    session.ask(DeleteGroupsRequest(groups_names=[unknown, unknown]), note="unknown twice")


@case("FindCoordinator", first=4)
def repeated_keys(session: Session) -> None:
    group = session.name("g")
    coordinated(session, group)
    session.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group, group]), note="group twice")


@case("OffsetFetch")
def repeated_positions(session: Session) -> None:
    topic, group = session.create_topic("a", 2), session.name("g")
    coordinated(session, group)
    session.quiet(commit_request(group, topic))
    session.ask(fetch_request(group, topic, [0, 0, 1, 0]), note="partition three times")
    double = fetch_request(group, topic, [0])
    double.topics = double.topics and double.topics * 2
    for each in double.groups:
        each.topics = each.topics and each.topics * 2
    session.ask(double, note="topic twice")
    if session.version >= 8:
        for note, wanted in (("named", topic), ("all", None)):
            several = fetch_request(group, wanted)
            several.groups = several.groups * 3
            session.ask(several, note=f"group three times, {note}")


@case("OffsetCommit")
def repeated_commits(session: Session) -> None:
    topic, group = session.create_topic("a", 2), session.name("g")
    coordinated(session, group)
    first, second = commit_request(group, topic, 5), commit_request(group, topic, 7)
    both = [*first.topics[0].partitions, *second.topics[0].partitions]
    first.topics[0].partitions = both
    session.ask(first, note="partition twice")
    again: OffsetCommitRequest = commit_request(group, topic, 8)
    again.topics = [*again.topics, *commit_request(group, topic, 9).topics]
    session.ask(again, note="topic twice")
    stored = session.quiet(fetch_request(group, topic, [0]))
    session.record("stored", stored.groups[0].topics[0].partitions[0].committed_offset)


@case("OffsetDelete")
def repeated_deletes(session: Session) -> None:
    topic, group = session.create_topic("a", 2), session.name("g")
    coordinated(session, group)
    session.quiet(commit_request(group, topic))
    partition = OffsetDeleteRequestPartition(partition_index=0)
    wanted = OffsetDeleteRequestTopic(name=topic.name, partitions=[partition, partition])
    session.ask(OffsetDeleteRequest(group_id=group, topics=[wanted]), note="partition twice")
    session.ask(OffsetDeleteRequest(group_id=group, topics=[wanted, wanted]), note="topic twice")


@case("OffsetForLeaderEpoch")
def repeated_epochs(session: Session) -> None:
    topic = session.create_topic()
    partition = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    wanted = OffsetForLeaderTopic(topic=topic.name, partitions=[partition, partition])
    session.ask(OffsetForLeaderEpochRequest(replica_id=-2, topics=[wanted]), note="partition twice")
    once = OffsetForLeaderTopic(topic=topic.name, partitions=[partition])
    session.ask(OffsetForLeaderEpochRequest(replica_id=-2, topics=[once, once]), note="topic twice")


@case("DeleteRecords")
def repeated_offsets(session: Session) -> None:
    topic = session.create_topic()
    session.quiet(produce(topic, batch([b"a", b"b", b"c"])), version=12)

    def ask(note: str, *offsets: int) -> None:
        partitions = [DeleteRecordsPartition(partition_index=0, offset=offset) for offset in offsets]
        wanted = DeleteRecordsTopic(name=topic.name, partitions=partitions)
        session.ask(DeleteRecordsRequest(topics=[wanted], timeout_ms=5000), note=note)

    ask("forth", 1, 2)
    ask("and back", 3, 1)
    one = [DeleteRecordsTopic(name=topic.name, partitions=[DeleteRecordsPartition(offset=3)])] * 2
    session.ask(DeleteRecordsRequest(topics=one, timeout_ms=5000), note="topic twice")


@case("Metadata", first=12)
def repeated_ids(session: Session) -> None:
    topic = session.create_topic()
    wanted = metadata_messages.MetadataRequestTopic(topic_id=topic.id, name=None)
    request = metadata_messages.MetadataRequest(topics=[wanted, wanted], allow_auto_topic_creation=False)
    answer: Any = session.connection().ask(request, session.version)
    session.record("topics", [session.names.tree(each.error_code) for each in answer.topics])


@case("ElectLeaders")
def repeated_elections(session: Session) -> None:
    topic = session.create_topic()
    wanted = TopicPartitions(topic=topic.name, partitions=[0, 0])
    session.ask(ElectLeadersRequest(topic_partitions=[wanted], timeout_ms=5000), note="partition twice")
    once = TopicPartitions(topic=topic.name, partitions=[0])
    session.ask(ElectLeadersRequest(topic_partitions=[once, once], timeout_ms=5000), note="topic twice")


@case("ListPartitionReassignments")
def repeated_moves(session: Session) -> None:
    topic = session.create_topic()
    wanted = listing.ListPartitionReassignmentsTopics(name=topic.name, partition_indexes=[0, 0])
    session.ask(
        listing.ListPartitionReassignmentsRequest(topics=[wanted, wanted], timeout_ms=5000), note="twice"
    )


@case("DescribeLogDirs")
def repeated_logs(session: Session) -> None:
    topic = session.create_topic()
    wanted = DescribableLogDirTopic(topic=topic.name, partitions=[0, 0])
    answer = session.quiet(DescribeLogDirsRequest(topics=[wanted, wanted]), version=session.version)
    session.record("how often", [len(each.partitions) for one in answer.results for each in one.topics])


@case("LeaveGroup", first=3)
def repeated_leavers(session: Session) -> None:
    member = joined(session, session.name("g"))
    leaver = MemberIdentity(member_id=member.member_id)
    session.ask(LeaveGroupRequest(group_id=member.group, members=[leaver, leaver]), note="twice")


@case("JoinGroup")
def repeated_protocols(session: Session) -> None:
    group = session.name("g")
    coordinated(session, group)
    first = session.ask(join_request(group, protocols=("range", "range")), note="twice")
    if first is not None and first.error_code == 79:
        session.ask(join_request(group, first.member_id, protocols=("range", "range")), note="twice, known")
