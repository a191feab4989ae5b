"""Migration from Apache Kafka to this broker and back on the same directories, and the other way round: clients see the
same topics, ids, configs, records and committed offsets on both."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.uuids import uuid_to_string
from compat_tests.conform.cases.share_state import (
    delete_request,
    initialize_request,
    read_request,
    summary_request,
    write_request,
)
from compat_tests.conform.client import Connection
from compat_tests.conform.session import Topic
from compat_tests.harness.apache_broker import ApacheBroker
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.broker import Broker, BrokerFailed
from compat_tests.harness.clients import CODECS, PLAIN, Sample
from compat_tests.harness.committed import committed
from compat_tests.harness.confluent_admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from compat_tests.harness.contents import look
from compat_tests.harness.eventually import eventually
from compat_tests.harness.java_shares import ACCEPT, RELEASE, ShareClients, await_no_lag
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.topics import create_topic
from compat_tests.harness.transactional_clients import READ_COMMITTED, ConfluentProducer, read_with_confluent

pytestmark = pytest.mark.barnabas_only

TOPICS = {
    "plain": (3, {"retention.ms": "-1", "max.message.bytes": "2000000"}),
    "compacted": (1, {"cleanup.policy": "compact"}),
    "empty": (2, {}),
}
GROUP = "readers"
METADATA_LOG = "__cluster_metadata-0"


@pytest.fixture
def travel(tmp_path: Path, java_tools: JavaTools) -> Iterator[Callable[..., Broker]]:
    """`travel(kind, settings)` stops the broker before and starts the next one on a copy of its directories."""
    stops: list[Broker] = []

    def go(kind: str, settings: Mapping[str, str] | None = None, release_version: str = "") -> Broker:
        base = tmp_path / str(len(stops))
        base.mkdir()
        if stops:
            if stops[-1].alive():
                stops[-1].stop()
            shutil.copytree(tmp_path / str(len(stops) - 1) / "data", base / "data")
        own = {name: value.replace("BASE", str(base / "data")) for name, value in (settings or {}).items()}
        broker: Broker = BarnabasBroker(base, own)
        if kind == "apache":
            broker = ApacheBroker(base, own, tools=java_tools)
            broker.release_version = release_version
        stops.append(broker)
        broker.start()
        return broker

    yield go
    for broker in stops:
        if broker.alive():
            broker.kill()


def create_topics(broker: Broker) -> None:
    for name, (partitions, configs) in TOPICS.items():
        create_topic(broker.bootstrap, name, partitions, configs)


def produce(broker: Broker, mark: str) -> None:
    """Records in every codec, idempotent, over all partitions; with repeated keys, and some with headers."""
    for codec in CODECS:
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "compression.type": codec,
                "enable.idempotence": codec == "none",
            }
        )
        for index in range(12):
            producer.produce(
                "plain", f"{mark} {codec} {index}" * 20, partition=index % 3, headers={"n": codec}
            )
            producer.produce("compacted", f"{mark} {index}", key=f"key {index}")
        assert producer.flush(30) == 0


def read_on(broker: Broker, count: int, protocol: str = "classic", group: str = GROUP) -> list[str]:
    """The next `count` values of `plain`, read and committed by the group; asserts that no more exist."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["plain"])
    values: list[str] = []
    while len(values) < count:
        message = consumer.poll(30)
        assert message is not None, f"{len(values)} of {count}"
        assert message.error() is None, message.error()
        values.append((message.value() or b"").decode().split(" ")[0])
    assert consumer.poll(0.3) is None
    consumer.commit(asynchronous=False)
    consumer.close()
    return values


def set_config(broker: Broker, kind: ResourceType, name: str, key: str, value: str) -> None:
    resource = ConfigResource(kind, name)
    resource.add_incremental_config(ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def in_transactions(broker: Broker) -> None:
    """One transaction that commits and one that aborts, each with records and with a group's offset."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "teller"})
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "sent-in-transactions"})
    producer.init_transactions(20)
    for value, offset, end in (
        ("committed", 5, producer.commit_transaction),
        ("aborted", 9, producer.abort_transaction),
    ):
        producer.begin_transaction()
        for partition in range(2):
            producer.produce("empty", value, partition=partition)
        assert producer.flush(30) == 0
        position = TopicPartition("plain", 0, offset)
        producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), 20)
        end(20)
    consumer.close()


def leave_transactions(broker: Broker) -> None:
    """One transaction that is committed and two that are open, of which one is soon too late; each with a group's offset."""
    create_topic(broker.bootstrap, "open", 1)
    for transactional_id, timeout_ms in (("committed", 60_000), ("late", 5_000), ("fenced", 60_000)):
        producer = ConfluentProducer(broker.bootstrap, transactional_id, timeout_ms=timeout_ms)
        producer.initialize()
        producer.begin()
        producer.send("open", [(0, transactional_id)])
        producer.send_offset(transactional_id, "open", 0, 1)
        if transactional_id == "committed":
            producer.commit()
        else:
            producer.close()


def check_that_open_transactions_end(broker: Broker) -> None:
    """On the broker that the directories have come to: one by its timeout, one by a successor of its producer."""
    successor = ConfluentProducer(broker.bootstrap, "fenced")
    successor.initialize()
    successor.begin()
    successor.send("open", [(0, "successor")])
    successor.commit()
    expected = [(0, "committed"), (0, "successor")]
    eventually(lambda: read_with_confluent(broker.bootstrap, "open", 1, READ_COMMITTED) == expected)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    offsets = {
        group: [each.offset for each in committed(admin, group) if each.offset >= 0]
        for group in ("committed", "late", "fenced")
    }
    assert offsets == {"committed": [1], "late": [], "fenced": []}


def secure(broker: Broker) -> None:
    """Create an ACL and SCRAM credentials."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_acls([ACL]).values():
        future.result(30)
    credential = UserScramCredentialUpsertion(
        "olga", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"pw"
    )
    for future in admin.alter_user_scram_credentials([credential]).values():
        future.result(30)


def scram_users(broker: Broker) -> list[str]:
    """Who has SCRAM credentials."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    users: Any = admin.describe_user_scram_credentials()
    return list(users.result(30))


ACL = AclBinding(
    ResourceType.TOPIC,
    "plain",
    ResourcePatternType.LITERAL,
    "User:olga",
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)
EVERY_ACL = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
# one directory for the metadata, two for the partitions
APART = {"metadata.log.dir": "BASE/metadata", "log.dirs": "BASE/one,BASE/two"}
TIMED_OUT_SOON = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


def test_from_kafka_and_back(travel: Callable[..., Broker]) -> None:
    kafka = travel("apache", {**APART, **AUTHORIZER})
    create_topics(kafka)
    produce(kafka, "k1")
    in_transactions(kafka)
    set_config(kafka, ResourceType.BROKER, "1", "log.cleaner.threads", "2")
    secure(kafka)
    assert set(read_on(kafka, 60)) == {"k1"}
    assert set(read_on(kafka, 60, "consumer", "new-protocol")) == {"k1"}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.delete_records([TopicPartition("plain", 2, 7)]).values():
        future.result(30)
    groups = (GROUP, "new-protocol", "sent-in-transactions")
    before = look(kafka.bootstrap, TOPICS, groups)
    intruder = BarnabasBroker(kafka.directory / "intruder", {"log.dirs": kafka.settings["log.dirs"]})
    with pytest.raises(BrokerFailed, match="in use by another process"):
        intruder.start()
    assert before.records["plain", 2][0][0] == 7
    assert before.offsets["sent-in-transactions", "plain", 0] == 5
    assert {value for _, _, _, value, _ in before.records["empty", 0]} == {b"committed"}
    leave_transactions(kafka)

    ours = travel("barnabas", {**APART, **TIMED_OUT_SOON})
    assert look(ours.bootstrap, TOPICS, groups) == before
    check_that_open_transactions_end(ours)
    assert scram_users(ours) == ["olga"]
    produce(ours, "b1")
    assert set(read_on(ours, 60)) == {"b1"}
    assert set(read_on(ours, 60, "consumer", "new-protocol")) == {"b1"}
    set_config(ours, ResourceType.TOPIC, "plain", "retention.ms", "3600000000000")
    create_topic(ours.bootstrap, "made-here", 2)
    between = look(ours.bootstrap, [*TOPICS, "made-here"], groups)

    back = travel("apache", {**APART, **AUTHORIZER})
    assert look(back.bootstrap, [*TOPICS, "made-here"], groups) == between
    produce(back, "k2")
    assert set(read_on(back, 60)) == {"k2"}
    assert set(read_on(back, 60, "consumer", "new-protocol")) == {"k2"}
    admin = AdminClient({"bootstrap.servers": back.bootstrap})
    assert admin.describe_acls(EVERY_ACL).result(30) == [ACL]
    assert scram_users(back) == ["olga"]
    assert not list(Path(back.directory).rglob("*-stray"))


def test_kafka_does_not_start_after_a_crash_of_this_broker(travel: Callable[..., Broker]) -> None:
    ours = travel("barnabas")
    create_topic(ours.bootstrap, "early")
    ours.restart()  # writes a checkpoint with one topic
    create_topic(ours.bootstrap, "late")
    ours.kill()
    with pytest.raises(BrokerFailed, match="Let it start here and stop cleanly"):
        travel("apache")


def test_to_kafka_and_back(travel: Callable[..., Broker], java_tools: JavaTools) -> None:
    ours = travel("barnabas")
    create_topics(ours)
    produce(ours, "b1")
    cluster_wide = ("--entity-type", "brokers", "--entity-default", "--add-config", "log.cleaner.threads=2")
    java_tools.run("kafka-configs", "--bootstrap-server", ours.bootstrap, "--alter", *cluster_wide)
    assert set(read_on(ours, 60)) == {"b1"}
    assert set(read_on(ours, 60, "consumer", "new-protocol")) == {"b1"}
    before = look(ours.bootstrap, TOPICS, [GROUP])
    assert before.configs["BROKER", "1"] == {"log.cleaner.threads": "2", "min.insync.replicas": "1"}
    leave_transactions(ours)
    ours.stop()
    dumped = dump(ours.log_dir / METADATA_LOG, java_tools)
    assert "KRaftVoters" in dumped
    assert '"name":"metadata.version","featureLevel":30' in dumped
    assert all(f'"name":"{name}"' in dumped for name in before.topic_ids)

    kafka = travel("apache", TIMED_OUT_SOON)
    assert look(kafka.bootstrap, TOPICS, [GROUP]) == before
    check_that_open_transactions_end(kafka)
    produce(kafka, "k1")
    assert set(read_on(kafka, 60)) == {"k1"}
    assert set(read_on(kafka, 60, "consumer", "new-protocol")) == {"k1"}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics(["empty"])["empty"].result(30)
    topics = [name for name in TOPICS if name != "empty"]
    between = look(kafka.bootstrap, topics, [GROUP])
    assert not list(kafka.log_dir.glob("*-stray"))

    home = travel("barnabas")
    assert look(home.bootstrap, topics, [GROUP]) == between
    admin = AdminClient({"bootstrap.servers": home.bootstrap})
    assert "empty" not in admin.list_topics(timeout=30).topics
    produce(home, "b2")
    assert set(read_on(home, 60)) == {"b2"}
    assert set(read_on(home, 60, "consumer", "new-protocol")) == {"b2"}


def dump(directory: Path, tools: JavaTools) -> str:
    """Output of Kafka's own tool for the only checkpoint in the directory."""
    [checkpoint] = directory.glob("*.checkpoint")
    dumped = tools.run(
        "kafka-dump-log", "--cluster-metadata-decoder", "--deep-iteration", "--files", str(checkpoint)
    ).stdout
    assert "isvalid: false" not in dumped
    assert "SnapshotFooter" in dumped
    return dumped


def test_an_old_metadata_version_is_kept(travel: Callable[..., Broker], java_tools: JavaTools) -> None:
    """Metadata version 3.3 has neither ids of log directories nor voters in the log; Kafka does not start with metadata
    records that are newer than its metadata version."""
    static = {"controller.quorum.voters": "1@127.0.0.1:9093"}
    kafka = travel("apache", static, release_version="3.3-IV3")
    create_topic(kafka.bootstrap, "theirs")
    ours = travel("barnabas")
    create_topic(ours.bootstrap, "ours", 2)
    known = look(ours.bootstrap, ["theirs", "ours"], [])
    ours.stop()
    dumped = dump(ours.log_dir / METADATA_LOG, java_tools)
    assert "KRaftVoters" not in dumped
    assert '"name":"metadata.version","featureLevel":7' in dumped
    back = travel("apache", static)
    assert look(back.bootstrap, ["theirs", "ours"], []) == known


def test_kafka_can_use_the_directory_after_a_failed_start(travel: Callable[..., Broker]) -> None:
    ours = travel("barnabas")
    create_topic(ours.bootstrap, "topic")
    ours.stop()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ours.settings["listeners"] = f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BrokerFailed, match="port is in use"):
            ours.start()
    assert not (ours.log_dir / METADATA_LOG / "quorum-state").exists()
    [checkpoint] = (ours.log_dir / METADATA_LOG).glob("*.checkpoint")
    assert b"topic" in checkpoint.read_bytes()


class ShareStates:
    """The share coordinator's APIs of a broker, for the partitions of one topic; the group's states live in one partition."""

    def __init__(self, broker: Broker, topic_id: bytes) -> None:
        self._connection = Connection(broker.host, broker.port)
        self._topic = Topic("shared", topic_id)
        coordinated = FindCoordinatorRequest(
            key_type=2, coordinator_keys=[f"shares:{uuid_to_string(topic_id)}:0"]
        )

        def is_found() -> bool:
            return not any(each.error_code for each in self._connection.ask(coordinated, 6).coordinators)

        eventually(is_found, 60)

    def ask(self, request: Any, version: int) -> Any:
        """The result of the one partition, once the coordinator has loaded it."""
        results: list[Any] = []

        def is_done() -> bool:
            (topic,) = self._connection.ask(request, version).results
            results[:] = topic.partitions
            return results[0].error_code not in (14, 15, 16)

        eventually(is_done, 60)
        assert results[0].error_code == 0, results
        return results[0]

    def initialize(self, partition: int, state_epoch: int, start: int) -> None:
        self.ask(
            initialize_request("shares", self._topic, start, partition=partition, state_epoch=state_epoch), 0
        )

    def write(self, partition: int, *batches: tuple[int, int, int, int], start: int, complete: int) -> None:
        self.ask(
            write_request(
                "shares", self._topic, *batches, start=start, complete=complete, partition=partition
            ),
            1,
        )

    def delete(self, partition: int) -> None:
        self.ask(delete_request("shares", self._topic, partition), 0)

    def read(self, partition: int) -> tuple[int, int, list[tuple[int, int, int, int]]]:
        """State epoch, start offset, batches."""
        found = self.ask(read_request("shares", self._topic, partition=partition), 0)
        return (
            found.state_epoch,
            found.start_offset,
            [
                (each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
                for each in found.state_batches
            ],
        )

    def summary(self, partition: int) -> tuple[int, int]:
        """Start offset, how many deliveries behind it are complete."""
        found = self.ask(summary_request("shares", self._topic, partition), 1)
        return found.start_offset, found.delivery_complete_count


@pytest.mark.parametrize("first", ["apache", "barnabas"])
def test_states_of_share_groups_cross_both_ways(
    travel: Callable[..., Broker], java_tools: JavaTools, first: str
) -> None:
    second = "barnabas" if first == "apache" else "apache"
    settings = {
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.snapshot.update.records.per.snapshot": "3",
    }
    broker = travel(first, settings)
    create_topic(broker.bootstrap, "shared", 3)
    connection = Connection(broker.host, broker.port)
    wanted = MetadataRequest(topics=[MetadataRequestTopic(name="shared")])
    topic_id = bytes(connection.ask(wanted, 12).topics[0].topic_id)
    states = ShareStates(broker, topic_id)
    for partition in range(3):
        states.initialize(partition, 2, 5)
    for number in range(6):  # more than belong to a snapshot
        states.write(0, (5 + 2 * number, 5 + 2 * number, 2, 1), start=5, complete=number + 1)
    states.delete(1)
    expected = (2, 5, [(offset, offset, 2, 1) for offset in range(5, 16, 2)])
    assert states.read(0) == expected
    broker = travel(second, settings)
    states = ShareStates(broker, topic_id)
    assert states.read(0) == expected
    assert states.summary(0) == (5, 6)
    assert states.summary(1) == (-1, -1)
    states.write(0, (7, 10, 4, 2), start=7, complete=4)
    states.initialize(1, 1, 3)
    broker = travel(first, settings)
    states = ShareStates(broker, topic_id)
    assert states.read(0) == (2, 7, [(7, 10, 4, 2), (11, 11, 2, 1), (13, 13, 2, 1), (15, 15, 2, 1)])
    assert states.read(1) == (1, 3, [])
    assert states.read(2) == (2, 5, [])
    broker.stop()
    (segment,) = broker.log_dir.glob("__share_group_state-0/*.log")
    dumped = java_tools.run(
        "kafka-dump-log", "--share-group-state-decoder", "--deep-iteration", "--files", str(segment)
    ).stdout
    assert "isvalid: false" not in dumped
    assert dumped.count("payload: ") == 12


@pytest.mark.parametrize("first", ["barnabas", pytest.param("apache", marks=pytest.mark.long)])
def test_share_groups_with_their_members_cross_both_ways(
    travel: Callable[..., Broker], java_tools: JavaTools, first: str
) -> None:
    """The member does not leave: the next broker knows it until its session expires."""
    settings = {
        "group.share.min.heartbeat.interval.ms": "100",
        "group.share.heartbeat.interval.ms": "200",
        "group.share.assignment.interval.ms": "0",
        "share.coordinator.state.topic.num.partitions": "1",
        "offsets.topic.num.partitions": "1",
    }

    def members() -> list[list[str]]:
        """Of each its id, how many partitions, its epoch, its assignment."""
        server = ("--bootstrap-server", broker.bootstrap)
        wanted = ("--describe", "--group", "shares", "--members", "--verbose")
        rows = [
            line.split()
            for line in java_tools.run("kafka-share-groups", *server, *wanted).stdout.splitlines()
        ]
        return sorted([row[1], *row[4:]] for row in rows if row[:1] == ["shares"])

    clients = ShareClients()
    try:
        broker = travel(first, settings)
        create_topic(broker.bootstrap, "shared")
        clients.configure(broker.bootstrap, "shares", {"share.auto.offset.reset": "earliest"})
        PLAIN.produce(broker.bootstrap, "shared", [Sample(None, b"v%d" % each) for each in range(6)])
        member = clients.member(broker.bootstrap, "shares", "shared")
        assert len(member.poll(60)) == 6
        member.acknowledge(ACCEPT, 0, 1)
        member.acknowledge(RELEASE, 2, 3, 4, 5)
        assert member.commit() == {0: "ok"}
        (known,) = members()
        assert (known[1], known[3]) == ("1", "shared:0")

        broker = travel("barnabas" if first == "apache" else "apache", settings)
        eventually(lambda: members() == [known])
        assert clients.offsets(broker.bootstrap, "shares")["shared", 0].lag == 4
        other = clients.member(broker.bootstrap, "shares", "shared")
        assert [(each.offset, each.delivery) for each in other.poll(60)] == [
            (each, 2) for each in (2, 3, 4, 5)
        ]
        other.acknowledge(RELEASE, 2, 3)
        other.acknowledge(ACCEPT, 4, 5)
        assert other.commit() == {0: "ok"}
        eventually(lambda: len(members()) == 2)
        both = members()
        assert known[0] in (each[0] for each in both)

        broker = travel(first, settings)
        eventually(lambda: members() == both)
        last = clients.member(broker.bootstrap, "shares", "shared")
        assert [(each.offset, each.delivery) for each in last.poll(60)] == [(2, 3), (3, 3)]
        last.acknowledge(ACCEPT, 2, 3)
        assert last.commit() == {0: "ok"}
        await_no_lag(clients, broker.bootstrap, "shares")
    finally:
        clients.close()
    broker.stop()
    (segment,) = broker.log_dir.glob("__consumer_offsets-0/*.log")
    decoded = ("--offsets-decoder", "--deep-iteration", "--files", str(segment))
    dumped = java_tools.run("kafka-dump-log", *decoded).stdout
    assert "isvalid: false" not in dumped
    assert all(f'"type":"{kind}"' in dumped for kind in range(10, 16))
