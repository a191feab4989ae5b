"""The metrics of topics, partitions, requests, groups and the cluster, from a node without a listener."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.broker.cluster.broker_lifecycle import State
from barnabas.broker.fetch.sessions import EVICTION_MS, FetchSession
from barnabas.broker.metrics import requests
from barnabas.broker.metrics.controller import quorum_metrics
from barnabas.broker.metrics.health import (
    PENDING_CONTROLLED_SHUTDOWN,
    RECOVERY,
    RUNNING,
    STARTING,
    broker_health,
    broker_state,
)
from barnabas.broker.metrics.requests import WINDOW_S, RequestWindow
from barnabas.broker.metrics.tests.node_samples import samples
from barnabas.broker.tests.leader import Leader, batch
from barnabas.broker.tests.virtual_client import Client
from barnabas.controller.metadata.quorum_info import QuorumInfo, QuorumReplica
from barnabas.wire.headers import API_VERSIONS
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.metadata_records import PartitionChangeRecord
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

TOPICS = "kafka_server_brokertopicmetrics"
MANAGER = "kafka_server_replicamanager"
CONTROLLER = "kafka_controller_kafkacontroller"
REQUESTS = "kafka_network_requestmetrics"
OFFSET_COMMIT = 8


def test_topics_and_requests(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.create(replicas=[1])
    client = Client(leader)
    client.send(client.produce("a", "b", acks=1))
    client.send(client.fetch())
    client.send(client.fetch(offset=99))
    found = samples(leader)
    size = len(batch("a", "b"))
    for labels in ("", '{topic="t"}'):
        assert found[f"{TOPICS}_messagesin_total{labels}"] == 2
        assert found[f"{TOPICS}_bytesin_total{labels}"] == size
        assert found[f"{TOPICS}_bytesout_total{labels}"] == size
        assert found[f"{TOPICS}_totalproducerequests_total{labels}"] == 1
        assert found[f"{TOPICS}_totalfetchrequests_total{labels}"] == 2
    assert found[f"{TOPICS}_replicationbytesin_total"] == 0
    assert found[f'{REQUESTS}_requests_total{{request="Produce",version="12"}}'] == 1
    assert found[f'{REQUESTS}_requests_total{{request="FetchConsumer",version="17"}}'] == 2
    assert found[f'{REQUESTS}_requests_total{{request="Fetch",version="17"}}'] == 2
    assert found[f'{REQUESTS}_errors_total{{request="Fetch",error="OFFSET_OUT_OF_RANGE"}}'] == 1
    listener = '{listener="PLAINTEXT",networkprocessor="0"}'
    assert found[f"kafka_server_socket_server_metrics_connection_count{listener}"] == 1
    assert found["kafka_server_kafkaserver_brokerstate"] == RUNNING


def test_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(tmp_path)
    gone, *clients = [Client(leader) for _ in range(5)]
    for client, name in zip(clients, ("librdkafka", "librdkafka", "franz-go", "mine"), strict=True):
        client.send(client.frame(API_VERSIONS, ApiVersionsRequest(name, "1.0")))
    gone.disconnect()
    found = samples(leader)
    server = "kafka_server_socket_server_metrics"
    listener = '{listener="PLAINTEXT",networkprocessor="0"}'
    assert found[f"{server}_connection_creation_total{listener}"] == 5
    assert found[f"{server}_connection_close_total{listener}"] == 1
    assert found[f"{server}_connection_count{listener}"] == 4

    def of(name: str, version: str) -> str:
        labels = f'client_software_name="{name}",client_software_version="{version}"'
        return f"{server}_connections_software{{{labels},{listener[1:]}"

    assert found[of("librdkafka", "1.0")] == 2
    assert found[of("mine", "1.0")] == 1
    monkeypatch.setattr(requests, "SOFTWARE_MAX", 1)
    found = samples(leader)
    assert (found[of("librdkafka", "1.0")], found[of("other", "other")]) == (2, 2)
    assert of("mine", "1.0") not in found


def test_fetch_sessions_that_are_evicted_are_counted(tmp_path: Path) -> None:
    leader = Leader(tmp_path, max_incremental_fetch_session_cache_slots="1")
    leader.create(replicas=[1])
    sessions = leader.node.services.fetch_sessions
    for _ in range(2):
        assert sessions.make_room(privileged=False, size=1)
        sessions.add(FetchSession(uses_topic_ids=True, follower_id=-1, committed=False))
        leader.runtime.advance(EVICTION_MS / 1000 + 1)
    prefix = "kafka_server_fetchsessioncache"
    found = samples(leader)
    assert found[f"{prefix}_incrementalfetchsessionevictions_total"] == 1
    assert found[f"{prefix}_numincrementalfetchsessions"] == 1


def test_what_a_node_is_in_the_quorum(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    controller = leader.node.services.controller
    voters = [QuorumReplica(1, 7), QuorumReplica(2, 7)]

    def state(node_id: int, leader_id: int) -> str:
        families = quorum_metrics(node_id, controller, QuorumInfo(leader_id, 3, 7, voters))
        (labels,) = {
            labels for each in families if each.name.endswith("current_state") for labels, _ in each.samples
        }
        return labels

    assert state(1, 1) == '{current_state="leader"}'
    assert state(1, 2) == '{current_state="follower"}'
    assert state(1, -1) == '{current_state="unattached"}'
    assert state(3, 1) == '{current_state="observer"}'
    found = samples(leader)
    assert found['kafka_server_raftmetrics_current_state{current_state="leader"}'] == 1
    assert found["kafka_server_raftmetrics_current_vote"] == 1
    assert found["kafka_server_raftchannelmetrics_incoming_byte_total"] == 0


def times(window: RequestWindow, name: str, request: str) -> list[tuple[str, float]]:
    """(quantile, ms)."""
    return [
        (labels.partition('quantile="')[2].rstrip('"}'), value)
        for family in window.families()
        if family is not None and family.name == f"{REQUESTS}_{name}"
        for labels, value in family.samples
        if f'request="{request}"' in labels
    ]


def test_the_times_of_requests_are_those_of_the_last_minutes(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.create(replicas=[1])
    client = Client(leader)
    window = RequestWindow(leader.runtime, leader.node._dispatcher.metrics)
    client.send(client.fetch(max_wait_ms=500))
    leader.runtime.advance(1)
    ((_, median), *_) = times(window, "totaltimems", "FetchConsumer")
    assert 500 <= median <= 500 * 9 / 8
    assert times(window, "remotetimems", "FetchConsumer")[0][1] == median
    assert times(window, "localtimems", "FetchConsumer")[0][1] < 1
    assert [quantile for quantile, _ in times(window, "totaltimems", "Fetch")] == [
        *("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")
    ]
    client.send(client.produce("a", acks=1))
    assert times(window, "remotetimems", "Produce")[0][1] == 0
    leader.runtime.advance(2 * WINDOW_S + 1)
    assert times(window, "totaltimems", "FetchConsumer") == []
    assert times(window, "totaltimems_count", "FetchConsumer") == [("", 1)]
    client.send(client.fetch())
    assert times(window, "totaltimems", "FetchConsumer")[0][1] < 1
    window.stop()


def test_partitions(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.register(2)
    leader.create(replicas=[1, 2], partitions=2)
    found = samples(leader)
    labels = '{topic="t",partition="1"}'
    assert found[f"kafka_cluster_partition_underreplicated{labels}"] == 0
    assert found[f"kafka_cluster_partition_replicascount{labels}"] == 2
    assert found[f"kafka_topic_partition_leader{labels}"] == 1
    assert found[f"kafka_topic_partition_in_sync_replica{labels}"] == 2
    assert found[f"kafka_topic_partition_leader_is_preferred{labels}"] == 1
    assert found[f"{MANAGER}_atminisrpartitioncount"] == 0
    assert found['kafka_topic_partitions{topic="t"}'] == 2
    leader.change(1, isr=[1])
    found = samples(leader)
    assert found[f"kafka_cluster_partition_underreplicated{labels}"] == 1
    assert found[f"kafka_cluster_partition_atminisr{labels}"] == 1
    assert found[f"{MANAGER}_underreplicatedpartitions"] == 1
    assert found[f"{MANAGER}_atminisrpartitioncount"] == 1
    assert found["barnabas_metrics_partitions_left_out"] == 0


def test_an_isr_that_shrinks_and_grows_is_counted(tmp_path: Path) -> None:
    leader = Leader(tmp_path, replica_lag_time_max_ms="1000")
    leader.register(2)
    leader.create(replicas=[1, 2])
    follower = leader.follower(2)
    follower.fetch(0)
    leader.produce("a", acks=1)
    leader.runtime.advance(5)
    assert leader.state.isr == [1]
    found = samples(leader)
    assert (found[f"{MANAGER}_isrshrinks_total"], found[f"{MANAGER}_isrexpands_total"]) == (1, 0)
    follower.fetch(1)
    leader.runtime.advance(0.1)
    assert leader.state.isr == [1, 2]
    assert samples(leader)[f"{MANAGER}_isrexpands_total"] == 1


def test_many_partitions_show_the_first_and_count_all(tmp_path: Path) -> None:
    leader = Leader(tmp_path, barnabas_metrics_partitions_max="3")
    leader.create(replicas=[1], partitions=5)
    found = samples(leader)
    assert [name for name in found if name.startswith("kafka_log_log_size")] == [
        f'kafka_log_log_size{{topic="t",partition="{index}"}}' for index in range(3)
    ]
    assert found[f"{MANAGER}_partitioncount"] == 5
    assert found["barnabas_metrics_partitions_left_out"] == 2


def test_many_topics_show_the_first_and_count_all(tmp_path: Path) -> None:
    leader = Leader(tmp_path, barnabas_metrics_partitions_max="1")
    for number in range(3):
        leader.create(replicas=[1], name=f"t{number}", topic_id=bytes([number + 1]) * 16)
    found = samples(leader)
    assert [
        name for name in found if name.startswith("kafka_server_brokertopicmetrics_messagesin_total{")
    ] == ['kafka_server_brokertopicmetrics_messagesin_total{topic="t0"}']
    assert found["kafka_server_brokertopicmetrics_messagesin_total"] == 0
    assert found["barnabas_metrics_topics_left_out"] == 2


def test_the_cluster(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.register(2)
    leader.create(replicas=[2, 1], leader=1, partitions=2)
    leader.change(1, isr=[], leader=-1)
    found = samples(leader)
    assert found[f"{CONTROLLER}_globaltopiccount"] == 1
    assert found[f"{CONTROLLER}_globalpartitioncount"] == 2
    assert found[f"{CONTROLLER}_offlinepartitionscount"] == 1
    assert found[f"{CONTROLLER}_preferredreplicaimbalancecount"] == 1
    assert found[f"{CONTROLLER}_activebrokercount"] == 2
    assert found["kafka_brokers"] == 2
    assert found['kafka_broker_info{id="2",address="h2:9002"}'] == 1
    name = "kafka_controller_controllerstats_uncleanleaderelections_total"
    assert found[name] == 0
    leader.commit(PartitionChangeRecord(topic_id=b"topic".ljust(16), partition_id=1, isr=[2], leader=2))
    assert samples(leader)[name] == 1


def test_the_lag_of_a_group(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.create(replicas=[1], partitions=2)
    leader.create(replicas=[1], name="__consumer_offsets", topic_id=b"offsets".ljust(16), partitions=1)
    leader.produce("a", acks=1)
    leader.produce("b", acks=1)
    leader.ask(
        OFFSET_COMMIT,
        8,
        OffsetCommitRequest(
            group_id="g",
            topics=[
                OffsetCommitRequestTopic(
                    "t",
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=0, committed_offset=0),
                        OffsetCommitRequestPartition(partition_index=1, committed_offset=0),
                    ],
                )
            ],
        ),
    )
    found = samples(leader)
    of_partition = '{consumergroup="g",topic="t",partition="0"}'
    assert found[f"kafka_consumergroup_current_offset{of_partition}"] == 0
    assert found[f"kafka_consumergroup_lag{of_partition}"] == 2
    assert found['kafka_consumergroup_lag_sum{consumergroup="g",topic="t"}'] == 2
    assert found['kafka_consumergroup_members{consumergroup="g"}'] == 0
    groups = "kafka_coordinator_group_groupmetadatamanager_numgroups"
    assert (found[groups], found[f"{groups}empty"], found[f"{groups}stable"]) == (1, 1, 0)
    assert found['kafka_server_group_coordinator_metrics_group_count{protocol="classic"}'] == 1


def test_health_and_state_in_a_cluster() -> None:
    assert broker_health(None).is_ready
    assert broker_health(State.SERVING).is_ready
    for state in State:
        health = broker_health(state)
        assert health.is_ready == (state is State.SERVING)
        assert health.has_started == (state not in (State.REGISTERING, State.CATCHING_UP))
    assert broker_state(State.CATCHING_UP, was_ready=False) == STARTING
    assert broker_state(State.FENCED, was_ready=False) == RECOVERY
    assert broker_state(State.FENCED, was_ready=True) == RUNNING
    assert broker_state(State.LEAVING, was_ready=True) == PENDING_CONTROLLED_SHUTDOWN
