"""Fetch sessions (KIP-227): created, continued, with forgotten partitions, closed, and misused.

The broker chooses a session's id; the cases replace it by a name, so that an unexpected id is a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from compat_tests.conform.batches import batch
from compat_tests.conform.case import case
from compat_tests.conform.session import Session, Topic, made_up_id

NAMELESS_FROM = 13


class Reader:
    """A client with a session: knows its id and the next epoch."""

    def __init__(self, session: Session, label: str = "main") -> None:
        self.session = session
        self.id = 0
        self.epoch = 0
        self._label = label

    def ask(
        self,
        note: str,
        topics: Sequence[FetchTopic] = (),
        forget: Sequence[ForgottenTopic] = (),
        *,
        version: int | None = None,
        max_wait_ms: int = 0,
        min_bytes: int = 0,
        max_bytes: int = 1 << 20,
        isolation_level: int = 0,
    ) -> Any:
        """Ask with this session and epoch, then take the id and the next epoch as a client does."""
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            session_id=self.id,
            session_epoch=self.epoch,
            topics=list(topics),
            forgotten_topics_data=list(forget),
        )
        answer = self.session.connection(self._label).ask(request, version or self.session.version)
        if answer.error_code == 0:
            self.id, self.epoch = answer.session_id, self.epoch + 1
        answer.session_id = (
            self.session.names.numbered("session", answer.session_id) if answer.session_id else 0
        )
        self.session.record(note, self.session.names.tree(answer))
        return answer


def wanted(topic: Topic, *partitions: tuple[int, int], limit: int = 1 << 20) -> FetchTopic:
    """(partition, offset) pairs of one topic."""
    return FetchTopic(
        topic=topic.name,
        topic_id=topic.id,
        partitions=[
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=limit)
            for index, offset in partitions
        ],
    )


def forgotten(topic: Topic, *partitions: int) -> ForgottenTopic:
    return ForgottenTopic(topic=topic.name, topic_id=topic.id, partitions=list(partitions))


@case("Fetch", first=7)
def session_goes_on(session: Session) -> None:
    topic = session.create_topic(partitions=3)
    session.produce(topic, batch([b"a"]))
    reader = Reader(session)
    reader.ask("the first answer says all", [wanted(topic, (0, 0), (1, 0), (2, 0))])
    reader.ask("not read on: the records again")
    reader.ask("read on", [wanted(topic, (0, 1))])
    reader.ask("nothing new")
    session.produce(topic, batch([b"b"]), 1)
    reader.ask("one partition is new")
    reader.ask("the records again, the others silent")
    reader.ask("back to the start", [wanted(topic, (0, 0), (1, 1))])
    reader.ask("read on again", [wanted(topic, (0, 1))])
    session.produce(topic, batch([b"c"]), 0)
    session.produce(topic, batch([b"d"]), 2)
    reader.ask("two are new")


@case("Fetch", first=7)
def session_waits(session: Session) -> None:
    topic = session.create_topic(partitions=2)
    reader = Reader(session)
    reader.ask("made while waiting", [wanted(topic, (0, 0), (1, 0))], max_wait_ms=50, min_bytes=1)
    reader.ask("nothing comes", max_wait_ms=50, min_bytes=1)
    session.produce(topic, batch([b"x" * 50]), 1)
    reader.ask("less than min_bytes", max_wait_ms=50, min_bytes=1 << 16)
    reader.ask("min_bytes above max_bytes", max_wait_ms=50, min_bytes=1 << 16, max_bytes=100)


@case("Fetch", first=7)
def session_woken(session: Session) -> None:
    topic = session.create_topic(partitions=2)
    first = Reader(session)
    answer = first.ask("made", [wanted(topic, (0, 0), (1, 0))])
    request = FetchRequest(
        max_wait_ms=9000, min_bytes=1, max_bytes=1 << 20, session_id=first.id, session_epoch=1
    )
    correlation_id = session.send(request)
    session.produce(topic, batch([b"late"]), 1)
    late = session.connection().receive(1, session.version, correlation_id)
    session.record("the same session", late.session_id == first.id)
    late.session_id = answer.session_id
    session.record("woken by a produce", session.names.tree(late))


@case("Fetch", first=7)
def session_forgets(session: Session) -> None:
    topic, other = session.create_topic(partitions=2), session.create_topic("b")
    for each, partition in ((topic, 0), (topic, 1), (other, 0)):
        session.produce(each, batch([b"a"]), partition)
    reader = Reader(session)
    reader.ask("made", [wanted(topic, (0, 0), (1, 0)), wanted(other, (0, 0))])
    reader.ask("one partition forgotten", forget=[forgotten(topic, 0)])
    reader.ask("what is not in it is forgotten too", forget=[forgotten(topic, 0, 7)])
    reader.ask("forgotten and wanted at once", [wanted(topic, (1, 0))], [forgotten(topic, 1)])
    reader.ask("a topic forgotten, another back", [wanted(topic, (0, 1))], [forgotten(other, 0)])
    reader.ask("the last one forgotten", forget=[forgotten(topic, 0)])
    reader.epoch = 7
    reader.ask("gone with its last partition")


@case("Fetch", first=7)
def session_wrong_epoch(session: Session) -> None:
    topic = session.create_topic()
    session.produce(topic, batch([b"a"]))
    reader = Reader(session)
    reader.ask("made", [wanted(topic, (0, 0))])
    made = reader.id
    for epoch in (2, 0x7FFFFFFF, -2):
        reader.epoch = epoch
        reader.ask(f"epoch {epoch}")
    reader.epoch = 1
    reader.ask("the right epoch still works")
    reader.epoch = 1
    reader.ask("the same epoch again")
    reader.id, reader.epoch = 0, 1
    reader.ask("session 0 has no epochs")
    reader.id, reader.epoch = made, 2
    reader.ask("unharmed")


@case("Fetch", first=7)
def session_closed(session: Session) -> None:
    topic = session.create_topic()
    session.produce(topic, batch([b"a"]))
    for epoch, note in ((-1, "closed"), (0, "replaced")):
        reader = Reader(session)
        reader.ask("made", [wanted(topic, (0, 0))])
        made = reader.id
        reader.epoch = epoch
        reader.ask(note, [wanted(topic, (0, 0))])
        reader.id, reader.epoch = made, 1
        reader.ask(f"gone after it was {note}")


@case("Fetch", first=7)
def session_closed_with_nothing(session: Session) -> None:
    topic = session.create_topic()
    reader = Reader(session)
    reader.ask("made", [wanted(topic, (0, 0))])
    made = reader.id
    reader.epoch = -1
    reader.ask("closed, nothing wanted")
    reader.id, reader.epoch = made, 1
    reader.ask("gone")
    reader.id, reader.epoch = 0, 0
    reader.ask("a session of nothing")


@case("Fetch", first=7)
def session_errors_stay(session: Session) -> None:
    topic, other = session.create_topic(), session.create_topic("b")
    session.produce(topic, batch([b"a"]))
    missing = Topic(session.name("unknown"), made_up_id(9))
    reader = Reader(session)
    reader.ask("made", [wanted(topic, (0, 1)), wanted(other, (5, 0)), wanted(missing, (0, 0))])
    reader.ask("told again")
    reader.ask("out of range", [wanted(topic, (0, 9))])
    reader.ask("out of range again")
    reader.ask("in range again", [wanted(topic, (0, 1))])
    reader.ask("quiet")
    reader.ask("an unknown partition does not hurry", max_wait_ms=50, min_bytes=1)
    reader.ask("forgotten", forget=[forgotten(missing, 0), forgotten(other, 5)])


@case("Fetch", first=7)
def session_topic_deleted(session: Session) -> None:
    topic, other = session.create_topic(), session.create_topic("b")
    session.produce(topic, batch([b"a"]))
    reader = Reader(session)
    reader.ask("made", [wanted(topic, (0, 1)), wanted(other, (0, 0))])
    session.delete_topic(topic)
    reader.ask("deleted")
    reader.ask("still deleted")
    again = session.create_topic()
    session.produce(again, batch([b"b"]))
    reader.ask("made anew")
    reader.ask("made anew, from the start", [wanted(again, (0, 0))])


@case("Fetch", first=7)
def session_topic_made_later(session: Session) -> None:
    other = session.create_topic("b")
    missing = Topic(session.name(), made_up_id(9))
    reader = Reader(session)
    reader.ask("made", [wanted(missing, (0, 0)), wanted(other, (0, 0))])
    topic = session.create_topic()
    session.produce(topic, batch([b"b"]))
    reader.ask("it is there now")


@case("Fetch", first=7)
def session_start_moves(session: Session) -> None:
    topic = session.create_topic(partitions=2)
    for _ in range(3):
        session.produce(topic, batch([b"a"]))
    reader = Reader(session)
    reader.ask("made", [wanted(topic, (0, 3), (1, 0))])
    part = DeleteRecordsPartition(partition_index=0, offset=2)
    session.quiet(
        DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic.name, partitions=[part])], timeout_ms=5000)
    )
    reader.ask("the start has moved")
    reader.ask("quiet")
    reader.ask("below it", [wanted(topic, (0, 1))])


@case("Fetch", first=7)
def session_takes_turns(session: Session) -> None:
    topic = session.create_topic(partitions=4)
    for partition in range(4):
        for _ in range(3):
            session.produce(topic, batch([b"x" * 100]), partition)
    reader = Reader(session)
    reader.ask("made", [wanted(topic, (0, 0), (1, 0), (2, 0), (3, 0), limit=1)], max_bytes=1)
    for turn in range(3):
        reader.ask(f"turn {turn}", max_bytes=1)
    reader.ask("partition 1 moves on and keeps its place", [wanted(topic, (1, 2), limit=1)], max_bytes=1)
    for turn in range(5):
        reader.ask(f"turn {turn} after it", max_bytes=1)
    session.produce(topic, batch([b"y"]), 2)
    reader.ask("at most two", max_bytes=250)
    reader.ask("everything", max_bytes=1 << 20)


@case("Fetch", first=9)
def session_epochs_of_leaders(session: Session) -> None:
    topic = session.create_topic()
    session.produce(topic, batch([b"a"]))
    reader = Reader(session)
    with_epoch = wanted(topic, (0, 1))
    with_epoch.partitions[0].current_leader_epoch = 5
    reader.ask("made with an epoch to come", [with_epoch])
    reader.ask("again")
    with_epoch.partitions[0].current_leader_epoch = 0
    reader.ask("with the right one", [with_epoch])
    reader.ask("quiet")


@case("Fetch", first=12)
def session_diverging(session: Session) -> None:
    topic = session.create_topic()
    session.produce(topic, batch([b"a"]))
    reader = Reader(session)
    diverging = wanted(topic, (0, 9))
    diverging.partitions[0].last_fetched_epoch = 0
    reader.ask("made", [diverging])
    reader.ask("again")
    reader.ask("it does not", [wanted(topic, (0, 1))])


@case("Fetch", first=7)
def session_isolation_changes(session: Session) -> None:
    topic = session.create_topic()
    session.produce(topic, batch([b"a"]))
    reader = Reader(session)
    reader.ask("made", [wanted(topic, (0, 0))], isolation_level=1)
    reader.ask("the other level")
    reader.ask("and back", [wanted(topic, (0, 1))], isolation_level=1)


@case("Fetch", first=12, last=13)
def session_of_another_kind(session: Session) -> None:
    """A session cannot change between topic ids and topic names."""
    topic = session.create_topic()
    session.produce(topic, batch([b"a"]))
    reader = Reader(session)
    reader.ask("made", [wanted(topic, (0, 0))])
    reader.ask("by the other", version=12 if session.version == NAMELESS_FROM else NAMELESS_FROM)
    reader.ask("as before")
