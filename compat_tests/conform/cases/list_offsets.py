"""ListOffsets and OffsetForLeaderEpoch: offsets by timestamp and by leader epoch."""

from __future__ import annotations

from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from compat_tests.conform.batches import TIME, batch
from compat_tests.conform.case import case
from compat_tests.conform.cases.fetch import filled
from compat_tests.conform.session import Session


def list_offsets(
    name: str,
    timestamp: int,
    *,
    partition: int = 0,
    leader_epoch: int = -1,
    isolation_level: int = 0,
    replica: int = -1,
) -> ListOffsetsRequest:
    wanted = ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=leader_epoch, timestamp=timestamp
    )
    return ListOffsetsRequest(
        replica_id=replica,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=name, partitions=[wanted])],
        timeout_ms=5000,
    )


@case("ListOffsets")
def specials(session: Session) -> None:
    topic = filled(session)
    for timestamp in range(-1, -9, -1):
        session.ask(list_offsets(topic.name, timestamp), note=f"timestamp {timestamp}")


@case("ListOffsets")
def specials_of_an_empty_log(session: Session) -> None:
    topic = session.create_topic()
    for timestamp in (*range(-1, -7, -1), 0, TIME):
        session.ask(list_offsets(topic.name, timestamp), note=f"timestamp {timestamp}")


@case("ListOffsets")
def timestamps(session: Session) -> None:
    topic = session.create_topic()
    session.produce(topic, batch([b"a", b"b", b"c"]))
    session.produce(topic, batch([b"d", b"e"], timestamp=TIME + 100, use_gzip=True))
    session.produce(topic, batch([b"f"], timestamp=TIME + 50))
    for delta in (-1, 0, 1, 2, 3, 50, 51, 100, 101, 102):
        session.ask(list_offsets(topic.name, TIME + delta), note=f"timestamp +{delta}")
    session.ask(list_offsets(topic.name, 0), note="timestamp 0")
    session.ask(list_offsets(topic.name, -3), note="max timestamp")
    session.ask(list_offsets(topic.name, 2**63 - 1), note="the last timestamp")


@case("ListOffsets")
def after_delete_records(session: Session) -> None:
    topic = filled(session)
    wanted = DeleteRecordsPartition(partition_index=0, offset=2)
    session.quiet(
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic.name, partitions=[wanted])], timeout_ms=5000
        )
    )
    for timestamp in (-1, -2, -3, -4, 0, TIME):
        session.ask(list_offsets(topic.name, timestamp), note=f"timestamp {timestamp}")


@case("ListOffsets")
def unknown(session: Session) -> None:
    topic = filled(session)
    session.ask(list_offsets(session.name("unknown"), -1), note="topic")
    session.ask(list_offsets("bad name!", -1), note="invalid name")
    session.ask(list_offsets(topic.name, -1, partition=1), note="partition")
    session.ask(list_offsets(topic.name, -1, partition=-1), note="partition -1")
    session.ask(ListOffsetsRequest(replica_id=-1, topics=[]), note="nothing")


@case("ListOffsets")
def twice(session: Session) -> None:
    topic = filled(session)
    wanted = [ListOffsetsPartition(partition_index=0, timestamp=stamp) for stamp in (-1, -2)]
    session.ask(
        ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic.name, partitions=wanted)])
    )


@case("ListOffsets", first=4)
def epochs(session: Session) -> None:
    topic = filled(session)
    for epoch in (0, 1, 99, -2):
        session.ask(list_offsets(topic.name, -1, leader_epoch=epoch), note=f"leader epoch {epoch}")


@case("ListOffsets", first=2)
def isolation(session: Session) -> None:
    topic = filled(session)
    for timestamp in (-1, -2, -3, TIME):
        session.ask(list_offsets(topic.name, timestamp, isolation_level=1), note=f"committed {timestamp}")
    session.ask(list_offsets(topic.name, -1, isolation_level=5), note="unknown isolation level")


@case("ListOffsets")
def as_a_replica(session: Session) -> None:
    topic = filled(session)
    for replica in (-2, 0, 5):
        session.ask(list_offsets(topic.name, -1, replica=replica), note=f"replica {replica}")


@case("OffsetForLeaderEpoch")
def epoch_ends(session: Session) -> None:
    topic = filled(session)
    empty = session.create_topic("b")

    def ask(name: str, epoch: int, current: int = -1, partition: int = 0, note: str = "") -> None:
        wanted = OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=current, leader_epoch=epoch
        )
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic=name, partitions=[wanted])]
        )
        session.ask(request, note=note or f"epoch {epoch} current {current}")

    for epoch in (0, 1, -1, -2, 99):
        ask(topic.name, epoch)
    for current in (0, 1, 99):
        ask(topic.name, 0, current)
    ask(empty.name, 0, note="empty log")
    ask(session.name("unknown"), 0, note="unknown topic")
    ask(topic.name, 0, partition=1, note="unknown partition")
    session.ask(OffsetForLeaderEpochRequest(replica_id=-2, topics=[]), note="nothing")
