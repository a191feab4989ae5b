"""Metadata, topics, cluster and producer ids, asked of a whole node in every version that is served.

Expected errors and texts are Apache Kafka 4.3.1's answers to the same requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.requests.registry import REGISTRATIONS
from barnabas.broker.security.caller import ANONYMOUS, Principal
from barnabas.broker.tests.one_node import OneNode
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import alter_client_quotas as acq
from barnabas.wire.messages import alter_partition_reassignments as pr
from barnabas.wire.messages import create_partitions as cp
from barnabas.wire.messages import create_topics as ct
from barnabas.wire.messages import delete_topics as dt
from barnabas.wire.messages import describe_cluster as dc
from barnabas.wire.messages import describe_topic_partitions as dtp
from barnabas.wire.messages import elect_leaders as el
from barnabas.wire.messages import fetch as fe
from barnabas.wire.messages import incremental_alter_configs as iac
from barnabas.wire.messages import init_producer_id as ipi
from barnabas.wire.messages import metadata as md

UNKNOWN_ID = bytes(range(16))


class Asker(OneNode):
    """A node with two listeners, asked on the inner one."""

    def __init__(self, directory: Path, *more: str) -> None:
        super().__init__(
            "listeners=INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
            "advertised.listeners=INSIDE://inside:0,OUTSIDE://outside:7777",
            "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "inter.broker.listener.name=INSIDE",
            f"log.dirs={directory}",
            "broker.rack=r1",
            *more,
        )

    def ask(
        self,
        request: Any,
        version: int | None = None,
        principal: Principal = ANONYMOUS,
        listener: str = "INSIDE",
    ) -> Any:
        return super().ask(request, version, principal, listener)


@pytest.fixture
def asker(tmp_path: Path) -> Iterator[Asker]:
    asker = Asker(tmp_path)
    yield asker
    asker.node.stop()


def versions(key: int) -> range:
    return range(REGISTRATIONS[key].min_version, REGISTRATIONS[key].max_version + 1)


def topics_of(*names: str) -> list[md.MetadataRequestTopic]:
    return [md.MetadataRequestTopic(name=name) for name in names]


@pytest.mark.parametrize("version", range(14))
def test_metadata_tells_brokers_topics_and_partitions(asker: Asker, version: int) -> None:
    asker.create("a", 3)
    asker.create("b")
    answer = asker.ask(md.MetadataRequest(topics=topics_of("a", "a")), version)
    (broker,) = answer.brokers
    assert (broker.node_id, broker.host) == (1, "inside")
    assert broker.port > 0
    (topic,) = answer.topics
    assert (topic.name, topic.error_code, topic.topic_authorized_operations) == ("a", 0, -(1 << 31))
    assert [(p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes) for p in topic.partitions] == [
        (index, 1, [1], [1]) for index in range(3)
    ]
    if version >= 1:
        assert (broker.rack, answer.controller_id) == ("r1", 1)
    if version >= 2:
        assert answer.cluster_id == asker.node.cluster_id
    if version >= 7:
        assert [partition.leader_epoch for partition in topic.partitions] == [0] * 3
    everything = asker.ask(md.MetadataRequest(topics=None if version else []), version)
    assert [topic.name for topic in everything.topics] == ["a", "b"]
    if version:
        assert asker.ask(md.MetadataRequest(topics=[]), version).topics == []


def test_each_listener_has_its_own_address(asker: Asker) -> None:
    (inside,) = asker.ask(md.MetadataRequest(topics=[]), 12).brokers
    (outside,) = asker.ask(md.MetadataRequest(topics=[]), 12, listener="OUTSIDE").brokers
    assert inside.host == "inside"
    assert inside.port in asker.runtime.listening, "the port that was really opened"
    assert (outside.host, outside.port) == ("outside", 7777)
    (described,) = asker.ask(dc.DescribeClusterRequest(), 2, listener="OUTSIDE").brokers
    assert (described.host, described.port, described.rack) == ("outside", 7777, "r1")


def test_metadata_creates_a_missing_topic_and_tells_it(asker: Asker) -> None:
    answer = asker.ask(md.MetadataRequest(topics=topics_of("new", "bad name")), 12)
    assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in answer.topics] == [
        ("new", 0, 1),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
    ]
    assert asker.node.services.partitions.get("new", 0) is not None, "it can be written to"
    offsets = asker.ask(md.MetadataRequest(topics=topics_of("__consumer_offsets")), 12).topics[0]
    assert (offsets.is_internal, len(offsets.partitions)) == (True, 50)
    assert asker.node.services.controller.image.topic_configs("__consumer_offsets") == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }
    asker.create("c.d")
    refused = asker.ask(md.MetadataRequest(topics=topics_of("c_d", "__cluster_metadata")), 12).topics
    assert [topic.error_code for topic in refused] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2


def test_metadata_creates_only_when_both_sides_allow_it(asker: Asker, tmp_path: Path) -> None:
    request = md.MetadataRequest(topics=topics_of("new"), allow_auto_topic_creation=False)
    assert asker.ask(request, 12).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    forbidding = Asker(tmp_path / "other", "auto.create.topics.enable=false")
    request = md.MetadataRequest(topics=topics_of("new"))
    assert forbidding.ask(request, 12).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    forbidding.node.stop()


def test_topics_that_metadata_creates_count_towards_the_client_s_quota(asker: Asker) -> None:
    quota = acq.EntryData(
        [acq.EntityData("user", "ANONYMOUS")], [acq.OpData("controller_mutation_rate", 1.0, remove=False)]
    )
    asker.ask(acq.AlterClientQuotasRequest([quota], validate_only=False))
    names = [f"t{number}" for number in range(20)]
    found = asker.ask(md.MetadataRequest(topics_of(*names)), 9)
    assert [topic.error_code for topic in found.topics] == [ErrorCode.NONE] * 12 + [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ] * 8
    assert found.throttle_time_ms == 0
    (other,) = asker.ask(md.MetadataRequest(topics_of("other")), 9, Principal("User", "bob")).topics
    assert other.error_code == ErrorCode.NONE


def test_metadata_by_id(asker: Asker) -> None:
    asker.create("a")
    topic_id = asker.node.services.controller.image.topics["a"].topic_id
    wanted = [
        md.MetadataRequestTopic(name=None, topic_id=topic_id),
        md.MetadataRequestTopic(name="ignored", topic_id=UNKNOWN_ID),
        md.MetadataRequestTopic(name=None, topic_id=UNKNOWN_ID),
    ]
    answer = asker.ask(md.MetadataRequest(topics=wanted, include_topic_authorized_operations=True), 13)
    assert [(t.name, t.topic_id, t.error_code, t.topic_authorized_operations) for t in answer.topics] == [
        ("a", topic_id, 0, 3576),
        (None, UNKNOWN_ID, ErrorCode.UNKNOWN_TOPIC_ID, -(1 << 31)),
    ]
    early = asker.ask(md.MetadataRequest(topics=wanted[:1]), 10)
    assert [topic.error_code for topic in early.topics] == [ErrorCode.INVALID_REQUEST]


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics(asker: Asker, version: int) -> None:
    topic = ct.CreatableTopic(
        name="a",
        num_partitions=2,
        replication_factor=1,
        configs=[ct.CreatableTopicConfig(name="retention.ms", value="5")],
    )
    dry = asker.ask(ct.CreateTopicsRequest(topics=[topic], validate_only=True), version)
    assert dry.topics[0].error_code == 0
    assert not asker.node.services.controller.image.topics
    (created,) = asker.ask(ct.CreateTopicsRequest(topics=[topic]), version).topics
    assert (created.name, created.error_code, created.error_message) == ("a", 0, None)
    assert asker.node.services.partitions.get("a", 1) is not None
    if version >= 5:
        configs = {config.name: (config.value, config.config_source) for config in created.configs}
        assert (created.num_partitions, created.replication_factor) == (2, 1)
        assert configs["retention.ms"] == ("5", 1)
        assert configs["cleanup.policy"] == ("delete", 5)
        assert list(configs) == sorted(configs)
    if version >= 7:
        assert created.topic_id == asker.node.services.controller.image.topics["a"].topic_id
    (again,) = asker.ask(ct.CreateTopicsRequest(topics=[topic]), version).topics
    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert again.error_message == "Topic 'a' already exists."


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_topics(asker: Asker, version: int) -> None:
    asker.create("a")
    request = dt.DeleteTopicsRequest(topic_names=["a", "nope"])
    if version >= 6:
        request = dt.DeleteTopicsRequest(topics=[dt.DeleteTopicState(name=name) for name in ("a", "nope")])
    answer = asker.ask(request, version)
    assert {result.name: result.error_code for result in answer.responses} == {
        "a": 0,
        "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert asker.node.services.partitions.get("a", 0) is None
    asker.create("a")


def test_deletion_can_be_disabled(tmp_path: Path) -> None:
    asker = Asker(tmp_path, "delete.topic.enable=false")
    asker.create("a")
    for version, error in ((1, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)):
        (result,) = asker.ask(dt.DeleteTopicsRequest(topic_names=["a"]), version).responses
        assert result.error_code == error
    assert "a" in asker.node.services.controller.image.topics
    asker.node.stop()


@pytest.mark.parametrize("version", range(4))
def test_create_partitions(asker: Asker, version: int) -> None:
    asker.create("a")

    def ask(count: int, assignments: list[list[int]] | None = None) -> tuple[int, str | None]:
        given = (
            None
            if assignments is None
            else [cp.CreatePartitionsAssignment(broker_ids=b) for b in assignments]
        )
        topic = cp.CreatePartitionsTopic(name="a", count=count, assignments=given)
        (result,) = asker.ask(cp.CreatePartitionsRequest(topics=[topic]), version).results
        return result.error_code, result.error_message

    assert ask(1) == (ErrorCode.INVALID_PARTITIONS, "Topic already has 1 partition(s).")
    assert ask(3) == (0, None)
    assert asker.node.services.partitions.get("a", 2) is not None
    assert ask(4, [[1]]) == (0, None)
    assert ask(5, [[1, 1]])[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster(asker: Asker, version: int) -> None:
    request = dc.DescribeClusterRequest(include_cluster_authorized_operations=True)
    answer = asker.ask(request, version)
    assert (answer.cluster_id, answer.controller_id) == (asker.node.cluster_id, 1)
    assert answer.cluster_authorized_operations == 8096
    assert [broker.broker_id for broker in answer.brokers] == [1]
    if version >= 1:
        wrong = asker.ask(dc.DescribeClusterRequest(endpoint_type=2), version)
        assert (wrong.error_code, wrong.brokers) == (ErrorCode.MISMATCHED_ENDPOINT_TYPE, [])
        unknown = asker.ask(dc.DescribeClusterRequest(endpoint_type=3), version)
        assert unknown.error_message == "Unsupported endpoint type 3"


def test_describe_topic_partitions_in_pages(asker: Asker) -> None:
    for name, count in (("a", 4), ("b", 1), ("c", 2)):
        asker.create(name, count)
    for limit in range(-1, 9):
        seen: list[tuple[str, int]] = []
        cursor: dtp.Cursor | None = None
        for _ in range(9):
            request = dtp.DescribeTopicPartitionsRequest(response_partition_limit=limit, cursor=cursor)
            answer = asker.ask(request, 0)
            page = [(topic.name, p.partition_index) for topic in answer.topics for p in topic.partitions]
            assert 0 < len(page) <= max(limit, 1)
            seen += page
            if answer.next_cursor is None:
                break
            cursor = dtp.Cursor(
                topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
            )
        assert seen == [
            (name, index) for name, count in (("a", 4), ("b", 1), ("c", 2)) for index in range(count)
        ]


@pytest.mark.parametrize(
    ("names", "cursor", "expected"),
    [
        (["nope", "a", "bad name"], None, [("a", 0), ("bad name", 17), ("nope", 3)]),
        (["a"], ("a", -1), [("a", 42)]),
        (["a"], ("zzz", 0), [("a", 42)]),
        (["a"], ("a", 9), [("a", 0)]),
    ],
)
def test_describe_topic_partitions_by_name(
    asker: Asker, names: list[str], cursor: tuple[str, int] | None, expected: list[tuple[str, int]]
) -> None:
    asker.create("a")
    request = dtp.DescribeTopicPartitionsRequest(topics=[dtp.TopicRequest(name=name) for name in names])
    if cursor is not None:
        request.cursor = dtp.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    answer = asker.ask(request, 0)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == expected
    assert answer.next_cursor is None


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id(asker: Asker, version: int) -> None:
    def ask(**fields: Any) -> tuple[int, int, int]:
        answer = asker.ask(ipi.InitProducerIdRequest(**{"transactional_id": None, **fields}), version)
        return answer.error_code, answer.producer_id, answer.producer_epoch

    assert [ask(), ask()] == [(0, 0, 0), (0, 1, 0)]
    assert ask(transactional_id="") == (ErrorCode.INVALID_REQUEST, -1, -1)
    assert ask(transactional_id="t", transaction_timeout_ms=1) == (ErrorCode.NOT_COORDINATOR, -1, -1)
    if version >= 3:
        assert ask(producer_id=5) == (ErrorCode.INVALID_REQUEST, -1, -1)
        assert ask(producer_id=5, producer_epoch=2) == (0, 2, 0)


def test_more_topics_than_partitions_may_be_created_are_refused_without_a_decision(asker: Asker) -> None:
    topics = [ct.CreatableTopic(name=f"n{number}", num_partitions=1) for number in range(10_001)]
    results = asker.ask(ct.CreateTopicsRequest(topics=[*topics, topics[0]]), 7).topics
    assert len(results) == 10_001
    assert {(each.error_code, each.error_message) for each in results} == {
        (ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    }


def test_metadata_creates_no_more_topics_than_a_request_may(asker: Asker) -> None:
    wanted = md.MetadataRequest(topics=topics_of(*(f"n{number}" for number in range(10_001))))
    errors = {topic.error_code for topic in asker.ask(wanted, 12).topics}
    assert errors == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_many_resources_are_altered_some_at_a_time(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.api.alter_configs.CHANGES_PER_TURN", 2)
    asker.create("t")
    controller = asker.node.services.controller
    decisions: list[int] = []
    run = controller.run

    def counted(*told: Any) -> None:
        decisions.append(1)
        run(*told)

    monkeypatch.setattr(controller, "run", counted)

    def resource(name: str) -> iac.AlterConfigsResource:
        config = iac.AlterableConfig(name="retention.ms", config_operation=0, value="5")
        return iac.AlterConfigsResource(resource_type=2, resource_name=name, configs=[config])

    names = ["t", "unknown", "twice", "x", "y", "z", "twice"]
    answer = asker.ask(iac.IncrementalAlterConfigsRequest(resources=[resource(name) for name in names]), 1)
    assert [(each.resource_name, ErrorCode(each.error_code).name) for each in answer.responses] == [
        (name, {"t": "NONE", "twice": "INVALID_REQUEST"}.get(name, "UNKNOWN_TOPIC_OR_PARTITION"))
        for name in names
    ]
    assert len(decisions) == 4
    assert controller.image.topic_configs("t") == {"retention.ms": "5"}


def test_more_partitions_than_there_are_are_not_gone_through(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.broker.requests.repetitions.PARTITIONS_NAMED_MAX", 2)
    asker.create("a", 4)
    for count, error in ((4, ErrorCode.NONE), (5, ErrorCode.INVALID_REQUEST)):
        wanted = fe.FetchTopic("a", partitions=[fe.FetchPartition(0)] * count)
        answer = asker.ask(fe.FetchRequest(topics=[wanted], max_wait_ms=0), 12)
        assert (answer.error_code, bool(answer.responses)) == (error, not error)
        elections = [el.TopicPartitions("a", [0] * count)]
        assert asker.ask(el.ElectLeadersRequest(topic_partitions=elections), 2).error_code == error
        moves = [pr.ReassignableTopic("a", [pr.ReassignablePartition(0, [1])] * count)]
        answer = asker.ask(pr.AlterPartitionReassignmentsRequest(topics=moves), 1)
        assert answer.error_code == error


def test_more_topics_than_partitions_may_be_added_are_refused_without_a_decision(asker: Asker) -> None:
    topics = [cp.CreatePartitionsTopic(f"n{number}", 5) for number in range(10_001)]
    results = asker.ask(cp.CreatePartitionsRequest(topics=topics), 3).results
    assert {each.error_code for each in results} == {ErrorCode.POLICY_VIOLATION}
    assert len(results) == 10_001


@pytest.mark.parametrize("key", [20, 75])
def test_more_topics_than_there_are_are_not_gone_through(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, key: int
) -> None:
    monkeypatch.setattr("barnabas.broker.api.delete_topics.PARTITIONS_NAMED_MAX", 2)
    monkeypatch.setattr("barnabas.broker.api.describe_topic_partitions.PARTITIONS_NAMED_MAX", 2)
    asker.create("a")
    names = ["a", "x", "y"]
    if key == 20:
        topics = [dt.DeleteTopicState(name=name) for name in names]
        answers = asker.ask(dt.DeleteTopicsRequest(topics=topics), 6).responses
    else:
        described = dtp.DescribeTopicPartitionsRequest(topics=[dtp.TopicRequest(name=name) for name in names])
        answers = asker.ask(described, 0).topics
    assert [(each.name, each.error_code) for each in answers] == [
        (name, ErrorCode.INVALID_REQUEST) for name in names
    ]
    assert "a" in asker.node.services.controller.image.topics
