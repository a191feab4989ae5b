"""Fetch: limits, offsets, epochs, ids and sessions."""

from __future__ import annotations

from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from compat_tests.conform.batches import batch
from compat_tests.conform.case import case
from compat_tests.conform.cases.shared import fetch_request
from compat_tests.conform.session import Session, Topic, made_up_id


def filled(
    session: Session, suffix: str = "a", partitions: int = 1, configs: dict[str, str] | None = None
) -> Topic:
    """A topic whose partition 0 holds three batches: offsets 0-2, 3, 4-5."""
    topic = session.create_topic(suffix, partitions, configs)
    session.produce(topic, batch([b"a", b"b", b"c"]))
    session.produce(topic, batch([b"d" * 200]))
    session.produce(topic, batch([b"e", None]))
    return topic


@case("Fetch")
def offsets(session: Session) -> None:
    topic = filled(session)
    for offset in (0, 1, 2, 3, 5, 6):
        session.ask(fetch_request(topic, offset), note=f"offset {offset}")


@case("Fetch")
def out_of_range(session: Session) -> None:
    topic = filled(session)
    for offset in (7, 1 << 40, -1, -2):
        session.ask(fetch_request(topic, offset), note=f"offset {offset}")


@case("Fetch")
def limits(session: Session) -> None:
    topic = filled(session)
    for size in (0, 1, 80, 100, 400, -1):
        session.ask(fetch_request(topic, partition_max_bytes=size), note=f"partition limit {size}")
        session.ask(fetch_request(topic, max_bytes=size), note=f"request limit {size}")


@case("Fetch")
def limits_over_partitions(session: Session) -> None:
    topic = session.create_topic(partitions=3)
    for partition in range(3):
        session.produce(topic, batch([b"x" * 100]), partition)
        session.produce(topic, batch([b"y" * 100]), partition)

    def ask(max_bytes: int, partition_max_bytes: int) -> None:
        wanted = [
            FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=partition_max_bytes)
            for index in range(3)
        ]
        session.ask(
            FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=max_bytes,
                session_epoch=-1,
                topics=[FetchTopic(topic=topic.name, topic_id=topic.id, partitions=wanted)],
            ),
            note=f"limits {max_bytes} {partition_max_bytes}",
        )

    for max_bytes, partition_max_bytes in (
        (1 << 20, 1 << 20),
        (1, 1),
        (400, 1 << 20),
        (1 << 20, 200),
        (1 << 20, 1),
    ):
        ask(max_bytes, partition_max_bytes)


@case("Fetch")
def waits(session: Session) -> None:
    topic = filled(session)
    session.ask(fetch_request(topic, 6, max_wait_ms=50, min_bytes=1), note="at the end")
    session.ask(fetch_request(topic, 0, max_wait_ms=50, min_bytes=1 << 20), note="more than there is")
    session.ask(fetch_request(topic, 9, max_wait_ms=9000, min_bytes=1), note="an error does not wait")
    request = fetch_request(topic, 6, max_wait_ms=9000, min_bytes=1)
    correlation_id = session.send(request)
    session.produce(topic, batch([b"late"]))
    session.await_answer(request, correlation_id, note="woken by a produce")


@case("Fetch")
def unknown(session: Session) -> None:
    topic = filled(session)
    session.ask(fetch_request(Topic(session.name("unknown"), made_up_id(9))), note="topic")
    session.ask(fetch_request(Topic("bad name!", made_up_id(0))), note="invalid name, zero id")
    session.ask(fetch_request(topic, partition=1), note="partition")
    session.ask(fetch_request(topic, partition=-1), note="partition -1")
    session.ask(FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=-1, topics=[]), note="nothing")


@case("Fetch")
def deleted(session: Session) -> None:
    topic = filled(session)
    session.delete_topic(topic)
    session.ask(fetch_request(topic))


@case("Fetch", first=9)
def epochs(session: Session) -> None:
    topic = filled(session)
    for epoch in (0, 1, 99, -1, -2):
        session.ask(fetch_request(topic, leader_epoch=epoch), note=f"leader epoch {epoch}")


@case("Fetch", first=12)
def last_fetched_epoch(session: Session) -> None:
    topic = filled(session)
    for epoch in (0, 5):
        session.ask(fetch_request(topic, 3, last_fetched_epoch=epoch), note=f"last fetched epoch {epoch}")


@case("Fetch")
def read_committed(session: Session) -> None:
    topic = filled(session)
    session.ask(fetch_request(topic, isolation_level=1))
    session.ask(fetch_request(topic, 6, isolation_level=1), note="at the end")
    session.ask(fetch_request(topic, isolation_level=2), note="unknown isolation level")


@case("Fetch", first=7)
def session_errors(session: Session) -> None:
    topic = filled(session)
    session.ask(fetch_request(topic, session_id=12345, session_epoch=1), note="unknown session")
    session.ask(fetch_request(topic, session_id=0, session_epoch=-1), note="sessionless")
    session.ask(fetch_request(topic, session_id=12345, session_epoch=-1), note="close unknown session")


@case("Fetch")
def after_delete_records(session: Session) -> None:
    topic = filled(session)
    wanted = DeleteRecordsPartition(partition_index=0, offset=2)
    session.quiet(
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic.name, partitions=[wanted])], timeout_ms=5000
        )
    )
    for offset in (0, 1, 2):
        session.ask(fetch_request(topic, offset), note=f"offset {offset}")


@case("Fetch", last=12)
def topic_twice(session: Session) -> None:
    topic = filled(session)
    request = fetch_request(topic)
    session.ask(
        FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=-1, topics=[*request.topics, *request.topics])
    )


@case("Fetch")
def mixed_partitions(session: Session) -> None:
    topic, other = filled(session), filled(session, "b")
    missing = Topic(session.name("unknown"), made_up_id(9))
    topics = [fetch_request(one, 1).topics[0] for one in (topic, missing, other)]
    session.ask(FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=-1, topics=topics))
