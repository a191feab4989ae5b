"""Groups that consume, transform and produce: outputs and offsets of a transaction count together, over aborts and rebalances."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import CLIENTS, Sample
from compat_tests.harness.committed import committed
from compat_tests.harness.eventually import eventually, stays
from compat_tests.harness.fixture_types import TopicFactory, UniqueName
from compat_tests.harness.members import await_balance
from compat_tests.harness.transactional_clients import (
    CALL_S,
    PRODUCERS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    READERS,
    Value,
    read_with_confluent,
)
from compat_tests.harness.transformers import (
    TRANSFORMERS,
    ConfluentTransformer,
    KafkaPythonTransformer,
    Transformer,
)

PARTITIONS = 4
COUNT = 40  # records of each partition

by_library = pytest.mark.parametrize("library", TRANSFORMERS, ids=lambda one: one.library)


def _fill(broker: Broker, source: str, text: str) -> list[Value]:
    sent = []
    for partition in range(PARTITIONS):
        values = [f"{text}-{partition}-{number}" for number in range(COUNT)]
        samples = [Sample(None, value.encode()) for value in values]
        CLIENTS[2].produce(broker.bootstrap, source, samples, partition=partition)
        sent += [(partition, value) for value in values]
    return sent


class Pipeline:
    """Two topics and a group of transformers between them."""

    def __init__(self, broker: Broker, topic: TopicFactory, unique: UniqueName) -> None:
        self.broker = broker
        self.unique = unique
        self.source, self.target = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
        self.group = unique("group")
        self.sent: list[Value] = []
        self.members: list[Transformer] = []
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def fill(self, text: str) -> None:
        self.sent += _fill(self.broker, self.source, text)

    def start(self, library: type[Transformer]) -> Transformer:
        name = self.unique("transformer")
        self.members.append(library(self.broker.bootstrap, self.group, self.source, self.target, name))
        return self.members[-1]

    def await_read(self, count: int) -> None:
        """Wait until that many records are committed in the target."""

        def check() -> bool:
            for member in self.members:
                if member.failure is not None:
                    raise member.failure
            return len(self.read()) >= count

        eventually(check)

    def read(self, isolation_level: str = READ_COMMITTED) -> list[Value]:
        return read_with_confluent(self.broker.bootstrap, self.target, PARTITIONS, isolation_level)

    def check(self) -> None:
        """Every record is copied once, in order; the offsets are those of the ends."""
        self.await_read(len(self.sent))
        for read in READERS:
            found = read(self.broker.bootstrap, self.target, PARTITIONS, READ_COMMITTED)
            for partition in range(PARTITIONS):
                mine = [value for where, value in found if where == partition]
                assert mine == [value for where, value in self.sent if where == partition]
        ends = {partition: len(self.sent) // PARTITIONS for partition in range(PARTITIONS)}
        eventually(lambda: self.offsets() == ends)

    def offsets(self) -> dict[int, int]:
        return {each.partition: each.offset for each in committed(self._admin, self.group)}


@pytest.fixture
def pipeline(broker: Broker, topic: TopicFactory, unique: UniqueName) -> Iterator[Pipeline]:
    made = Pipeline(broker, topic, unique)
    yield made
    for member in made.members:
        member.abandon()


@by_library
def test_every_record_is_copied_once(pipeline: Pipeline, library: type[Transformer]) -> None:
    pipeline.fill("first")
    member = pipeline.start(library)
    pipeline.check()
    pipeline.fill("second")
    pipeline.check()
    member.leave()
    assert member.aborted
    assert len(pipeline.read(READ_UNCOMMITTED)) > len(pipeline.sent)


@by_library
def test_every_record_is_copied_once_while_members_come_and_go(
    pipeline: Pipeline, library: type[Transformer]
) -> None:
    pipeline.fill("first")
    first = pipeline.start(library)
    pipeline.await_read(10)
    second = pipeline.start(library)
    await_balance([first, second], PARTITIONS)
    pipeline.fill("second")
    pipeline.await_read(len(pipeline.sent) - 100)
    first.leave()
    pipeline.fill("third")
    third = pipeline.start(library)
    pipeline.check()
    second.leave()
    third.leave()


def test_libraries_transform_in_one_group(pipeline: Pipeline) -> None:
    pipeline.fill("first")
    members = [pipeline.start(library) for library in TRANSFORMERS]
    await_balance(members, PARTITIONS)
    pipeline.fill("second")
    pipeline.check()
    for member in members:
        member.leave()
    assert any(member.aborted for member in members)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize(
    "library", [KafkaPythonTransformer, ConfluentTransformer], ids=lambda one: one.library
)
def test_the_next_member_waits_for_the_end_of_the_transaction(
    pipeline: Pipeline, unique: UniqueName, library: type[Transformer], commits: bool
) -> None:
    """Of a member that has gone the group has offsets that are pending (KIP-447). aiokafka does not ask for stable ones."""
    pipeline.fill("first")
    with closing(PRODUCERS[library.library](pipeline.broker.bootstrap, unique("transaction"))) as gone:
        gone.initialize()
        gone.begin()
        copied = [each for each in pipeline.sent if each[0] == 0][: COUNT // 2]
        gone.send(pipeline.target, copied)
        gone.send_offset(pipeline.group, pipeline.source, 0, len(copied))
        member = pipeline.start(library)
        await_balance([member], PARTITIONS)
        stays(lambda: [each for each in pipeline.read(READ_UNCOMMITTED) if each[0] == 0] == copied, 1)
        if commits:
            gone.commit()
        else:
            gone.abort()
        pipeline.check()
        member.leave()


def test_a_former_member_of_kafka_python_cannot_commit(pipeline: Pipeline, unique: UniqueName) -> None:
    pipeline.fill("first")
    bootstrap = pipeline.broker.bootstrap
    consumer = kafka.KafkaConsumer(
        pipeline.source, bootstrap_servers=bootstrap, group_id=pipeline.group, auto_offset_reset="earliest"
    )
    eventually(lambda: consumer.poll(timeout_ms=100))
    metadata = consumer.group_metadata()
    consumer.close(autocommit=False)
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=unique("transaction"))
    producer.init_transactions()
    offsets = {kafka.TopicPartition(pipeline.source, 0): kafka.OffsetAndMetadata(7, "", -1)}
    producer.begin_transaction()
    with pytest.raises(kafka.errors.CommitFailedError):
        producer.send_offsets_to_transaction(offsets, metadata)
    producer.abort_transaction()
    assert pipeline.offsets() == {}
    producer.begin_transaction()
    producer.send_offsets_to_transaction(offsets, pipeline.group)
    producer.commit_transaction()
    producer.close()
    eventually(lambda: pipeline.offsets() == {0: 7})


def test_a_former_member_of_confluent_cannot_commit(pipeline: Pipeline, unique: UniqueName) -> None:
    pipeline.fill("first")
    bootstrap = pipeline.broker.bootstrap
    settings = {"bootstrap.servers": bootstrap, "group.id": pipeline.group, "enable.auto.commit": False}
    former, next_one = (
        confluent_kafka.Consumer({**settings, "auto.offset.reset": "earliest"}) for _ in range(2)
    )
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": unique("transaction")}
    )
    producer.init_transactions(CALL_S)
    offsets = [TopicPartition(pipeline.source, 0, 7)]
    former.subscribe([pipeline.source])
    assert former.poll(CALL_S) is not None
    metadata = former.consumer_group_metadata()
    former.close()
    next_one.subscribe([pipeline.source])
    assert next_one.poll(CALL_S) is not None
    producer.begin_transaction()
    with pytest.raises(KafkaException) as raised:
        producer.send_offsets_to_transaction(offsets, metadata, CALL_S)
    assert raised.value.args[0].txn_requires_abort()
    producer.abort_transaction(CALL_S)
    assert pipeline.offsets() == {}
    producer.begin_transaction()
    producer.send_offsets_to_transaction(offsets, next_one.consumer_group_metadata(), CALL_S)
    producer.commit_transaction(CALL_S)
    eventually(lambda: pipeline.offsets() == {0: 7})
    next_one.close()
    producer.close()
