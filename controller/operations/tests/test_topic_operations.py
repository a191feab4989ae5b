"""Creating and deleting topics and adding partitions, with the errors of an Apache Kafka 4.3.1 of one broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from barnabas.controller.config.topic_configs import TOPIC_CONFIGS
from barnabas.controller.extension import ConfigTables
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage
from barnabas.controller.metadata.records import decode_record, encode_record
from barnabas.controller.operations.partitions import MorePartitions, create_partitions
from barnabas.controller.operations.topic_names import CollidingTopics
from barnabas.controller.operations.topics import NewTopic, create_topics, delete_topics
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import RegisterBrokerRecord, TopicRecord
from barnabas.wire.primitives import ZERO_UUID


class Defaults:
    """Kafka's defaults for new topics."""

    tables = ConfigTables()
    num_partitions = 1
    default_replication_factor = 1

    def value(self, _name: str) -> str | None:
        return None

    def topic_defaults(self) -> dict[str, str]:
        return {name: key.default for name, key in TOPIC_CONFIGS.items() if key.default is not None}


class Cluster:
    """An image that operations change at once."""

    def __init__(self, *brokers: int, fenced: tuple[int, ...] = ()) -> None:
        self.image = MetadataImage()
        self._ids = 0
        for broker in (*brokers, *fenced):
            self.image.replay(
                RegisterBrokerRecord(broker_id=broker, fenced=broker in fenced), MetadataDelta()
            )

    def new_id(self, _name: str) -> bytes:
        self._ids += 1
        return self._ids.to_bytes(16, "big")

    def create(
        self, *topics: NewTopic, validate_only: bool = False
    ) -> list[tuple[str, ErrorCode, str | None]]:
        decision = create_topics(self.image, topics, Defaults(), self.new_id, validate_only=validate_only)
        for record in decision.records:
            self.image.replay(record, MetadataDelta())
        return [(result.name, result.error, result.message) for result in decision.response]

    def add(self, *topics: MorePartitions) -> list[tuple[str, ErrorCode, str | None]]:
        decision = create_partitions(self.image, topics)
        for record in decision.records:
            self.image.replay(record, MetadataDelta())
        return [(result.name, result.error, result.message) for result in decision.response]

    def delete(
        self, *wanted: tuple[str | None, bytes]
    ) -> list[tuple[str | None, bytes, ErrorCode, str | None]]:
        decision = delete_topics(self.image, wanted)
        for record in decision.records:
            self.image.replay(record, MetadataDelta())
        return [(r.name, r.topic_id, r.error, r.message) for r in decision.response]


MANUAL: Final = "The manual partition assignment includes"
NAME: Final = "Topic name is invalid:"
POSITIVE: Final = "Number of partitions was set to an invalid non-positive value."
FACTOR: Final = "Replication factor must be larger than 0, or -1 to use the default value."
CHARACTERS: Final = "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"


def assigned(*assignments: tuple[int, list[int]]) -> NewTopic:
    return NewTopic("t", assignments=assignments)


@pytest.mark.parametrize(
    ("topic", "error", "message"),
    [
        (NewTopic("old.one"), "TOPIC_ALREADY_EXISTS", "Topic 'old.one' already exists."),
        (NewTopic(""), "INVALID_TOPIC_EXCEPTION", f"{NAME} the empty string is not allowed"),
        (NewTopic("."), "INVALID_TOPIC_EXCEPTION", f"{NAME} '.' is not allowed"),
        (NewTopic(".."), "INVALID_TOPIC_EXCEPTION", f"{NAME} '..' is not allowed"),
        (
            NewTopic("x" * 250),
            "INVALID_TOPIC_EXCEPTION",
            f"{NAME} the length of '{'x' * 250}' is longer than the max allowed length 249",
        ),
        (NewTopic("a b"), "INVALID_TOPIC_EXCEPTION", f"{NAME} 'a b' {CHARACTERS}"),
        (NewTopic("é"), "INVALID_TOPIC_EXCEPTION", f"{NAME} 'é' {CHARACTERS}"),
        (NewTopic("a\n"), "INVALID_TOPIC_EXCEPTION", f"{NAME} 'a\n' {CHARACTERS}"),
        (
            NewTopic("old_one"),
            "INVALID_TOPIC_EXCEPTION",
            "Topic 'old_one' collides with existing topic: old.one",
        ),
        (NewTopic("t", 0), "INVALID_PARTITIONS", POSITIVE),
        (NewTopic("t", -2), "INVALID_PARTITIONS", POSITIVE),
        (NewTopic("t", 1, 0), "INVALID_REPLICATION_FACTOR", FACTOR),
        (NewTopic("t", 1, -2), "INVALID_REPLICATION_FACTOR", FACTOR),
        (
            NewTopic("t", 1, 2),
            "INVALID_REPLICATION_FACTOR",
            "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached "
            "because only 1 broker(s) are registered or some brokers have all their log directories cordoned.",
        ),
        (
            NewTopic("t", 10_001, 1),
            "POLICY_VIOLATION",
            "Excessively large number of partitions per request.",
        ),
        (
            NewTopic("__cluster_metadata"),
            "INVALID_REQUEST",
            "Creation of internal topic __cluster_metadata is prohibited.",
        ),
        (assigned((0, [1, 1])), "INVALID_REPLICA_ASSIGNMENT", f"{MANUAL} the broker 1 more than once."),
        (
            assigned((0, [9])),
            "INVALID_REPLICA_ASSIGNMENT",
            f"{MANUAL} broker 9, but no such broker is registered.",
        ),
        (assigned((0, [])), "INVALID_REPLICA_ASSIGNMENT", f"{MANUAL} an empty replica list."),
        (
            assigned((0, [1]), (2, [1])),
            "INVALID_REPLICA_ASSIGNMENT",
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            assigned((0, [1]), (0, [1])),
            "INVALID_REPLICA_ASSIGNMENT",
            "Found multiple manual partition assignments for partition 0",
        ),
        (
            NewTopic("t", 1, -1, [(0, [1])]),
            "INVALID_REQUEST",
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        ),
        (
            NewTopic("t", -1, 1, [(0, [1])]),
            "INVALID_REQUEST",
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        ),
        (
            NewTopic("t", configs=[("retention.ms", None)]),
            "INVALID_CONFIG",
            "Null value not supported for topic configs: retention.ms",
        ),
        (NewTopic("t", 0, 5, configs=[("nope", "1")]), "INVALID_CONFIG", "Unknown topic config name: nope"),
        (
            NewTopic("t", configs=[("retention.ms", "abc")]),
            "INVALID_CONFIG",
            "Invalid value abc for configuration retention.ms: Not a number of type LONG",
        ),
    ],
)
def test_invalid_topics_are_refused(topic: NewTopic, error: str, message: str) -> None:
    cluster = Cluster(1)
    cluster.create(NewTopic("old.one"))
    assert cluster.create(topic) == [(topic.name, ErrorCode[error], message)]
    assert list(cluster.image.topics) == ["old.one"]


def test_one_refused_topic_leaves_the_others_alone() -> None:
    cluster = Cluster(1)
    assert cluster.create(NewTopic("twice"), NewTopic("twice"), NewTopic("a"), NewTopic("b", 0)) == [
        ("a", ErrorCode.NONE, None),
        ("b", ErrorCode.INVALID_PARTITIONS, POSITIVE),
        ("twice", ErrorCode.INVALID_REQUEST, "Duplicate topic name."),
    ]
    assert list(cluster.image.topics) == ["a"]


def test_the_last_of_equal_config_names_counts() -> None:
    cluster = Cluster(1)
    cluster.create(NewTopic("t", configs=[("retention.ms", "1"), ("retention.ms", "2")]))
    assert cluster.image.topic_configs("t") == {"retention.ms": "2"}


def test_replicas_are_striped_and_fenced_brokers_never_lead() -> None:
    cluster = Cluster(1, 2, 3, fenced=(4,))
    cluster.create(NewTopic("t", 3, 4))
    states = cluster.image.topics["t"].partitions
    assert [state.leader for state in states.values()] == [1, 2, 3]
    assert all(sorted(state.replicas) == [1, 2, 3, 4] for state in states.values())
    assert all(sorted(state.isr) == [1, 2, 3] for state in states.values())
    ((_, error, message),) = Cluster(fenced=(1,)).create(NewTopic("t"))
    assert error == ErrorCode.INVALID_REPLICATION_FACTOR
    assert message == (
        "Unable to replicate the partition 1 time(s): All brokers are currently fenced, or have all their log "
        "directories cordoned."
    )


def test_manual_assignments_are_kept() -> None:
    cluster = Cluster(1, 2)
    cluster.create(assigned((1, [2, 1]), (0, [1, 2])))
    assert [state.replicas for state in cluster.image.topics["t"].partitions.values()] == [[1, 2], [2, 1]]
    assert cluster.create(NewTopic("u", assignments=[(0, [1]), (1, [1, 2])])) == [
        (
            "u",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{MANUAL} a partition with 2 replica(s), but this is not consistent with previous partitions, which "
            f"have 1 replica(s).",
        )
    ]


def test_deleting_topics() -> None:
    cluster = Cluster(1)
    cluster.create(
        NewTopic("a", configs=[("retention.ms", "1")]), NewTopic("b"), NewTopic("c"), NewTopic("d")
    )
    ids = {name: topic.topic_id for name, topic in cluster.image.topics.items()}
    other = b"\xff" * 16
    got = cluster.delete(
        ("a", ZERO_UUID),
        (None, ids["b"]),
        ("nope", ZERO_UUID),
        (None, other),
        ("x", other),
        (None, ZERO_UUID),
        ("c", ZERO_UUID),
        ("c", ZERO_UUID),
        ("d", ZERO_UUID),
        (None, ids["d"]),
    )
    assert sorted(got, key=str) == sorted(
        [
            ("a", ids["a"], ErrorCode.NONE, None),
            ("b", ids["b"], ErrorCode.NONE, None),
            (
                "nope",
                ZERO_UUID,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "This server does not host this topic-partition.",
            ),
            (None, other, ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID."),
            ("x", other, ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id."),
            (None, ZERO_UUID, ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified."),
            ("c", ZERO_UUID, ErrorCode.INVALID_REQUEST, "Duplicate topic name."),
            (
                "d",
                ids["d"],
                ErrorCode.INVALID_REQUEST,
                "The provided topic name maps to an ID that was already supplied.",
            ),
        ],
        key=str,
    )
    assert list(cluster.image.topics) == ["c", "d"]
    assert cluster.image.configs == {}


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        (MorePartitions("nope", 3), "UNKNOWN_TOPIC_OR_PARTITION", None),
        (MorePartitions("t", 3), "INVALID_PARTITIONS", "Topic already has 3 partition(s)."),
        (
            MorePartitions("t", -1),
            "INVALID_PARTITIONS",
            "The topic t currently has 3 partition(s); -1 would not be an increase.",
        ),
        (
            MorePartitions("t", 5, []),
            "INVALID_REPLICA_ASSIGNMENT",
            "Attempted to add 2 additional partition(s), but only 0 assignment(s) were specified.",
        ),
        (
            MorePartitions("t", 4, [[9]]),
            "INVALID_REPLICA_ASSIGNMENT",
            f"{MANUAL} broker 9, but no such broker is registered.",
        ),
    ],
)
def test_invalid_added_partitions_are_refused(
    wanted: MorePartitions, error: str, message: str | None
) -> None:
    cluster = Cluster(1)
    cluster.create(NewTopic("t", 3))
    assert cluster.add(wanted) == [(wanted.name, ErrorCode[error], message)]
    assert len(cluster.image.topics["t"].partitions) == 3


def test_added_partitions_continue_the_placement() -> None:
    cluster = Cluster(1, 2)
    cluster.create(NewTopic("t", 3, 1))
    assert cluster.add(MorePartitions("t", 5)) == [("t", ErrorCode.NONE, None)]
    assert [state.leader for state in cluster.image.topics["t"].partitions.values()] == [1, 2, 1, 2, 1]
    assert cluster.add(MorePartitions("t", 6), MorePartitions("t", 7)) == [
        ("t", ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    ]


def test_records_are_framed_as_kafka_frames_them() -> None:
    record = TopicRecord(name="ab", topic_id=bytes(range(16)))
    content = encode_record(record)
    assert content == bytes([1, 2, 0, 3]) + b"ab" + bytes(range(16)) + b"\0"
    assert decode_record(content) == record


def test_a_negative_number_of_partitions_does_not_raise_the_limit() -> None:
    results = Cluster(1).create(NewTopic("less", -(1 << 31), 1), NewTopic("more", 1_000_000, 1))
    assert {error for _, error, _ in results} == {ErrorCode.POLICY_VIOLATION}


class CountedTopics(dict[str, object]):
    """Counts how often all of them are gone through."""

    passes = 0

    def __iter__(self) -> Iterator[str]:
        self.passes += 1
        return super().__iter__()


def test_colliding_names_are_collected_once_per_request() -> None:
    topics = CountedTopics({"a.b": None, "a_b": None, "c": None})
    colliding = CollidingTopics(topics)
    assert [colliding.of(name) for name in ("c", "a.b", "a_b", "a.c", "x_y")] == [
        None,
        "a.b",
        "a.b",
        None,
        None,
    ]
    assert topics.passes == 1
