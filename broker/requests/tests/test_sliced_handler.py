"""Requests of many parts: served in slices of a turn, with others in between, and answered in proportion."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.broker.requests.context import (
    CLOSE_CONNECTION,
    PENDING,
    LocalReply,
    RawResponse,
    RequestContext,
)
from barnabas.broker.requests.registry import REGISTRATIONS
from barnabas.broker.requests.repetitions import PARTITIONS_NAMED_MAX, REPETITIONS_MAX
from barnabas.broker.requests.sliced_handler import sliced
from barnabas.broker.tests.reply import Reply, make_context
from barnabas.controller.operations.configs import CONFIGS_MAX, TOO_MANY_CONFIGS
from barnabas.controller.operations.topics import TOO_MANY_PARTITIONS
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages import alter_configs as ac
from barnabas.wire.messages import alter_partition_reassignments as ap
from barnabas.wire.messages import alter_replica_log_dirs as al
from barnabas.wire.messages import consumer_group_heartbeat as ch
from barnabas.wire.messages import create_topics as ct
from barnabas.wire.messages import delete_records as dr
from barnabas.wire.messages import delete_topics as dt
from barnabas.wire.messages import describe_configs as dc
from barnabas.wire.messages import describe_groups as dg
from barnabas.wire.messages import describe_log_dirs as dl
from barnabas.wire.messages import describe_transactions as dtx
from barnabas.wire.messages import elect_leaders as el
from barnabas.wire.messages import fetch as fe
from barnabas.wire.messages import find_coordinator as fc
from barnabas.wire.messages import incremental_alter_configs as ia
from barnabas.wire.messages import join_group as jg
from barnabas.wire.messages import leave_group as lg
from barnabas.wire.messages import list_groups as lgr
from barnabas.wire.messages import list_offsets as lo
from barnabas.wire.messages import list_partition_reassignments as lp
from barnabas.wire.messages import list_transactions as ltx
from barnabas.wire.messages import metadata as md
from barnabas.wire.messages import offset_commit as oc
from barnabas.wire.messages import offset_fetch as of
from barnabas.wire.messages import offset_for_leader_epoch as ofe
from barnabas.wire.messages import streams_group_heartbeat as sh
from barnabas.wire.messages import update_features as uf
from barnabas.wire.registry import response_type
from compat_tests.virtual.runtime import VirtualRuntime

TOPIC = 2
TICK_S = 0.0001  # so that a slice of 2 ms ends after 20 parts


class TickingRuntime(VirtualRuntime):
    """A clock that moves on whenever it is read: work takes time, and how much work a turn does can be counted."""

    ticking = False
    reads = 0
    reads_a_turn_max = 0
    reads_in_all = 0

    def monotonic(self) -> float:
        if self.ticking:
            self.reads += 1
            self.reads_in_all += 1
            self.reads_a_turn_max = max(self.reads_a_turn_max, self.reads)
            return super().monotonic() + self.reads * TICK_S
        return super().monotonic()

    def call_soon(self, callback: Any) -> None:
        def turn() -> None:
            self.reads = 0
            callback()

        super().call_soon(turn)


class Client:
    """Asks the handlers of a node as the dispatcher does. What is answered: a response, or what was made of it."""

    def __init__(self, directory: Path) -> None:
        self.runtime = TickingRuntime()
        properties = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory)}
        self.node = Node(BrokerConfig.from_properties(properties), self.runtime)
        self.node.start()
        self.reply = Reply()  # of the last request
        self.slow = False  # whether time passes while it is served

    def context(self, key: int, version: int) -> RequestContext[Any]:
        self.reply = Reply()
        return make_context(self.node.services, self.reply, key, version)

    def ask(self, key: int, request: Any, version: int | None = None) -> Any:
        version = REGISTRATIONS[key].max_version if version is None else version
        self.runtime.ticking, self.runtime.reads = self.slow, 0
        response: Any = REGISTRATIONS[key].handler(self.context(key, version), request)
        if response is PENDING:
            self.runtime.run_until_idle()
            (response,) = self.reply.responses
        self.runtime.ticking = False
        if isinstance(response, RawResponse):
            response, _ = response_type(key).decode(version, response.body)
        return response


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    client = Client(tmp_path)
    topic = ct.CreatableTopic(name="t", num_partitions=3, replication_factor=1)
    assert client.ask(19, ct.CreateTopicsRequest(topics=[topic])).topics[0].error_code == E.NONE
    client.ask(10, fc.FindCoordinatorRequest(coordinator_keys=["g"]))
    commit = oc.OffsetCommitRequestPartition(0, 7, committed_metadata="m" * 4096)
    topic_id = client.node.services.controller.image.topics["t"].topic_id
    committed = oc.OffsetCommitRequestTopic("t", topic_id, [commit])
    answer = client.ask(8, oc.OffsetCommitRequest(group_id="g", topics=[committed]))
    assert answer.topics[0].partitions[0].error_code == E.NONE
    yield client
    client.node.stop()


MANY = 500


def requests(topic_id: bytes) -> dict[str, tuple[int, Any]]:
    """Each names MANY things."""
    names = [f"n{number}" for number in range(MANY)]
    return {
        "ListOffsets": (
            2,
            lo.ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    lo.ListOffsetsTopic("t", [lo.ListOffsetsPartition(each, timestamp=-1) for each in range(MANY)])
                ],
            ),
        ),
        "ListOffsets of a stranger": (
            2,
            lo.ListOffsetsRequest(
                replica_id=7,
                topics=[lo.ListOffsetsTopic("t", [lo.ListOffsetsPartition(each) for each in range(MANY)])],
            ),
        ),
        "Metadata": (
            3,
            md.MetadataRequest(
                topics=[md.MetadataRequestTopic(name=each) for each in names], allow_auto_topic_creation=False
            ),
        ),
        "OffsetCommit": (
            8,
            oc.OffsetCommitRequest(
                group_id="g",
                topics=[
                    oc.OffsetCommitRequestTopic(
                        topic_id=topic_id, partitions=[oc.OffsetCommitRequestPartition(each) for each in range(MANY)]
                    )
                ],
            ),
        ),
        "OffsetFetch": (
            9,
            of.OffsetFetchRequest(
                groups=[
                    of.OffsetFetchRequestGroup(
                        "g", topics=[of.OffsetFetchRequestTopics("t", topic_id, list(range(MANY)))]
                    )
                ]
            ),
        ),
        "FindCoordinator": (10, fc.FindCoordinatorRequest(coordinator_keys=names)),
        "DescribeGroups": (15, dg.DescribeGroupsRequest(groups=names)),
        "DeleteRecords": (
            21,
            dr.DeleteRecordsRequest(
                topics=[dr.DeleteRecordsTopic("t", [dr.DeleteRecordsPartition(each) for each in range(MANY)])]
            ),
        ),
        "DescribeTransactions": (65, dtx.DescribeTransactionsRequest(names)),
        "ListTransactions": (
            66,
            ltx.ListTransactionsRequest(state_filters=names, producer_id_filters=list(range(MANY))),
        ),
        "ListGroups": (16, lgr.ListGroupsRequest(states_filter=names, types_filter=names)),
        "OffsetForLeaderEpoch": (
            23,
            ofe.OffsetForLeaderEpochRequest(
                topics=[
                    ofe.OffsetForLeaderTopic("t", [ofe.OffsetForLeaderPartition(each) for each in range(MANY)])
                ]
            ),
        ),
        "DescribeConfigs": (
            32,
            dc.DescribeConfigsRequest(
                resources=[dc.DescribeConfigsResource(resource_type=32, resource_name=each) for each in names]
            ),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", requests(bytes(16)))
def test_a_request_of_many_parts_is_served_in_slices_and_answered_as_at_once(
    client: Client, name: str
) -> None:
    topic_id = client.node.services.controller.image.topics["t"].topic_id
    at_once = client.ask(*requests(topic_id)[name])
    client.slow = True
    in_slices = client.ask(*requests(topic_id)[name])
    kind: Any = response_type(requests(topic_id)[name][0])
    version = REGISTRATIONS[requests(topic_id)[name][0]].max_version
    assert b"".join(kind.encode(version, in_slices)) == b"".join(kind.encode(version, at_once))
    assert client.runtime.reads_in_all >= MANY, "each part may end a slice"
    assert client.runtime.reads_a_turn_max < 60, (
        "parts of one turn, which may end one slice and begin another"
    )


def refused() -> dict[str, tuple[int, int, Any]]:
    """(API key, version, request); each names MANY things that get an error."""
    indexes = list(range(MANY))
    unknown = of.OffsetFetchRequestTopics(topic_id=bytes(15) + b"x", partition_indexes=indexes)
    old = of.OffsetFetchRequest(group_id="g", topics=[of.OffsetFetchRequestTopic("t", indexes)])
    return {
        "Metadata without names": (3, 12, md.MetadataRequest(topics=[md.MetadataRequestTopic(name=None)] * MANY)),
        "Metadata by ids too early": (3, 11, md.MetadataRequest(topics=[md.MetadataRequestTopic(name=None)] * MANY)),
        "OffsetFetch of an unknown topic": (
            9, 10, of.OffsetFetchRequest(groups=[of.OffsetFetchRequestGroup("g", topics=[unknown])]),
        ),
        "OffsetFetch of many old topics": (
            9, 7, of.OffsetFetchRequest(group_id="g", topics=[of.OffsetFetchRequestTopic("t", [])] * MANY),
        ),
        "OffsetFetch 7": (9, 7, old),
        "OffsetFetch 1 without a session": (9, 1, old),
        "AlterReplicaLogDirs": (
            34, 2,
            al.AlterReplicaLogDirsRequest([al.AlterReplicaLogDir("/x", [al.AlterReplicaLogDirTopic("t", indexes)])]),
        ),
        "DescribeLogDirs": (35, 4, dl.DescribeLogDirsRequest([dl.DescribableLogDirTopic("t", indexes)])),
    }  # fmt: skip


# How often each part is served
PASSES = {"OffsetFetch 7": 2, "AlterReplicaLogDirs": 2, "OffsetFetch of many old topics": 3, "Metadata by ids too early": 2,
          "Metadata without names": 2}  # fmt: skip


@pytest.mark.parametrize("name", refused())
def test_errors_of_many_parts_are_made_in_slices(client: Client, name: str) -> None:
    key, version, request = refused()[name]
    if "without a session" in name:
        client.node.services.partitions.has_session = lambda: False
    client.slow = True
    client.ask(key, request, version)
    assert client.runtime.reads_in_all >= PASSES.get(name, 1) * MANY


def test_what_many_that_leave_are_answered_is_encoded_in_a_thread(client: Client) -> None:
    request = lg.LeaveGroupRequest(group_id="g", members=[lg.MemberIdentity(member_id="m")] * MANY)
    answer = client.ask(13, request)
    assert [member.error_code for member in answer.members] == [E.UNKNOWN_MEMBER_ID] * MANY
    assert isinstance(client.reply.answer, RawResponse)


def test_one_that_fails_in_a_later_turn_closes_its_connection(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    @sliced
    def failing(_context: RequestContext[Any], _request: Any) -> Generator[None, None, md.MetadataResponse]:
        for _ in range(100):
            yield
        raise ValueError("a defect")

    client.runtime.ticking = True
    assert failing(client.context(3, 13), None) is PENDING
    client.runtime.run_until_idle()
    client.runtime.ticking = False
    assert client.reply.responses == [CLOSE_CONNECTION]
    assert "Metadata of 127.0.0.1 failed" in caplog.text


def test_a_client_that_has_gone_is_served_no_further(client: Client) -> None:
    done: list[int] = []

    @sliced
    def counting(_context: RequestContext[Any], _request: Any) -> Generator[None, None, md.MetadataResponse]:
        for number in range(1000):
            done.append(number)
            yield
        return md.MetadataResponse()

    client.runtime.ticking = True
    counting(client.context(3, 13), None)
    client.reply.closed = True
    client.runtime.run_until_idle()
    client.runtime.ticking = False
    assert len(done) < 30
    assert client.reply.responses == []


def test_a_request_without_a_connection_gets_the_response_itself(client: Client) -> None:
    @sliced
    def counting(_context: RequestContext[Any], _request: Any) -> Generator[None, None, md.MetadataResponse]:
        for _ in range(1000):
            yield
        return md.MetadataResponse(cluster_id="c")

    answers: list[Any] = []
    context = client.context(3, 13)
    context.reply = LocalReply(answers.append, lambda: None)
    client.runtime.ticking = True
    counting(context, None)
    client.runtime.run_until_idle()
    client.runtime.ticking = False
    assert [answer.cluster_id for answer in answers] == ["c"]


# -- repetitions


def test_a_topics_configs_are_described_a_bounded_number_of_times(client: Client) -> None:
    resource = dc.DescribeConfigsResource(resource_type=TOPIC, resource_name="t")
    results = client.ask(32, dc.DescribeConfigsRequest(resources=[resource] * 1000)).results
    assert len(results) == 1000
    assert [bool(result.configs) for result in results] == [True] * (1 + REPETITIONS_MAX) + [False] * (
        999 - REPETITIONS_MAX
    )
    assert {result.error_code for result in results if not result.configs} == {E.INVALID_REQUEST}
    assert results[0].configs is results[1].configs, "made once"


def test_a_broker_is_one_resource_however_its_id_is_written(client: Client) -> None:
    ids = ["0" * number + str(client.node.services.node_id) for number in range(1000)]
    wanted = [dc.DescribeConfigsResource(resource_type=4, resource_name=each) for each in ids]
    results = client.ask(32, dc.DescribeConfigsRequest(resources=wanted)).results
    assert sum(bool(result.configs) for result in results) == 1 + REPETITIONS_MAX


def test_groups_without_configs_are_described_a_bounded_number_of_times(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.broker.api.describe_configs.WITHOUT_CONFIGS_MAX", 10)
    wanted = [dc.DescribeConfigsResource(resource_type=32, resource_name=f"g{each}") for each in range(20)]
    results = client.ask(32, dc.DescribeConfigsRequest(resources=wanted)).results
    assert [result.error_code for result in results] == [E.NONE] * 10 + [E.INVALID_REQUEST] * 10


def test_a_group_is_described_a_bounded_number_of_times(client: Client) -> None:
    join = jg.JoinGroupRequest(
        group_id="big",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[jg.JoinGroupRequestProtocol(name="range", metadata=bytes(1000))],
    )
    join.member_id = client.ask(11, join).member_id
    assert client.ask(11, join).error_code == E.NONE
    groups = client.ask(15, dg.DescribeGroupsRequest(groups=["big"] * 1000)).groups
    assert sum(bool(group.members) for group in groups) == 1 + REPETITIONS_MAX
    assert {group.error_code for group in groups if not group.members} == {E.INVALID_REQUEST}


def test_offsets_are_answered_a_bounded_number_of_times(client: Client) -> None:
    topic_id = client.node.services.controller.image.topics["t"].topic_id
    everything = of.OffsetFetchRequestGroup("g", topics=None)
    groups = client.ask(9, of.OffsetFetchRequest(groups=[everything] * 1000)).groups
    assert sum(bool(group.topics) for group in groups) == 1 + REPETITIONS_MAX
    assert groups[-1].error_code == E.INVALID_REQUEST
    one = of.OffsetFetchRequestGroup("g", topics=[of.OffsetFetchRequestTopics("t", topic_id, [0] * 1000)])
    ((topic,),) = [group.topics for group in client.ask(9, of.OffsetFetchRequest(groups=[one])).groups]
    assert sum(part.metadata != "" for part in topic.partitions) == 1 + REPETITIONS_MAX
    assert topic.partitions[-1].error_code == E.INVALID_REQUEST


def test_of_a_position_committed_twice_the_last_is_written_and_both_are_answered(client: Client) -> None:
    topic_id = client.node.services.controller.image.topics["t"].topic_id
    twice = [oc.OffsetCommitRequestPartition(1, committed_offset=each) for each in (3, 5)]
    wanted = oc.OffsetCommitRequestTopic(topic_id=topic_id, partitions=twice)
    (topic,) = client.ask(8, oc.OffsetCommitRequest(group_id="g", topics=[wanted])).topics
    assert [(part.partition_index, part.error_code) for part in topic.partitions] == [(1, 0), (1, 0)]
    shard: Any = client.node.services.groups.shards.of("g")
    assert shard.offsets.get("g", "t", 1).offset == 5


# -- more than there is


@pytest.mark.parametrize("replica_id", [-1, 7])
@pytest.mark.parametrize("partitions", [0, 1])
def test_a_fetch_of_more_than_there_is_is_refused_as_a_whole(
    client: Client, replica_id: int, partitions: int
) -> None:
    """Whatever the replica id: clients that pose as brokers are answered for each partition."""
    wanted = [fe.FetchPartition(each) for each in range(partitions)]
    topics = [fe.FetchTopic("", b"%016d" % each, wanted) for each in range(PARTITIONS_NAMED_MAX + 1)]
    answer = client.ask(1, fe.FetchRequest(replica_state=fe.ReplicaState(replica_id), topics=topics))
    assert (answer.error_code, answer.responses) == (E.INVALID_REQUEST, [])


@pytest.mark.parametrize(
    ("topics", "partitions"), [(PARTITIONS_NAMED_MAX + 1, 0), (1, PARTITIONS_NAMED_MAX + 1)]
)
def test_controllers_refuse_a_request_for_more_than_there_is_as_a_whole(
    client: Client, topics: int, partitions: int
) -> None:
    names, indexes = [f"n{each}" for each in range(topics)], list(range(partitions))
    wanted = [ap.ReassignablePartition(each, [1]) for each in indexes]
    requests: dict[int, Any] = {
        43: el.ElectLeadersRequest(topic_partitions=[el.TopicPartitions(each, indexes) for each in names]),
        45: ap.AlterPartitionReassignmentsRequest(
            topics=[ap.ReassignableTopic(each, wanted) for each in names]
        ),
        46: lp.ListPartitionReassignmentsRequest(
            topics=[lp.ListPartitionReassignmentsTopics(each, indexes) for each in names]
        ),
    }
    for key, request in requests.items():
        assert client.ask(key, request).error_code == E.INVALID_REQUEST, key


@pytest.mark.parametrize("is_owned", [False, True])
def test_a_member_names_no_more_than_there_is(client: Client, is_owned: bool) -> None:
    request = ch.ConsumerGroupHeartbeatRequest("g", "m", 1 if is_owned else 0)
    many = range(PARTITIONS_NAMED_MAX + 1)
    if is_owned:
        request.topic_partitions = [ch.TopicPartitions(bytes(16), list(many))]
    else:
        request.rebalance_timeout_ms = 1000
        request.topic_partitions = []
        request.subscribed_topic_names = [f"n{each}" for each in many]
    assert client.ask(68, request).error_code == E.INVALID_REQUEST


def wide_topology(kind: str) -> sh.Topology:
    names = [f"n{each}" for each in range(PARTITIONS_NAMED_MAX + 1)]
    infos = [sh.TopicInfo(name) for name in names]
    joined = sh.CopartitionGroup(source_topics=[0] * len(names))
    subtopologies = {
        "subtopologies": [sh.Subtopology(str(each), ["t"]) for each in range(1001)],
        "sources": [sh.Subtopology("0", names)],
        "sinks": [sh.Subtopology("0", ["t"], repartition_sink_topics=names)],
        "changelogs": [sh.Subtopology("0", ["t"], state_changelog_topics=infos)],
        "joined": [sh.Subtopology("0", ["t"], copartition_groups=[joined])],
    }
    return sh.Topology(0, subtopologies[kind])


@pytest.mark.parametrize("kind", ["subtopologies", "sources", "sinks", "changelogs", "joined"])
def test_topologies_are_bounded(client: Client, kind: str) -> None:
    request = sh.StreamsGroupHeartbeatRequest(
        "g",
        "m",
        0,
        0,
        rebalance_timeout_ms=1000,
        process_id="p",
        topology=wide_topology(kind),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )
    assert client.ask(88, request).error_code == E.STREAMS_INVALID_TOPOLOGY


def test_tasks_that_a_member_owns_are_bounded(client: Client) -> None:
    request = sh.StreamsGroupHeartbeatRequest("g", "m", 1, 0)
    request.active_tasks = [sh.TaskIds("0", list(range(50_001)))]
    request.standby_tasks = request.warmup_tasks = []
    assert client.ask(88, request).error_code == E.INVALID_REQUEST


def test_topics_beyond_what_there_is_are_refused_in_slices_where_none_can_be_deleted(client: Client) -> None:
    config: Any = client.node.services.config
    config.delete_topic_enable = False
    names = [f"n{each}" for each in range(PARTITIONS_NAMED_MAX + 1)]
    client.slow = True
    topics = [dt.DeleteTopicState(name=each) for each in names]
    results = client.ask(20, dt.DeleteTopicsRequest(topics=topics)).responses
    assert [result.name for result in results] == names
    assert 0 < client.runtime.reads_a_turn_max < 60


@pytest.mark.parametrize(("resources", "configs"), [(CONFIGS_MAX + 1, 0), (1, CONFIGS_MAX + 1)])
def test_no_more_configs_are_altered_than_kafkas_controller_alters_at_once(
    client: Client, resources: int, configs: int
) -> None:
    client.slow = True
    whole = [ac.AlterableConfig(f"c{each}", "v") for each in range(configs)]
    parts = [ia.AlterableConfig(f"c{each}", 0, "v") for each in range(configs)]
    names = [f"n{each}" for each in range(resources)]
    requests: dict[int, Any] = {
        33: ac.AlterConfigsRequest(resources=[ac.AlterConfigsResource(TOPIC, each, whole) for each in names]),
        44: ia.IncrementalAlterConfigsRequest(
            resources=[ia.AlterConfigsResource(TOPIC, each, parts) for each in names]
        ),
    }
    for key, request in requests.items():
        results = client.ask(key, request).responses
        assert [result.resource_name for result in results] == names
        assert {(each.error_code, each.error_message) for each in results} == {
            (E.POLICY_VIOLATION, TOO_MANY_CONFIGS)
        }
        assert client.runtime.reads_a_turn_max < 60


def test_no_more_features_are_updated_than_there_can_be(client: Client) -> None:
    updates = [uf.FeatureUpdateKey(f"f{each}") for each in range(1001)]
    assert client.ask(57, uf.UpdateFeaturesRequest(feature_updates=updates)).error_code == E.INVALID_REQUEST


def test_protocols_that_no_group_has_room_for_are_not_looked_at(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_at(*_args: object) -> None:
        raise AssertionError

    monkeypatch.setattr("barnabas.broker.groups.classic.new_member", looked_at)
    join = jg.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[jg.JoinGroupRequestProtocol(name="range", metadata=b"")] * 100_000,
    )
    assert client.ask(11, join).error_code == E.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        (
            ct.CreatableTopic(
                name="many",
                num_partitions=1,
                replication_factor=1,
                configs=[ct.CreatableTopicConfig(f"c{each}", "v") for each in range(CONFIGS_MAX + 1)],
            ),
            TOO_MANY_CONFIGS,
        ),
        (
            ct.CreatableTopic(
                name="many",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[ct.CreatableReplicaAssignment(each, [1]) for each in range(CONFIGS_MAX + 1)],
            ),
            TOO_MANY_PARTITIONS,
        ),
    ],
)
def test_a_topic_of_more_than_is_created_at_once_is_not_looked_at(
    client: Client, monkeypatch: pytest.MonkeyPatch, topic: ct.CreatableTopic, message: str
) -> None:
    monkeypatch.setattr("barnabas.broker.api.create_topics.create_topics", lambda *_args, **_named: 1 / 0)
    (result,) = client.ask(19, ct.CreateTopicsRequest(topics=[topic])).topics
    assert (result.error_code, result.error_message) == (E.POLICY_VIOLATION, message)
