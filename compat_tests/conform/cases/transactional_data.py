"""What a transaction writes: Produce, WriteTxnMarkers, TxnOffsetCommit, and what DescribeProducers says of it."""

from __future__ import annotations

from typing import Any

from barnabas.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from barnabas.wire.messages.write_txn_markers import WriteTxnMarkersRequest
from compat_tests.conform.batches import TRANSACTIONAL, batch
from compat_tests.conform.case import case
from compat_tests.conform.cases.groups import coordinated, joined
from compat_tests.conform.cases.shared import fetch_all, fetch_request
from compat_tests.conform.session import Session, Topic
from compat_tests.conform.transactional import (
    ADD_BY_BROKER,
    ANOTHER_ID,
    END_RAISES_EPOCH,
    STATES,
    Producer,
    marker_request,
    produce_request,
)
from compat_tests.harness.eventually import eventually

IMPLICIT_ADD = 12  # the version of Produce since which the broker adds the partition
READ_COMMITTED = 1


def _describe(session: Session, topic: Topic, note: str) -> None:
    """Record the producers of partition 0."""
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic.name, partition_indexes=[0])])
    session.ask(request, version=0, note=note)


# -- Produce


@case("Produce")
def transactional_ids_of_batches(session: Session) -> None:
    """A transactional batch needs the id that its producer id belongs to."""
    topic = session.create_topic()
    producer, other = Producer(session, "id"), Producer(session, "other")
    producer.add((topic, 0))
    for note, name in {
        "none": None,
        "empty": "",
        "unknown": session.name("unknown"),
        "of another producer": other.transactional_id,
        "right": producer.transactional_id,
    }.items():
        session.ask(produce_request({(topic, 0): producer.batch()}, name), note=note)
    plain = batch((b"plain",))
    session.ask(produce_request({(topic, 0): plain}, producer.transactional_id), note="plain batch")
    idempotent = batch((b"plain",), producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=1)
    session.ask(
        produce_request({(topic, 0): idempotent}, producer.transactional_id),
        note="without the transactional bit",
    )
    fetch_all(session, topic)


@case("Produce")
def produced_in_every_state(session: Session) -> None:
    for state in STATES:
        topic = session.create_topic(state.replace(" ", "-"), 2)
        producer = Producer(session, state.replace(" ", "-"))
        producer.reach(state, topic)

        def ask(note: str, partition: int = 0, sequence: int = 0, **fields: Any) -> None:
            data = producer.batch(sequence, **fields)  # noqa: B023 - called at once
            request = produce_request({(topic, partition): data}, producer.transactional_id)  # noqa: B023
            session.ask(request, note=f"{state}: {note}")  # noqa: B023

        ask("another id", producer_id=producer.id + ANOTHER_ID)
        ask("lower epoch", producer_epoch=producer.epoch - 1)
        ask("higher epoch", producer_epoch=producer.epoch + 1)
        ask("good")
        ask("good, repeated")
        ask("next", sequence=1)
        ask("gap", sequence=7)
        ask("second partition", partition=1)
        session.record(f"{state}: state", session.names.tree(producer.state()))


@case("Produce")
def first_sequences_in_every_state(session: Session) -> None:
    for state in STATES:
        topic = session.create_topic(state.replace(" ", "-"))
        producer = Producer(session, state.replace(" ", "-"))
        producer.reach(state, topic)
        for sequence in (5, 0, 6):
            request = produce_request({(topic, 0): producer.batch(sequence)}, producer.transactional_id)
            session.ask(request, note=f"{state}: {sequence}")


@case("Produce")
def first_sequence_after_a_refused_epoch(session: Session) -> None:
    topic = session.create_topic()
    producer = Producer(session, "id")
    producer.add((topic, 0))
    for note, data in {
        "higher epoch": producer.batch(producer_epoch=producer.epoch + 1),
        "first sequence 5": producer.batch(5),
    }.items():
        session.ask(produce_request({(topic, 0): data}, producer.transactional_id), note=note)


@case("Produce")
def several_producers_in_a_request(session: Session) -> None:
    topic = session.create_topic("a", 3)
    first, second = Producer(session, "first"), Producer(session, "second")
    for producer in (first, second):
        producer.add((topic, 0), (topic, 1), (topic, 2))
    batches = {(topic, 0): first.batch(), (topic, 1): second.batch()}
    session.ask(produce_request(batches, first.transactional_id), note="two ids")
    batches = {(topic, 0): first.batch(), (topic, 1): first.batch(producer_epoch=first.epoch - 1)}
    session.ask(produce_request(batches, first.transactional_id), note="two epochs")
    batches = {(topic, 0): first.batch(), (topic, 1): batch((b"plain",))}
    session.ask(produce_request(batches, first.transactional_id), note="one is plain")
    batches = {(topic, 0): first.batch(1), (topic, 7): first.batch(), (topic, 2): first.batch()}
    session.ask(produce_request(batches, first.transactional_id), note="one has no partition")


@case("Produce")
def a_transaction_from_begin_to_end(session: Session) -> None:
    topic = session.create_topic()
    producer = Producer(session, "id")
    implicit = session.version >= IMPLICIT_ADD
    sequence = 0
    for committed in (True, False, True):
        if not implicit:
            producer.add((topic, 0))
        session.ask(
            produce_request({(topic, 0): producer.batch(sequence)}, producer.transactional_id),
            note=f"{committed}: produced",
        )
        for level in (0, READ_COMMITTED):
            session.ask(
                fetch_request(topic, isolation_level=level),
                version=17,
                note=f"{committed}: open, level {level}",
            )
            _ask_for_end(session, topic, level, f"{committed}: open, end at level {level}")
        _describe(session, topic, f"{committed}: open, producers")
        producer.end(committed, version=END_RAISES_EPOCH if implicit else 4)
        sequence = 0 if implicit else sequence + 1
        for level in (0, READ_COMMITTED):
            session.ask(
                fetch_request(topic, isolation_level=level),
                version=17,
                note=f"{committed}: ended, level {level}",
            )
            _ask_for_end(session, topic, level, f"{committed}: ended, end at level {level}")
        _describe(session, topic, f"{committed}: ended, producers")
    plain = batch((b"plain",))
    session.ask(produce_request({(topic, 0): plain}, None), note="a plain batch")
    _ask_for_end(session, topic, READ_COMMITTED, "end")


@case("Produce")
def late_batches(session: Session) -> None:
    """Batches of a transaction that has ended."""
    topic = session.create_topic()
    producer = Producer(session, "id")
    raises = session.version >= IMPLICIT_ADD
    producer.add((topic, 0), version=ADD_BY_BROKER if raises else 3)
    late = [producer.batch(sequence) for sequence in range(3)]
    session.ask(produce_request({(topic, 0): late[0]}, producer.transactional_id), note="in time")
    producer.end(True, version=END_RAISES_EPOCH if raises else 4)
    for note, data in zip(("repeated", "next", "gap"), late, strict=True):
        session.ask(produce_request({(topic, 0): data}, producer.transactional_id), note=note)
    session.ask(
        produce_request({(topic, 0): producer.batch(3)}, producer.transactional_id),
        note="new epoch, sequence 3",
    )
    fetch_all(session, topic)


def _ask_for_end(session: Session, topic: Topic, level: int, note: str) -> None:
    wanted = ListOffsetsTopic(
        name=topic.name, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)]
    )
    request = ListOffsetsRequest(replica_id=-1, isolation_level=level, topics=[wanted])
    session.ask(request, version=7, note=note)


# -- WriteTxnMarkers


@case("WriteTxnMarkers")
def markers_without_transactions(session: Session) -> None:
    topic = session.create_topic()
    producer_id = _unused_id(session)
    wanted: dict[str, tuple[Topic | str, int]] = {
        "good": (topic, 0),
        "good, repeated": (topic, 0),
        "no such partition": (topic, 7),
        "no topic": (session.name("no"), 0),
    }
    for note, partition in wanted.items():
        session.ask(marker_request(partition, producer_id, 3), note=note)
    for epoch in (2, 3, 4, -1, 32767, 0):
        session.ask(marker_request((topic, 0), producer_id, epoch), note=f"epoch {epoch}")
    session.ask(marker_request((topic, 0), -1, 0), note="producer id -1")
    session.ask(WriteTxnMarkersRequest(markers=[]), note="none")
    session.ask(
        marker_request(("__transaction_state", 0), producer_id, 0), note="a partition of the coordinator"
    )
    _describe(session, topic, "producers")
    fetch_all(session, topic)


@case("WriteTxnMarkers")
def coordinator_epochs(session: Session) -> None:
    topic = session.create_topic()
    producer_id = _unused_id(session)
    for epoch in (5, 5, 4, 6, -1, 6):
        session.ask(
            marker_request((topic, 0), producer_id, 1, coordinator_epoch=epoch), note=f"epoch {epoch}"
        )
    _describe(session, topic, "producers")


@case("WriteTxnMarkers")
def markers_of_open_transactions(session: Session) -> None:
    """By transaction.version and the difference of the marker's epoch from that of the transaction."""
    for transaction_version in (0, 1, 2, 3):
        for difference in (-1, 0, 1, 5):
            name = f"tv{transaction_version}-{difference}"
            topic = session.create_topic(name.replace("--", "-minus-"))
            producer = Producer(session, name)
            producer.add((topic, 0))
            session.quiet(
                produce_request({(topic, 0): producer.batch()}, producer.transactional_id), version=11
            )
            for note in ("first", "repeated"):
                request = marker_request(
                    (topic, 0),
                    producer.id,
                    producer.epoch + difference,
                    committed=True,
                    transaction_version=transaction_version,
                )
                session.ask(request, note=f"{name}: {note}")
            _describe(session, topic, f"{name}: producers")


@case("WriteTxnMarkers")
def several_markers(session: Session) -> None:
    """Of several producers: Kafka does not answer at all where a producer has two."""
    topic = session.create_topic("a", 3)
    first, second = _unused_id(session), _unused_id(session)
    requests = [
        marker_request((topic, 0), first, 0),
        marker_request((topic, 2), second, 0, committed=True),
    ]
    requests[1].markers[0].topics[0].partition_indexes.append(9)
    markers = [marker for request in requests for marker in request.markers]
    answer = session.quiet(WriteTxnMarkersRequest(markers=markers), version=session.version)
    found = [
        [(first, second).index(marker.producer_id), partition.partition_index, partition.error_code]
        for marker in answer.markers
        for each in marker.topics
        for partition in each.partitions
    ]
    session.record("results", sorted(found))


def _unused_id(session: Session) -> int:
    """A producer id that no transaction has."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    found: list[int] = []

    def is_assigned() -> bool:
        found.append(session.quiet(request).producer_id)
        return found[-1] >= 0

    eventually(is_assigned)
    session.names.numbered("producer id", found[-1])
    return found[-1]


# -- TxnOffsetCommit


def _commit_request(
    producer: Producer, group: str, *partitions: tuple[str, int], offset: int = 5, **fields: Any
) -> TxnOffsetCommitRequest:
    topics = [
        TxnOffsetCommitRequestTopic(
            name=name,
            partitions=[
                TxnOffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata="note"
                )
            ],
        )
        for name, index in partitions
    ]
    defaults = {
        "transactional_id": producer.transactional_id,
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
    }
    return TxnOffsetCommitRequest(group_id=group, topics=topics, **{**defaults, **fields})


def _fetch_offsets(session: Session, group: str, topic: Topic, note: str) -> None:
    for stable in (False, True):
        for all_topics in (False, True):
            wanted = [OffsetFetchRequestTopics(name=topic.name, topic_id=topic.id, partition_indexes=[0, 1])]
            request = OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(group_id=group, topics=None if all_topics else wanted)],
                require_stable=stable,
            )
            kind = f"{'stable ' if stable else ''}{'all' if all_topics else 'named'}"
            session.ask(request, version=9, note=f"{note}: {kind} offsets")


def _offsets_version(session: Session) -> tuple[int, int]:
    """(version of AddPartitionsToTxn, of EndTxn) that belong to a version of TxnOffsetCommit."""
    return (ADD_BY_BROKER, END_RAISES_EPOCH) if session.version >= 5 else (3, 4)


@case("TxnOffsetCommit")
def offsets_in_every_state(session: Session) -> None:
    source = session.create_topic("source", 2)
    for state in STATES:
        topic = session.create_topic(state.replace(" ", "-"))
        group = session.name(f"g-{state.replace(' ', '-')}")
        coordinated(session, group)
        producer = Producer(session, state.replace(" ", "-"))
        producer.reach(state, topic)
        changes: dict[str, dict[str, Any]] = {
            "another id": {"producer_id": producer.id + ANOTHER_ID},
            "lower epoch": {"producer_epoch": producer.epoch - 1},
            "higher epoch": {"producer_epoch": producer.epoch + 1},
            "unknown transactional id": {"transactional_id": session.name("unknown")},
            "empty transactional id": {"transactional_id": ""},
            "good but not added": {},
        }
        for note, fields in changes.items():
            request = _commit_request(producer, group, (source.name, 0), **fields)
            session.ask(request, note=f"{state}: {note}")
        session.record(f"{state}: state", producer.state().transaction_state)


@case("TxnOffsetCommit")
def offsets_from_begin_to_end(session: Session) -> None:
    topic, group = session.create_topic("a", 2), session.name("g")
    coordinated(session, group)
    producer = Producer(session, "id")
    _, end_version = _offsets_version(session)
    for number, committed in enumerate((False, True, True)):
        if session.version < 5:
            _add_offsets(session, producer, group)
        kind = f"{number} {committed}"
        request = _commit_request(
            producer, group, (topic.name, 0), (topic.name, 7), (session.name("no"), 0), offset=10 + number
        )
        session.ask(request, note=f"{kind}: first")
        request = _commit_request(producer, group, (topic.name, 0), offset=20 + number)
        session.ask(request, note=f"{kind}: replaced")
        _fetch_offsets(session, group, topic, f"{kind}: open")
        producer.end(committed, version=end_version)
        _fetch_offsets(session, group, topic, f"{kind}: ended")


def _add_offsets(session: Session, producer: Producer, group: str) -> None:
    request = producer.offsets_request(group)
    eventually(lambda: session.quiet(request, version=3).error_code == 0)


@case("TxnOffsetCommit")
def offsets_of_groups(session: Session) -> None:
    """Of no group, of an empty name, and of a group with members."""
    topic, group, simple = session.create_topic("a", 2), session.name("g"), session.name("simple")
    coordinated(session, group)
    coordinated(session, simple)
    producer = Producer(session, "id")
    member = joined(session, group)
    if session.version < 5:
        _add_offsets(session, producer, group)
        _add_offsets(session, producer, simple)

    def ask(note: str, name: str, **fields: Any) -> None:
        session.ask(_commit_request(producer, name, (topic.name, 0), **fields), note=note)

    ask("empty group", "")
    ask("of a group with members, unnamed", group)
    if session.version >= 3:
        ask("generation of a missing group", simple, generation_id=1)
        ask("generation 0 of a missing group", simple, generation_id=0)
        ask("member of a missing group", simple, member_id="m")
        ask("the member", group, generation_id=member.generation, member_id=member.member_id)
        ask("another generation", group, generation_id=member.generation + 1, member_id=member.member_id)
        ask("an unknown member", group, generation_id=member.generation, member_id="m")
        ask("only a generation", group, generation_id=member.generation)
        ask(
            "an instance of none",
            group,
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id="i",
        )
    ask("of a simple group", simple)
    ask("no topics", simple)
    producer.end(True, version=_offsets_version(session)[1])
    for name in (group, simple):
        _fetch_offsets(session, name, topic, "simple" if name == simple else "members")


# -- DescribeProducers


@case("DescribeProducers")
def producers_of_partitions(session: Session) -> None:
    topic = session.create_topic("a", 2)
    producer = Producer(session, "id")
    idempotent = _unused_id(session)
    for sequence in (0, 1):
        session.produce(
            topic, batch((b"a",), producer_id=idempotent, producer_epoch=0, base_sequence=sequence)
        )
    session.produce(topic, batch((b"a", b"b")))
    producer.add((topic, 0))
    data = batch(
        (b"a", b"b"),
        attributes=TRANSACTIONAL,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=0,
    )
    session.quiet(produce_request({(topic, 0): data}, producer.transactional_id), version=11)
    for note, topics in {
        "known": [TopicRequest(name=topic.name, partition_indexes=[0])],
        "without producers": [TopicRequest(name=topic.name, partition_indexes=[1])],
        "no such partition": [TopicRequest(name=topic.name, partition_indexes=[7, -1])],
        "no topic": [TopicRequest(name=session.name("no"), partition_indexes=[0])],
        "bad name": [TopicRequest(name="a b", partition_indexes=[0])],
        "several": [
            TopicRequest(name=session.name("no"), partition_indexes=[0, 1]),
            TopicRequest(name=topic.name, partition_indexes=[1, 9]),
        ],
        "none": [],
    }.items():
        request = DescribeProducersRequest(topics=topics)
        answer = session.quiet(request, version=0)
        if note != "known":
            session.record(note, session.names.tree(answer))
            continue
        for each in answer.topics[0].partitions[0].active_producers:
            kind = "idempotent" if each.producer_id == idempotent else "transactional"
            session.record(f"{note}: {kind}", session.names.tree(each))
    producer.end(True)
    fetch_all(session, topic)
