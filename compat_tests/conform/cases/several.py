"""Administration requests that name several things, and requests with several faults."""

from __future__ import annotations

from barnabas.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest
from barnabas.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from compat_tests.conform.case import case
from compat_tests.conform.cases.configs import DELETE, SET, SUBTRACT, TOPIC, alter, change, describe
from compat_tests.conform.cases.fetch import filled
from compat_tests.conform.cases.topics import creatable, create
from compat_tests.conform.session import Session, made_up_id


@case("CreateTopics")
def several_faults_at_once(session: Session) -> None:
    """Which of a topic's faults the answer names, which shows the order of the checks."""
    taken = session.create_topic("taken")
    bad: dict[str, str | None] = {"no.such.config": "1"}
    create(session, "name, counts and config", creatable("bad name", 0, 0, bad))
    create(session, "counts and config", creatable(session.name("a"), 0, 5, bad))
    create(session, "both counts", creatable(session.name("a"), 0, 5))
    create(session, "exists, counts and config", creatable(taken.name, 0, 5, bad))
    create(session, "collide in one request", creatable(session.name("m.m")), creatable(session.name("m_m")))
    create(
        session, "counts with an empty assignment", creatable(session.name("b"), 1, -1, assignments={0: []})
    )
    create(session, "negative partition", creatable(session.name("b"), -1, -1, assignments={-1: [1]}))


@case("CreatePartitions")
def several_topics(session: Session) -> None:
    first, second = session.create_topic("a"), session.create_topic("b")
    wanted = [
        CreatePartitionsTopic(name=name, count=count, assignments=None)
        for name, count in ((first.name, 2), (second.name, 1), (session.name("unknown"), 2), ("", 2))
    ]
    session.ask(CreatePartitionsRequest(topics=wanted, timeout_ms=5000, validate_only=True), note="validated")
    session.ask(CreatePartitionsRequest(topics=wanted, timeout_ms=5000), note="one of four")


@case("DeleteRecords")
def several_partitions(session: Session) -> None:
    topic = filled(session, partitions=2)
    known = [DeleteRecordsPartition(partition_index=index, offset=1) for index in (0, 1, 2)]
    topics = [
        DeleteRecordsTopic(name=topic.name, partitions=known),
        DeleteRecordsTopic(name=session.name("unknown"), partitions=known[:1]),
    ]
    session.ask(DeleteRecordsRequest(topics=topics, timeout_ms=5000))
    none = [DeleteRecordsTopic(name=topic.name, partitions=[])]
    session.ask(DeleteRecordsRequest(topics=none, timeout_ms=5000), note="no partitions")


@case("OffsetForLeaderEpoch")
def several_epochs(session: Session) -> None:
    topic = filled(session, partitions=2)
    wanted = [
        OffsetForLeaderPartition(partition=index, current_leader_epoch=current, leader_epoch=0)
        for index, current in ((0, -1), (1, 7), (2, -1))
    ]
    topics = [
        OffsetForLeaderTopic(topic=topic.name, partitions=wanted),
        OffsetForLeaderTopic(topic=session.name("unknown"), partitions=wanted[:1]),
        OffsetForLeaderTopic(topic="bad name!", partitions=wanted[:1]),
    ]
    for replica in (-1, -2, 0):
        session.ask(OffsetForLeaderEpochRequest(replica_id=replica, topics=topics), note=f"replica {replica}")


@case("Metadata", first=12)
def names_and_ids_mixed(session: Session) -> None:
    topic = session.create_topic()
    entries = [
        MetadataRequestTopic(name=topic.name, topic_id=made_up_id(9)),
        MetadataRequestTopic(name=None, topic_id=made_up_id(9)),
        MetadataRequestTopic(name=None, topic_id=topic.id),
        MetadataRequestTopic(name=session.name("unknown")),
    ]
    session.ask(MetadataRequest(topics=entries, allow_auto_topic_creation=False))


@case("DescribeTopicPartitions")
def cursors_and_unknowns(session: Session) -> None:
    first = session.create_topic("a", 3)
    unknown = session.name("unknown")

    def ask(note: str, names: list[str], limit: int, cursor: Cursor | None = None) -> None:
        topics = [TopicRequest(name=name) for name in names]
        session.ask(
            DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=cursor),
            note=note,
        )

    ask("limit before an unknown", [first.name, unknown], 3)
    ask("limit inside, then an unknown", [first.name, unknown], 2)
    ask("cursor at an unknown", [first.name, unknown], 9, Cursor(topic_name=unknown, partition_index=0))
    ask("cursor at a bad name", [first.name, "bad name"], 9, Cursor(topic_name="bad name", partition_index=0))
    ask("cursor at the last", [first.name], 1, Cursor(topic_name=first.name, partition_index=2))


@case("DescribeConfigs")
def several_resources(session: Session) -> None:
    made = session.create_topic()
    keys = ["retention.ms", "cleanup.policy"]
    parts = [describe(TOPIC, name, keys).resources[0] for name in (made.name, session.name("unknown"), "a b")]
    session.ask(DescribeConfigsRequest(resources=parts), note="three")
    session.ask(DescribeConfigsRequest(resources=parts[:1] * 2), note="one twice")


@case("AlterConfigs")
def alter_several(session: Session) -> None:
    made = session.create_topic()
    request = alter(TOPIC, made.name, {"retention.ms": "5"})
    for name in (session.name("unknown"), "a b", session.name("gone")):
        request.resources.extend(alter(TOPIC, name, {"retention.ms": "5"}).resources)
    session.ask(request)


@case("IncrementalAlterConfigs")
def change_several(session: Session) -> None:
    made = session.create_topic()
    request = change(TOPIC, made.name, ("retention.ms", SET, "5"))
    for name in (session.name("unknown"), "a b"):
        request.resources.extend(change(TOPIC, name, ("retention.ms", SET, "5")).resources)
    session.ask(request, note="one of three")
    session.ask(change(TOPIC, made.name), note="no keys")
    session.ask(
        change(TOPIC, made.name, ("cleanup.policy", SUBTRACT, "delete")), note="subtract the only one"
    )
    session.ask(
        change(TOPIC, made.name, ("cleanup.policy", SUBTRACT, "zzz")), note="subtract what is not there"
    )
    session.ask(change(TOPIC, made.name, ("segment.ms", DELETE, None)), note="delete what is not set")
