"""The balancer (barnabas.balancer) in clusters of processes, under load: leaders and replicas move, and no client sees an error."""

from __future__ import annotations

from collections import Counter
from functools import partial

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaConnectionError, NodeNotReadyError, UnknownBrokerIdError

from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_work import QUIET, create_topic
from compat_tests.harness.confluent_admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from compat_tests.harness.eventually import eventually, stays
from compat_tests.harness.fixture_types import ClusterFactory
from compat_tests.harness.loads import Acknowledge, Bootstrapped, Librdkafka, Load
from compat_tests.harness.metrics import LISTENER, page

pytestmark = pytest.mark.barnabas_only

PARTITIONS = 12
VALUE = b"v" * 5_000  # 500 a second are 2.5 MB/s
SETTINGS = {
    "barnabas.balancer": "on",
    "barnabas.balancer.interval.ms": "1000",
    "barnabas.balancer.report.interval.ms": "1000",
    "barnabas.balancer.rest.ms": "5000",
    "min.insync.replicas": "2",
    LISTENER: "127.0.0.1:0",
}
RATE_MIN, RATE_MAX = "1", "1000000000"  # bytes per second of replication


class _Wide(Librdkafka):
    """Large records into all partitions."""

    def send(self, number: int) -> None:
        self._producer.produce(
            self._topic,
            VALUE,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: self._answered(number, error),
        )
        self._producer.poll(0)


def wide(broker: Bootstrapped, topic: str, answered: Acknowledge) -> Librdkafka:
    settings = {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "acks": "all", **QUIET}
    return _Wide(confluent_kafka.Producer(settings), topic, answered)


def leaders(cluster: Cluster, topic: str) -> Counter[int]:
    states = cluster.metadata().partitions.items()
    return Counter(state.leader for (name, _), state in states if name == topic)


def replicas(cluster: Cluster, topic: str) -> Counter[int]:
    states = cluster.metadata().partitions.items()
    return Counter(each for (name, _), state in states if name == topic for each in state.replicas)


def balance(cluster: Cluster) -> str:
    """What the active controller's balancer shows in metrics."""
    text = page(cluster.nodes[cluster.active_controller()])
    return "\n".join(line for line in text.splitlines() if line.startswith("barnabas_balancer"))


def alter(cluster: Cluster, config: str, value: str, *nodes: int) -> None:
    """A dynamic config of these brokers."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    for node in nodes:
        entry = ConfigEntry(config, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, str(node), incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)


def add_throttled(cluster: Cluster, rate: str) -> None:
    """Switch the balancer off, and add broker 4, which gets next to nothing replicated by this config."""
    alter(cluster, "barnabas.balancer", "off", 1, 2, 3)
    cluster.add(4, "broker")
    cluster.start(4)
    alter(cluster, rate, RATE_MIN, 4)


def check_written(cluster: Cluster, load: Load) -> None:
    """All was acknowledged, and is in the log once: nothing failed, and there are no duplicates."""
    load.finish()
    assert load.failed == []
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "unused", **QUIET}
    )
    written = 0
    for index in range(PARTITIONS):
        ends = partial(consumer.get_watermark_offsets, confluent_kafka.TopicPartition(load.topic, index), 30)
        written += eventually(ends, retry_on=(confluent_kafka.KafkaException,))[1]  # leaders may still move
    consumer.close()
    assert len(load.acknowledged) == load.sent == written


def test_the_load_of_a_hot_broker_spreads_also_to_a_new_one(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(settings=SETTINGS)
    create_topic(cluster, "hot", assignment=[[1, 2, 3]] * PARTITIONS)
    load = Load(cluster, "hot", wide)
    cluster.on_close.append(load.abandon)
    eventually(
        lambda: max(leaders(cluster, "hot").values()) <= 5 and len(leaders(cluster, "hot")) == 3,
        message=lambda: (leaders(cluster, "hot"), balance(cluster)),
    )
    assert load.failed == []
    cluster.add(4, "broker")
    cluster.start(4)
    eventually(
        lambda: replicas(cluster, "hot")[4] >= 8 and leaders(cluster, "hot")[4] >= 2,
        120,
        message=lambda: (replicas(cluster, "hot"), leaders(cluster, "hot"), balance(cluster)),
    )
    cluster.wait_until_whole()
    check_written(cluster, load)


def test_a_users_reassignments_win(fresh_cluster: ClusterFactory) -> None:
    """Five that do not end, by a throttle: the balancer touches none of them and begins none. When they have ended it goes on."""
    # A throttle lets one fetch pass: it has to be less than there is.
    cluster = fresh_cluster(settings={**SETTINGS, "replica.fetch.max.bytes": "50000"})
    create_topic(
        cluster,
        "mine",
        assignment=[[1 + each % 3, 1 + (each + 1) % 3] for each in range(PARTITIONS)],
    )
    load = Load(cluster, "mine", wide)
    cluster.on_close.append(load.abandon)
    eventually(lambda: len(load.acknowledged) > 1000)
    rate = "barnabas.reassignment.throttled.rate"
    add_throttled(cluster, rate)
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    wanted = {
        TopicPartition("mine", index): [1 + index % 3, 4] for index in range(5)
    }  # the leader stays, and the other replica goes to 4
    admin.alter_partition_reassignments(wanted)
    alter(cluster, "barnabas.balancer", "on", 1, 2, 3)

    def only_mine() -> bool:
        listed = admin.list_partition_reassignments()
        return set(listed) == set(wanted) and all(each["adding_replicas"] == [4] for each in listed.values())

    stays(only_mine, 8)
    assert 'planned_moves{kind="replica"} 0' not in balance(cluster), "it would move, and waits"
    alter(cluster, rate, RATE_MAX, 4)
    eventually(
        lambda: admin.list_partition_reassignments() == {} and replicas(cluster, "mine")[4] >= 5,
        120,
        message=lambda: (admin.list_partition_reassignments(), balance(cluster)),
    )
    admin.close()
    check_written(cluster, load)


@pytest.mark.long
def test_a_broker_that_dies_in_a_move_to_it(fresh_cluster: ClusterFactory) -> None:
    """What moves there is cancelled, and clients go on; when it is back and was away for long enough, it gets its share."""
    cluster = fresh_cluster(settings={**SETTINGS, "replica.fetch.max.bytes": "50000"})
    create_topic(
        cluster,
        "hot",
        assignment=[[1, 2, 3]] * PARTITIONS,
        configs={"follower.replication.throttled.replicas": "*"},
    )
    load = Load(cluster, "hot", wide)
    cluster.on_close.append(load.abandon)
    eventually(lambda: len(load.acknowledged) > 1000)
    add_throttled(cluster, "follower.replication.throttled.rate")
    alter(cluster, "barnabas.balancer", "on", 1, 2, 3)

    def moves() -> list[int] | None:
        """The brokers that get replicas now; None where a broker that has died was asked. The client keeps asking the same one."""
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        try:
            listed = admin.list_partition_reassignments().values()
        except (KafkaConnectionError, NodeNotReadyError, UnknownBrokerIdError):
            return None
        finally:
            admin.close()
        return [broker for each in listed for broker in each["adding_replicas"]]

    eventually(lambda: 4 in (moves() or ()), 120, message=lambda: balance(cluster))
    cluster.kill(4)
    eventually(lambda: moves() == [], message=lambda: (moves(), balance(cluster)))
    assert replicas(cluster, "hot")[4] == 0
    cluster.start(4)
    alter(cluster, "follower.replication.throttled.rate", RATE_MAX, 4)
    eventually(
        lambda: replicas(cluster, "hot")[4] >= 3 and moves() == [],
        120,
        message=lambda: (replicas(cluster, "hot"), moves(), balance(cluster)),
    )
    check_written(cluster, load)


@pytest.mark.long
def test_replicas_of_a_broker_that_is_gone(fresh_cluster: ClusterFactory) -> None:
    """They are replaced on another broker; when the dead one is back it gets its share, and clients see nothing of it."""
    cluster = fresh_cluster(settings={**SETTINGS, "barnabas.balancer.gone.ms": "8000"})
    cluster.add(4, "broker")
    cluster.start(4)
    create_topic(cluster, "hot", assignment=[[1 + each % 2, 4, 2 - each % 2] for each in range(PARTITIONS)])
    load = Load(cluster, "hot", wide)
    cluster.on_close.append(load.abandon)
    eventually(lambda: len(load.acknowledged) > 1000)
    cluster.kill(4)

    def is_whole() -> bool:
        states = cluster.metadata().partitions.items()
        return all(len(state.isr) == 3 for (name, _), state in states if name == "hot")

    eventually(
        lambda: replicas(cluster, "hot")[4] == 0 and is_whole(),
        120,
        message=lambda: (replicas(cluster, "hot"), balance(cluster)),
    )
    cluster.start(4)
    eventually(
        lambda: replicas(cluster, "hot")[4] >= 3 and is_whole(),
        120,
        message=lambda: (replicas(cluster, "hot"), balance(cluster)),
    )
    check_written(cluster, load)
