"""Groups that consume, transform and produce: outputs and offsets of a transaction count together, over aborts and rebalances."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka import KafkaException, TopicPartition

from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually, stays
from compat_tests.harness.fixture_types import TopicFactory, UniqueName
from compat_tests.harness.members import await_balance
from compat_tests.harness.transactional_clients import (
    CALL_S,
    PRODUCERS,
    READ_UNCOMMITTED,
)
from compat_tests.harness.transformers import (
    COUNT,
    PARTITIONS,
    TRANSFORMERS,
    ConfluentTransformer,
    KafkaPythonTransformer,
    Pipeline,
    Transformer,
)

by_library = pytest.mark.parametrize("library", TRANSFORMERS, ids=lambda one: one.library)


@pytest.fixture
def pipeline(broker: Broker, topic: TopicFactory, unique: UniqueName) -> Iterator[Pipeline]:
    made = Pipeline(broker.bootstrap, unique, topic(partitions=PARTITIONS), topic(partitions=PARTITIONS))
    yield made
    made.abandon()


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
    with closing(PRODUCERS[library.library](pipeline.bootstrap, unique("transaction"))) as gone:
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
    bootstrap = pipeline.bootstrap
    consumer = kafka.KafkaConsumer(
        pipeline.source, bootstrap_servers=bootstrap, group_id=pipeline.group, auto_offset_reset="earliest"
    )
    # kafka-python that joins before it has the topic's metadata assigns nothing, and may not look again for minutes.
    eventually(lambda: consumer.partitions_for_topic(pipeline.source))
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
    bootstrap = pipeline.bootstrap
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
