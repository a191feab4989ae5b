"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords, DescribeLogDirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from barnabas.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from barnabas.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from compat_tests.conform.batches import batch
from compat_tests.conform.case import case
from compat_tests.conform.cases.fetch import filled
from compat_tests.conform.cases.groups import coordinated
from compat_tests.conform.session import Session, Topic, made_up_id


def creatable(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    configs: Mapping[str, str | None] | None = None,
    assignments: Mapping[int, Sequence[int]] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in (assignments or {}).items()
        ],
    )


def create(session: Session, note: str, *topics: CreatableTopic, validate_only: bool = False) -> None:
    """Ask, and learn the new ids."""
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=5000, validate_only=validate_only)
    connection = session.connection()
    answer = connection.ask(request, session.version)
    for result in answer.topics:
        if result.topic_id != bytes(16):
            session.names.learn_topic(result.topic_id, result.name)
    session.record(note, session.names.tree(answer))


@case("CreateTopics")
def creates(session: Session) -> None:
    create(session, "plain", creatable(session.name("a"), 2))
    create(session, "again", creatable(session.name("a"), 2))
    create(
        session,
        "with configs",
        creatable(session.name("b"), configs={"retention.ms": "1000", "cleanup.policy": "compact"}),
    )
    create(session, "assigned", creatable(session.name("c"), -1, -1, assignments={0: [1], 1: [1]}))
    create(session, "two", creatable(session.name("d")), creatable(session.name("e"), 0))
    create(session, "nothing")


@case("CreateTopics", first=5)
def order_of_configs(session: Session) -> None:
    request = CreateTopicsRequest(topics=[creatable(session.name("a"))], timeout_ms=5000)
    (result,) = session.quiet(request, version=session.version).topics
    names = [entry.name for entry in result.configs or ()]
    session.record("names", [each for each in names if not each.startswith(("barnabas.", "nats."))])


@case("CreateTopics")
def defaults(session: Session) -> None:
    if session.version >= 4:
        create(session, "default counts", creatable(session.name("a"), -1, -1))
    create(session, "default partitions", creatable(session.name("b"), -1, 1))
    create(session, "default replicas", creatable(session.name("c"), 1, -1))


@case("CreateTopics")
def validates_only(session: Session) -> None:
    create(session, "good", creatable(session.name("a")), validate_only=True)
    create(session, "bad", creatable(session.name("a"), 0), validate_only=True)
    create(session, "really", creatable(session.name("a")))
    create(session, "exists", creatable(session.name("a")), validate_only=True)


@case("CreateTopics")
def bad_counts(session: Session) -> None:
    for partitions, replicas in ((0, 1), (-2, 1), (1, 0), (1, -2), (1, 2), (1, 4), (100001, 1)):
        create(
            session,
            f"{partitions} partitions {replicas} replicas",
            creatable(session.name("a"), partitions, replicas),
        )


@case("CreateTopics")
def bad_names(session: Session) -> None:
    coordinated(session, session.name("g"))
    for name in ("", ".", "..", "a b", "x" * 250, "a/b", "é"):
        create(session, f"name {name[:9]!r} of {len(name)}", creatable(name))
    create(session, "dots", creatable(session.name("a.b")))
    create(session, "collides", creatable(session.name("a_b")))
    create(session, "internal", creatable("__consumer_offsets"), validate_only=True)
    create(session, "metadata", creatable("__cluster_metadata"))


@case("CreateTopics")
def twice_in_one_request(session: Session) -> None:
    create(
        session,
        "twice",
        creatable(session.name("a")),
        creatable(session.name("a")),
        creatable(session.name("b")),
    )


@case("CreateTopics")
def bad_assignments(session: Session) -> None:
    cases: dict[str, CreatableTopic] = {
        "unknown broker": creatable("", -1, -1, assignments={0: [7]}),
        "broker twice": creatable("", -1, -1, assignments={0: [1, 1]}),
        "no replicas": creatable("", -1, -1, assignments={0: []}),
        "not from zero": creatable("", -1, -1, assignments={1: [1]}),
        "a gap": creatable("", -1, -1, assignments={0: [1], 2: [1]}),
        "with a partition count": creatable("", 1, -1, assignments={0: [1]}),
        "with a replication factor": creatable("", -1, 1, assignments={0: [1]}),
        "uneven": creatable("", -1, -1, assignments={0: [1], 1: [1, 7]}),
        "negative broker": creatable("", -1, -1, assignments={0: [-1]}),
    }
    for note, topic in cases.items():
        topic.name = session.name("a")
        create(session, note, topic)


BAD_CONFIGS: tuple[dict[str, str | None], ...] = (
    {"no.such.config": "1"},
    {"retention.ms": "abc"},
    {"retention.ms": "-2"},
    {"retention.ms": None},
    {"retention.ms": ""},
    {"cleanup.policy": "shrink"},
    {"cleanup.policy": ""},
    {"compression.type": "brotli"},
    {"segment.bytes": "1"},
    {"segment.bytes": "99999999999"},
    {"min.insync.replicas": "0"},
    {"message.timestamp.type": "Never"},
    {"max.message.bytes": "-1"},
    {"preallocate": "maybe"},
    {"min.cleanable.dirty.ratio": "2"},
    {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
    {"remote.storage.enable": "true"},
    {"local.retention.ms": "99", "retention.ms": "9"},
    {"compression.gzip.level": "99"},
    {"leader.replication.throttled.replicas": "nonsense"},
    {"message.format.version": "2.0"},
    {"flush.messages": "0"},
    {"index.interval.bytes": "-1"},
    {"unclean.leader.election.enable": "x"},
)


@case("CreateTopics")
def bad_configs(session: Session) -> None:
    for number, configs in enumerate(BAD_CONFIGS):
        create(session, f"{configs}", creatable(session.name(f"t{number}"), configs=configs))


@case("DeleteTopics")
def deletes(session: Session) -> None:
    topics = [session.create_topic(suffix) for suffix in "abc"]
    unknown = session.name("unknown")

    def ask(note: str, *names: str) -> None:
        session.ask(
            DeleteTopicsRequest(
                topics=[DeleteTopicState(name=name) for name in names],
                topic_names=list(names),
                timeout_ms=5000,
            ),
            note=note,
        )

    ask("one", topics[0].name)
    ask("again", topics[0].name)
    ask("one and an unknown", topics[1].name, unknown)
    ask("bad name", "a b")
    ask("nothing")
    ask("twice", topics[2].name, topics[2].name)


@case("DeleteTopics", first=6)
def deletes_by_id(session: Session) -> None:
    topics = [session.create_topic(suffix) for suffix in "abc"]
    for note, state in {
        "id": DeleteTopicState(name=None, topic_id=topics[0].id),
        "again": DeleteTopicState(name=None, topic_id=topics[0].id),
        "unknown id": DeleteTopicState(name=None, topic_id=made_up_id(9)),
        "id and name": DeleteTopicState(name=topics[1].name, topic_id=topics[1].id),
        "neither": DeleteTopicState(name=None),
    }.items():
        session.ask(DeleteTopicsRequest(topics=[state], timeout_ms=5000), note=note)
    both = [DeleteTopicState(name=topics[2].name), DeleteTopicState(name=None, topic_id=topics[2].id)]
    session.ask(DeleteTopicsRequest(topics=both, timeout_ms=5000), note="the same by name and by id")


@case("CreatePartitions")
def create_partitions(session: Session) -> None:
    topic = session.create_topic("a", 2)

    def ask(
        note: str,
        count: int,
        name: str = topic.name,
        assigned: list[list[int]] | None = None,
        check: bool = False,
    ) -> None:
        assignments = (
            None if assigned is None else [CreatePartitionsAssignment(broker_ids=ids) for ids in assigned]
        )
        wanted = CreatePartitionsTopic(name=name, count=count, assignments=assignments)
        session.ask(CreatePartitionsRequest(topics=[wanted], timeout_ms=5000, validate_only=check), note=note)

    ask("only validated", 4, check=True)
    ask("to 3", 3)
    for count in (3, 2, 0, -1):
        ask(f"to {count} from 3", count)
    ask("unknown topic", 3, session.name("unknown"))
    ask("bad name", 3, "a b")
    ask("assigned", 4, assigned=[[1]])
    ask("too few assignments", 6, assigned=[[1]])
    ask("too many assignments", 5, assigned=[[1], [1]])
    ask("unknown broker", 5, assigned=[[7]])
    ask("broker twice", 5, assigned=[[1, 1]])
    ask("no replicas", 5, assigned=[[]])
    ask("another replication factor", 5, assigned=[[1, 2]])
    ask("no assignments", 5, assigned=[])
    twice = [CreatePartitionsTopic(name=topic.name, count=9, assignments=None)] * 2
    session.ask(CreatePartitionsRequest(topics=twice, timeout_ms=5000), note="topic twice")
    session.ask(CreatePartitionsRequest(topics=[], timeout_ms=5000), note="nothing")


@case("DeleteRecords")
def delete_records(session: Session) -> None:
    topic = filled(session)

    def ask(offset: int, name: str = topic.name, partition: int = 0, note: str = "") -> None:
        wanted = DeleteRecordsPartition(partition_index=partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=name, partitions=[wanted])], timeout_ms=5000
        )
        session.ask(request, note=note or f"before {offset}")

    for offset in (0, 2, 1, 7, -2, -5, 6):
        ask(offset)
    ask(-1, note="all that is there")
    session.produce(topic, batch([b"x"] * 4))
    ask(-1, note="all that is there again")
    ask(0, session.name("unknown"), note="unknown topic")
    ask(0, partition=1, note="unknown partition")
    ask(0, partition=-1, note="partition -1")
    session.ask(DeleteRecordsRequest(topics=[], timeout_ms=5000), note="nothing")


@case("DeleteRecords")
def delete_records_of_a_compacted_topic(session: Session) -> None:
    topic = session.create_topic(configs={"cleanup.policy": "compact"})
    session.produce(topic, batch([b"a"], keys=[b"k"]))
    wanted = DeleteRecordsPartition(partition_index=0, offset=1)
    session.ask(
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic.name, partitions=[wanted])], timeout_ms=5000
        )
    )


@case("DescribeLogDirs")
def log_dirs(session: Session) -> None:
    topic = filled(session, partitions=2)

    def ask(note: str, *wanted: tuple[str, list[int]]) -> None:
        request = DescribeLogDirsRequest(
            topics=[DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in wanted]
        )
        answer = session.quiet(request, version=session.version)
        for result in answer.results:
            result.total_bytes = min(result.total_bytes, 1)
            result.usable_bytes = min(result.usable_bytes, 1)
        session.record(note, session.names.tree(answer))

    ask("both partitions", (topic.name, [0, 1]))
    ask("one partition", (topic.name, [0]))
    ask("unknown partition", (topic.name, [0, 7]))
    ask("unknown topic", (session.name("unknown"), [0]))
    ask("no partitions", (topic.name, []))
    ask("nothing")
    everything = session.quiet(DescribeLogDirsRequest(topics=None), version=session.version)
    mine = [entry for result in everything.results for entry in result.topics if entry.name == topic.name]
    session.record("everything", session.names.tree(mine))


def unknown_topic(session: Session) -> Topic:
    """A topic that neither broker has."""
    return Topic(session.name("unknown"), made_up_id(9))
