"""Produce: accepted and refused batches, with their errors, at every served version."""

from __future__ import annotations

import time
from typing import Any

from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from compat_tests.conform.batches import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, batch, message_set, record
from compat_tests.conform.case import case
from compat_tests.conform.cases.groups import coordinated
from compat_tests.conform.cases.shared import fetch_all
from compat_tests.conform.session import Session, Topic, made_up_id
from compat_tests.harness.eventually import eventually

NOW = time.time_ns() // 1_000_000
"""For both brokers, in ms."""


def produce(
    topic: Topic,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """One batch to one partition, with the topic's name and id; each version encodes one of them."""
    data = PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=5000,
        topic_data=[TopicProduceData(name=topic.name, topic_id=topic.id, partition_data=[data])],
    )


def new_producer(session: Session) -> Any:
    """A new producer id and epoch; waits until Kafka's controller has allocated the first block of ids."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60000)

    def given() -> Any:
        answer = session.quiet(request, version=4)
        return answer if answer.error_code == 0 else None

    return eventually(given)


@case("Produce")
def appends(session: Session) -> None:
    topic = session.create_topic()
    for acks in (1, -1):
        session.ask(produce(topic, batch([b"a", None, b"c"]), acks=acks), note=f"acks {acks}")
    session.ask(produce(topic, batch([b"z"] * 100, use_gzip=True)), note="gzip")
    fetch_all(session, topic)


@case("Produce")
def acks_zero_answers_nothing(session: Session) -> None:
    topic = session.create_topic()
    session.send(produce(topic, batch(), acks=0))
    session.ask(produce(topic, batch([b"b"]), acks=1), note="the next request's answer")
    fetch_all(session, topic)


@case("Produce")
def acks_zero_error_closes(session: Session) -> None:
    unknown = Topic(session.name("unknown"), made_up_id(9))
    session.send(produce(unknown, batch(), acks=0))
    session.ask(produce(unknown, batch()), note="after an error with acks 0")


@case("Produce")
def acks_invalid(session: Session) -> None:
    topic = session.create_topic()
    for acks in (2, -2, 32767):
        session.ask(produce(topic, batch(), acks=acks), note=f"acks {acks}")


@case("Produce")
def unknown_topic_and_partition(session: Session) -> None:
    topic = session.create_topic()
    session.ask(produce(Topic(session.name("unknown"), made_up_id(9)), batch()), note="topic")
    session.ask(produce(topic, batch(), partition=1), note="partition")
    session.ask(produce(topic, batch(), partition=-1), note="partition -1")
    session.ask(produce(Topic("bad name!", made_up_id(0)), batch()), note="invalid name, zero id")


@case("Produce")
def several_topics_and_partitions(session: Session) -> None:
    first, second = session.create_topic("a", 2), session.create_topic("b", 1)
    data = [
        TopicProduceData(
            name=topic.name,
            topic_id=topic.id,
            partition_data=[PartitionProduceData(index=index, records=batch()) for index in range(3)],
        )
        for topic in (first, second)
    ]
    session.ask(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=data))
    session.ask(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[]), note="no topics")


@case("Produce")
def topic_twice(session: Session) -> None:
    topic = session.create_topic()
    data = [
        TopicProduceData(
            name=topic.name,
            topic_id=topic.id,
            partition_data=[PartitionProduceData(index=0, records=batch())],
        )
    ]
    session.ask(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=data * 2))


@case("Produce")
def records_null_and_empty(session: Session) -> None:
    topic = session.create_topic()
    session.ask(produce(topic, None), note="null")
    session.ask(produce(topic, b""), note="empty")


@case("Produce")
def two_batches(session: Session) -> None:
    topic = session.create_topic()
    session.ask(produce(topic, batch() + batch([b"b"])))


@case("Produce")
def damaged(session: Session) -> None:
    topic = session.create_topic()
    good = batch([b"a", b"b"])
    session.ask(produce(topic, batch(crc=1)), note="crc")
    session.ask(produce(topic, good[:-1]), note="cut")
    session.ask(produce(topic, good[:30]), note="cut in the header")
    session.ask(produce(topic, good[:5]), note="five bytes")
    session.ask(produce(topic, good + b"\x00" * 5), note="trailing bytes")
    session.ask(produce(topic, batch(batch_length=10)), note="length too small")
    session.ask(produce(topic, batch(batch_length=-1)), note="length negative")
    session.ask(produce(topic, batch(magic=3)), note="magic 3")
    session.ask(produce(topic, batch(magic=-1)), note="magic -1")
    fetch_all(session, topic)


@case("Produce")
def old_formats(session: Session) -> None:
    topic = session.create_topic()
    session.ask(produce(topic, message_set(0)), note="magic 0")
    session.ask(produce(topic, message_set(1)), note="magic 1")
    session.ask(produce(topic, batch(magic=1)), note="v2 bytes named magic 1")


@case("Produce")
def bad_counts(session: Session) -> None:
    topic = session.create_topic()
    session.ask(produce(topic, batch([b"a", b"b"], count=3)), note="count above delta")
    session.ask(produce(topic, batch([b"a", b"b"], last_offset_delta=5)), note="delta above count")
    session.ask(produce(topic, batch([], count=0, last_offset_delta=-1)), note="no records")
    session.ask(produce(topic, batch([b"a"], count=0, last_offset_delta=0)), note="count zero")
    session.ask(produce(topic, batch([b"a"], count=-1, last_offset_delta=0)), note="count negative")
    session.ask(produce(topic, batch([b"a"], count=0, last_offset_delta=-1)), note="both below one")
    fetch_all(session, topic)


@case("Produce")
def base_offset_not_zero(session: Session) -> None:
    topic = session.create_topic()
    session.ask(produce(topic, batch(base_offset=7)))
    session.ask(produce(topic, batch(leader_epoch=5)), note="leader epoch")
    fetch_all(session, topic)


@case("Produce")
def forbidden_attributes(session: Session) -> None:
    topic = session.create_topic()
    session.ask(produce(topic, batch(attributes=CONTROL)), note="control")
    session.ask(produce(topic, batch(attributes=TRANSACTIONAL)), note="transactional, no producer")
    session.ask(produce(topic, batch(attributes=LOG_APPEND_TIME)), note="log append time by client")
    fetch_all(session, topic)


@case("Produce")
def records_that_do_not_unpack(session: Session) -> None:
    topic = session.create_topic()
    session.ask(produce(topic, batch(attributes=7)), note="unknown codec")
    session.ask(produce(topic, batch(attributes=1)), note="gzip that is not")


@case("Produce", last=12)
def transactional_without_coordinator_knowing(session: Session) -> None:
    topic = session.create_topic()
    records = batch(attributes=TRANSACTIONAL, producer_id=4711, producer_epoch=0, base_sequence=0)
    session.ask(produce(topic, records), note="transactional batch without a transactional id")
    session.ask(produce(topic, records, transactional_id="nobody"), note="of a transaction that never began")
    without = batch(attributes=TRANSACTIONAL)
    session.ask(produce(topic, without, transactional_id="nobody"), note="no producer id")
    fetch_all(session, topic)


@case("Produce")
def too_large(session: Session) -> None:
    topic = session.create_topic(configs={"max.message.bytes": "200"})
    session.ask(produce(topic, batch([b"x" * 300])), note="above max.message.bytes")
    session.ask(produce(topic, batch([b"x"] + [b"y" * 60] * 4)), note="several records")
    session.ask(produce(topic, batch([b"x" * 100])), note="below")


@case("Produce")
def compacted_needs_keys(session: Session) -> None:
    topic = session.create_topic(configs={"cleanup.policy": "compact"})
    session.ask(produce(topic, batch([b"a", b"b"], keys=[b"k", b"l"])), note="with keys")
    session.ask(produce(topic, batch([b"a", b"b"], keys=[b"k", None])), note="one without")
    session.ask(produce(topic, batch([b"a"], use_gzip=True)), note="compressed, without")


@case("Produce")
def log_append_time(session: Session) -> None:
    topic = session.create_topic(configs={"message.timestamp.type": "LogAppendTime"})
    session.ask(produce(topic, batch([b"a", b"b"])))
    fetch_all(session, topic)


@case("Produce")
def timestamps_out_of_bounds(session: Session) -> None:
    topic = session.create_topic(
        configs={"message.timestamp.before.max.ms": "3600000", "message.timestamp.after.max.ms": "3600000"}
    )
    session.ask(produce(topic, batch([b"a", b"b"])), note="years old")
    session.ask(produce(topic, batch([b"a"], timestamp=4_000_000_000_000)), note="far ahead")
    for deltas in ([0, -10_000_000, 5], [0, 5, -1 - NOW], [0, 1, 10_000_000, 10_000_001], [-10_000_000, 0]):
        records = b"".join(record(index, b"a", delta=delta) for index, delta in enumerate(deltas))
        for use_gzip in (False, True):
            session.ask(
                produce(
                    topic,
                    batch(
                        [b"a"] * len(deltas),
                        payload=records,
                        timestamp=NOW,
                        max_timestamp=NOW + max(deltas),
                        use_gzip=use_gzip,
                    ),
                ),
                note=f"one at odds, {deltas if deltas[-1] > -20_000_000 else 'without time'}, gzip {use_gzip}",
            )
    other = session.create_topic("b")
    session.ask(produce(other, batch([b"a"], timestamp=4_000_000_000_000)), note="far ahead, defaults")
    session.ask(produce(other, batch([b"a"], timestamp=-1)), note="no timestamp")
    fetch_all(session, other)


@case("Produce")
def keys_and_timestamps_at_fault(session: Session) -> None:
    topic = session.create_topic(configs={"cleanup.policy": "compact"})
    records = b"".join(
        record(index, b"a", key, delta=delta)
        for index, (key, delta) in enumerate([(b"k", 0), (None, 1), (b"k", 10_000_000), (None, 10_000_000)])
    )
    for use_gzip in (False, True):
        at_fault = batch(
            [b"a"] * 4, payload=records, timestamp=NOW, max_timestamp=NOW + 10_000_000, use_gzip=use_gzip
        )
        session.ask(produce(topic, at_fault), note=f"keys and times, gzip {use_gzip}")


@case("Produce")
def many_records_at_fault(session: Session) -> None:
    topic, compacted = (
        session.create_topic(),
        session.create_topic("c", configs={"cleanup.policy": "compact"}),
    )
    count = 1100
    for use_gzip in (False, True):
        far_ahead = batch([b"a"] * count, timestamp=4_000_000_000_000, use_gzip=use_gzip)
        session.ask(produce(topic, far_ahead), note=f"far ahead, gzip {use_gzip}")
        session.ask(
            produce(compacted, batch([b"a"] * count, use_gzip=use_gzip)), note=f"keyless, gzip {use_gzip}"
        )


@case("Produce")
def larger_once_converted(session: Session) -> None:
    topic = session.create_topic(configs={"compression.type": "uncompressed", "max.message.bytes": "1000"})
    session.ask(produce(topic, batch([b"z" * 100] * 30, use_gzip=True)))
    fetch_all(session, topic)


@case("Produce")
def codec_of_the_topic(session: Session) -> None:
    topic = session.create_topic(configs={"compression.type": "uncompressed"})
    session.ask(produce(topic, batch([b"z"] * 3, use_gzip=True)))
    fetch_all(session, topic)


@case("Produce")
def idempotent(session: Session) -> None:
    topic = session.create_topic()
    producer = new_producer(session)

    def send(sequence: int, note: str, epoch: int = 0, count: int = 1) -> None:
        records = batch(
            [b"a"] * count, producer_id=producer.producer_id, producer_epoch=epoch, base_sequence=sequence
        )
        session.ask(produce(topic, records), note=note)

    send(0, "first")
    send(0, "again: a duplicate")
    send(1, "next, two records", count=2)
    send(5, "a gap")
    send(1, "duplicate of two", count=2)
    send(1, "shorter than the duplicate")
    for sequence in range(3, 9):
        send(sequence, f"sequence {sequence}")
    send(4, "the fifth last")
    send(1, "older than five batches", count=2)
    send(0, "a new epoch", epoch=1)
    send(9, "the old epoch", epoch=0)
    send(7, "newer epoch, not from zero", epoch=2)
    fetch_all(session, topic)


@case("Produce")
def idempotent_oddities(session: Session) -> None:
    topic = session.create_topic()
    session.ask(
        produce(topic, batch(producer_id=12345678, producer_epoch=0, base_sequence=0)),
        note="unknown, from zero",
    )
    session.ask(
        produce(topic, batch(producer_id=22345678, producer_epoch=0, base_sequence=5)),
        note="unknown, from five",
    )
    session.ask(produce(topic, batch(producer_id=32345678, producer_epoch=0)), note="no sequence")
    session.ask(produce(topic, batch(producer_id=42345678, base_sequence=0)), note="no epoch")
    session.ask(produce(topic, batch(producer_epoch=0, base_sequence=0)), note="no producer id")
    session.ask(
        produce(topic, batch(producer_id=52345678, producer_epoch=0, base_sequence=2**31 - 1)),
        note="last sequence",
    )
    two = batch(producer_id=62345678, producer_epoch=0, base_sequence=0)
    session.ask(produce(topic, two + two), note="two batches with a producer id")


@case("Produce")
def sequence_wraps(session: Session) -> None:
    topic = session.create_topic()
    session.ask(
        produce(topic, batch([b"a"] * 2, producer_id=72345678, producer_epoch=0, base_sequence=2**31 - 2)),
        note="up to the end",
    )
    session.ask(
        produce(topic, batch(producer_id=72345678, producer_epoch=0, base_sequence=0)), note="from zero again"
    )


@case("Produce")
def internal_topic(session: Session) -> None:
    coordinated(session, session.name("g"))
    session.ask(produce(Topic("__consumer_offsets", made_up_id(8)), batch(keys=[b"k"])), note="internal")


@case("Produce", last=12)
def after_deletion(session: Session) -> None:
    topic = session.create_topic()
    session.produce(topic)
    session.delete_topic(topic)
    session.ask(produce(topic, batch()))
