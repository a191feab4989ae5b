"""ShareFetch and ShareAcknowledge, without membership: the leader does not ask for it."""

from __future__ import annotations

from typing import Any

from barnabas.wire.messages import share_acknowledge as acknowledging
from barnabas.wire.messages import share_fetch as fetching
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from barnabas.wire.uuids import uuid_to_string
from compat_tests.conform.batches import batch
from compat_tests.conform.case import case
from compat_tests.conform.cases.share_state import initialized
from compat_tests.conform.session import Session, Topic, made_up_id
from compat_tests.conform.transactional import Producer, produce_request
from compat_tests.harness.eventually import eventually

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
RECORD_LIMIT = 1
GROUP = 32  # ConfigResource.Type
WAIT_MS = 3000  # where records are expected: Kafka answers at once with nothing while another fetch ends
Range = tuple[int, int, list[int]]  # first and last offset, acknowledge types


class Member:
    """A member of a share group that fetches one topic on a connection of its own."""

    def __init__(self, session: Session, group: str, topic: Topic, number: int = 1) -> None:
        self.session = session
        self.group = group
        self.topic = topic
        self.id = uuid_to_string(bytes(14) + bytes([7, number]))
        self.label = f"member-{number}"
        self.epoch = 0

    def _next(self, epoch: int | None) -> int:
        if epoch is not None:
            return epoch
        self.epoch += 1
        return self.epoch - 1

    def fetch_request(
        self,
        *acknowledged: Range,
        epoch: int | None = None,
        partitions: tuple[int, ...] = (0,),
        topic: Topic | None = None,
        **fields: Any,
    ) -> fetching.ShareFetchRequest:
        of_partition = [
            fetching.FetchPartition(
                index, [fetching.AcknowledgementBatch(*each) for each in acknowledged] if not index else []
            )
            for index in partitions
        ]
        wanted: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.id,
            "share_session_epoch": self._next(epoch),
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "topics": [fetching.FetchTopic((topic or self.topic).id, of_partition)] if partitions else [],
        }
        return fetching.ShareFetchRequest(**(wanted | fields))

    def fetch(self, note: str, *acknowledged: Range, **fields: Any) -> None:
        self.session.ask(self.fetch_request(*acknowledged, **fields), on=self.label, note=note)

    def fetch_offsets(self, note: str, *acknowledged: Range, **fields: Any) -> None:
        """Record which offsets are acquired, at which delivery counts: Kafka names some of them one by one."""
        answer = self.session.quiet(self.fetch_request(*acknowledged, **fields), on=self.label)
        partitions = [each for topic in answer.responses for each in topic.partitions]
        outcome: list[Any] = [answer.error_code]
        for each in partitions:
            outcome += [each.error_code, each.acknowledge_error_code]
            for acquired in each.acquired_records:
                outcome += [
                    [offset, acquired.delivery_count]
                    for offset in range(acquired.first_offset, acquired.last_offset + 1)
                ]
        self.session.record(note, outcome)

    def acknowledge_request(
        self, *acknowledged: Range, epoch: int | None = None, partition: int = 0, **fields: Any
    ) -> acknowledging.ShareAcknowledgeRequest:
        batches = [acknowledging.AcknowledgementBatch(*each) for each in acknowledged]
        topics = [
            acknowledging.AcknowledgeTopic(
                self.topic.id, [acknowledging.AcknowledgePartition(partition, batches)]
            )
        ]
        wanted: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.id,
            "share_session_epoch": self._next(epoch),
            "topics": topics,
        }
        return acknowledging.ShareAcknowledgeRequest(**(wanted | fields))

    def acknowledge(self, note: str, *acknowledged: Range, **fields: Any) -> None:
        self.session.ask(self.acknowledge_request(*acknowledged, **fields), on=self.label, note=note)

    def release(self, first: int, last: int) -> None:
        """Without a record of it."""
        self.session.quiet(self.acknowledge_request((first, last, [RELEASE])), on=self.label)


def prepared(session: Session, *sizes: int, group: str = "g", number: int = 1, partitions: int = 1) -> Member:
    """A topic with batches of these sizes, a group that begins at 0, and a member with a session whose state is loaded."""
    topic = session.create_topic("a", partitions)
    for size in sizes:
        session.produce(topic, batch([b"a"] * size))
    for index in range(partitions):
        initialized(session, session.name(group), topic, partition=index)
    return Member(session, session.name(group), topic, number)


def warm(member: Member) -> None:
    """Have the leader load the share partition, by a session that fetches no records."""
    other = Member(member.session, member.group, member.topic, 99)
    open_it = other.fetch_request(epoch=0, max_records=1, max_wait_ms=WAIT_MS)

    def is_loaded() -> bool:
        answer = member.session.quiet(open_it, on=other.label)
        (topic,) = answer.responses
        return bool(topic.partitions[0].acquired_records)

    eventually(is_loaded, 60)
    member.session.quiet(other.fetch_request(epoch=-1, partitions=()), on=other.label)


@case("ShareFetch")
def acquires(session: Session) -> None:
    member = prepared(session, 2, 3, 4)
    member.fetch("the first fetch", max_wait_ms=WAIT_MS)
    member.fetch("nothing is left", partitions=())
    other = Member(session, member.group, member.topic, 2)
    other.fetch("another member gets nothing")
    session.produce(member.topic, batch([b"a"] * 2))
    other.fetch("and then what is new", max_wait_ms=WAIT_MS)
    member.fetch("accepts in a fetch", (0, 4, [ACCEPT]), partitions=(0,))
    member.fetch("releases in a fetch", (5, 8, [RELEASE]), max_wait_ms=WAIT_MS)
    member.fetch("closes", epoch=-1, partitions=())
    member.fetch("after the end", epoch=-1, partitions=())


@case("ShareFetch")
def limits(session: Session) -> None:
    member = prepared(session, 4, 4, 4, 4)
    member.fetch("one record: a whole batch", max_records=1, max_wait_ms=WAIT_MS)
    member.fetch("batches of two", max_records=5, batch_size=2, max_wait_ms=WAIT_MS)
    member.fetch("no records", max_records=0)
    member.fetch("negative records", max_records=-1)
    member.fetch("no bytes", max_bytes=0)
    member.fetch("few bytes", max_bytes=1, max_wait_ms=WAIT_MS)


@case("ShareFetch")
def several_partitions(session: Session) -> None:
    member = prepared(session, 3, partitions=2)
    session.produce(member.topic, batch([b"a"] * 2), 1)
    session.quiet(member.fetch_request(partitions=(0, 1), max_records=0), on=member.label)
    count = 0

    def have_all() -> bool:
        nonlocal count
        answer = session.quiet(member.fetch_request(partitions=(), max_wait_ms=WAIT_MS), on=member.label)
        for topic in answer.responses:
            for each in topic.partitions:
                count += sum(found.last_offset - found.first_offset + 1 for found in each.acquired_records)
        return count == 5

    eventually(have_all, 60)
    forgotten = [fetching.ForgottenTopic(member.topic.id, [1])]
    member.fetch("one is forgotten", partitions=(), forgotten_topics_data=forgotten)
    session.produce(member.topic, batch([b"a"] * 1), 1)
    member.fetch("nothing of the forgotten one", partitions=())
    member.fetch("named again", partitions=(1,), max_wait_ms=WAIT_MS)


@case("ShareFetch", first=2)
def record_limit(session: Session) -> None:
    member = prepared(session, 10, 10)
    limited: dict[str, Any] = {"share_acquire_mode": RECORD_LIMIT}
    member.fetch("three of ten", max_records=3, max_wait_ms=WAIT_MS, **limited)
    member.fetch_offsets("four more", max_records=4, max_wait_ms=WAIT_MS, **limited)
    member.fetch_offsets("beyond the batch", max_records=6, max_wait_ms=WAIT_MS, **limited)
    member.fetch_offsets("the rest", max_wait_ms=WAIT_MS, **limited)
    member.fetch("a mode that is none", share_acquire_mode=2)


@case("ShareFetch", first=2)
def renews(session: Session) -> None:
    member = prepared(session, 4)
    nothing: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    member.fetch("all", max_wait_ms=WAIT_MS)
    member.fetch("renewed", (0, 1, [RENEW]), is_renew_ack=True, **nothing)
    member.fetch("renewed and accepted", (0, 1, [ACCEPT, RENEW]), is_renew_ack=True, **nothing)
    member.fetch("renewed while fetching", (1, 1, [RENEW]), is_renew_ack=True, epoch=member.epoch)
    member.fetch("renewed without saying so", (1, 1, [RENEW]))
    member.acknowledge("renewed", (1, 1, [RENEW]), is_renew_ack=True)
    member.acknowledge("renewed without saying so", (1, 1, [RENEW]))


@case("ShareFetch")
def sessions(session: Session) -> None:
    member = prepared(session, 1)
    warm(member)
    member.fetch("no session", epoch=1)
    member.fetch("none to close", epoch=-1)
    member.fetch("acknowledgements at the beginning", (0, 0, [ACCEPT]), epoch=0)
    member.fetch("opened")
    member.fetch("an epoch too high", epoch=5)
    member.fetch("an epoch too low", epoch=0, partitions=())
    member.epoch = 1
    member.fetch("opened again, without partitions", partitions=())
    member.fetch("epoch -2", epoch=-2)
    member.fetch("no group", epoch=0, group_id=None)
    member.fetch("empty group", epoch=0, group_id="")
    member.fetch("no member", epoch=0, member_id=None)
    member.fetch("empty member", epoch=0, member_id="")
    member.fetch("a long member", epoch=0, member_id="m" * 37)
    member.fetch("any text as a member", epoch=0, member_id="m", partitions=())


@case("ShareFetch")
def unknown_partitions(session: Session) -> None:
    member = prepared(session, 1)
    unknown = Topic(session.name("unknown"), made_up_id(9))
    member.fetch("partition", partitions=(9,))
    member.fetch("partition, again", partitions=())
    Member(session, member.group, member.topic, 2).fetch("topic", topic=unknown)
    Member(session, session.name("other"), member.topic, 3).fetch("group", max_wait_ms=WAIT_MS)


@case("ShareFetch", first=2)
def deliveries(session: Session) -> None:
    """Released again and again: in smaller parts, and archived in the end."""
    member = prepared(session, 12)
    member.fetch_offsets("first", max_wait_ms=WAIT_MS)
    for count in range(2, 12):
        highest = session.steps[-1]["answer"]
        acquired = [each[0] for each in highest if isinstance(each, list)]
        if not acquired:
            break
        member.release(acquired[0], acquired[-1])
        member.fetch_offsets(f"fetch {count}", max_wait_ms=WAIT_MS)


@case("ShareFetch")
def session_ends(session: Session) -> None:
    """What a session that ends had acquired is available, and counts as not delivered."""
    member = prepared(session, 3)
    member.fetch_offsets("acquired", max_wait_ms=WAIT_MS)
    member.acknowledge("accepts the first and closes", (0, 0, [ACCEPT]), epoch=-1)
    other = Member(session, member.group, member.topic, 2)
    other.fetch_offsets("by another", max_wait_ms=WAIT_MS)
    session.drop(other.label)
    third = Member(session, member.group, member.topic, 3)
    third.fetch_offsets("after a disconnect", max_wait_ms=WAIT_MS)


def configure(session: Session, group: str, name: str, value: str) -> None:
    resource = AlterConfigsResource(GROUP, group, [AlterableConfig(name, 0, value)])
    answer = session.quiet(IncrementalAlterConfigsRequest([resource]))
    assert answer.responses[0].error_code == 0, answer
    described = DescribeConfigsRequest([DescribeConfigsResource(GROUP, group, [name])])

    def has_it() -> bool:
        (found,) = session.quiet(described).results[0].configs
        return bool(found.value == value)

    eventually(has_it, 60)


@case("ShareFetch")
def committed_records(session: Session) -> None:
    """A group with read_committed gets nothing of aborted transactions."""
    group = session.name("g")
    configure(session, group, "share.isolation.level", "read_committed")
    topic = session.create_topic()
    producer = Producer(session, "txn")
    for sequence, committed in ((0, True), (2, False), (4, True), (6, None)):
        producer.add((topic, 0))
        records = {(topic, 0): producer.batch(sequence, (b"a", b"b"))}
        answer = session.quiet(produce_request(records, producer.transactional_id))
        assert not answer.responses[0].partition_responses[0].error_code, answer
        if committed is not None:
            producer.end(committed)
    initialized(session, group, topic)
    member = Member(session, group, topic)
    offsets: list[int] = []

    def have_all() -> bool:
        answer = session.quiet(member.fetch_request(max_wait_ms=WAIT_MS), on=member.label)
        for each in answer.responses[0].partitions[0].acquired_records if answer.responses else ():
            offsets.extend(range(each.first_offset, each.last_offset + 1))
        return len(offsets) >= 7

    eventually(have_all, 60)
    session.record("all but the aborted ones", offsets)
    member.acknowledge("accepted", (0, 1, [ACCEPT]))
    member.acknowledge("of an aborted transaction", (3, 4, [ACCEPT]))
    producer.end(True)
    member.fetch_offsets("and then the last one", max_wait_ms=WAIT_MS)


@case("ShareFetch")
def deleted_records(session: Session) -> None:
    member = prepared(session, 5, 5)
    member.fetch_offsets("all", max_wait_ms=WAIT_MS)
    partition = DeleteRecordsPartition(partition_index=0, offset=7)
    session.quiet(DeleteRecordsRequest([DeleteRecordsTopic(member.topic.name, [partition])], 10_000))
    member.acknowledge("what is deleted, and what is not", (5, 9, [ACCEPT]))
    member.fetch_offsets("nothing is left")
    session.produce(member.topic, batch([b"a"]))
    session.quiet(
        DeleteRecordsRequest(
            [DeleteRecordsTopic(member.topic.name, [DeleteRecordsPartition(partition_index=0, offset=11)])],
            10_000,
        )
    )
    session.produce(member.topic, batch([b"a"]))
    acquired: list[int] = []

    def have_it() -> bool:  # Kafka looks at the new start of the log with one fetch, and reads with the next
        answer = session.quiet(member.fetch_request(max_wait_ms=WAIT_MS), on=member.label)
        for topic in answer.responses:
            acquired.extend(each.first_offset for each in topic.partitions[0].acquired_records)
        return bool(acquired)

    eventually(have_it, 60)
    session.record("what came afterwards", acquired)


@case("ShareFetch", first=2)
def locks_that_expire(session: Session) -> None:
    configure(session, session.name("g"), "share.record.lock.duration.ms", "1000")
    member = prepared(session, 4)
    member.fetch("locked", max_wait_ms=WAIT_MS)
    member.fetch_offsets("again, after the lock", max_wait_ms=3 * WAIT_MS)
    member.acknowledge("accepted", (0, 3, [ACCEPT]))


@case("ShareFetch", first=2)
def limit_of_locks(session: Session) -> None:
    configure(session, session.name("g"), "share.partition.max.record.locks", "100")
    member = prepared(session, 60, 60, 60)
    member.fetch_offsets("up to the limit", max_wait_ms=WAIT_MS)
    member.fetch_offsets("beyond it")
    member.release(30, 31)
    member.fetch_offsets("released ones", max_wait_ms=WAIT_MS)
    member.acknowledge("the start moves", (0, 59, [ACCEPT]))
    member.fetch_offsets("so there is room", max_wait_ms=WAIT_MS)


@case("ShareFetch")
def first_position(session: Session) -> None:
    """share.auto.offset.reset of a group without a position."""
    for reset, count in (("earliest", 2), ("latest", 0)):
        group = session.name(reset)
        configure(session, group, "share.auto.offset.reset", reset)
        topic = session.create_topic(reset)
        session.produce(topic, batch([b"a"] * 2))
        initialized(session, group, topic, -1)
        member = Member(session, group, topic)
        member.fetch_offsets(f"{reset}: {count}", max_wait_ms=WAIT_MS)
        session.produce(topic, batch([b"a"]))
        member.fetch_offsets(f"{reset}, the next", max_wait_ms=WAIT_MS)


@case("ShareAcknowledge")
def acknowledges(session: Session) -> None:
    member = prepared(session, 5, 5, 5)
    member.fetch_offsets("all", max_wait_ms=WAIT_MS)
    other = Member(session, member.group, member.topic, 2)
    other.fetch("a second member")
    member.acknowledge("accept", (0, 1, [ACCEPT]))
    member.acknowledge("below the start", (0, 1, [ACCEPT]))
    member.acknowledge("reject", (6, 7, [REJECT]))
    member.acknowledge("again", (6, 7, [ACCEPT]))
    member.acknowledge("types for each", (8, 11, [ACCEPT, GAP, REJECT, RELEASE]))
    other.acknowledge("of another", (2, 3, [ACCEPT]))
    other.acknowledge("of a record that no member has", (11, 11, [ACCEPT]))
    member.acknowledge("one is refused, all are", (2, 2, [ACCEPT]), (6, 6, [ACCEPT]))
    member.acknowledge("behind the end", (14, 15, [ACCEPT]))
    member.acknowledge("far behind the end", (50, 51, [ACCEPT]))
    member.acknowledge("over the end of a batch", (2, 5, [ACCEPT]))
    member.acknowledge("nothing")
    other.fetch_offsets("what was released", max_wait_ms=WAIT_MS)


@case("ShareAcknowledge")
def malformed_acknowledgements(session: Session) -> None:
    member = prepared(session, 10)
    member.fetch_offsets("all", max_wait_ms=WAIT_MS)
    member.acknowledge("first after last", (3, 2, [ACCEPT]))
    member.acknowledge("too many types", (0, 1, [ACCEPT] * 3))
    member.acknowledge("no type", (0, 1, []))
    member.acknowledge("unknown type", (0, 1, [5]))
    member.acknowledge("negative type", (0, 1, [-1]))
    member.acknowledge("out of order", (4, 5, [ACCEPT]), (0, 1, [ACCEPT]))
    member.acknowledge("overlapping", (0, 3, [ACCEPT]), (3, 4, [ACCEPT]))
    member.acknowledge("negative offsets", (-5, -4, [ACCEPT]))
    member.acknowledge("unknown partition", (0, 1, [ACCEPT]), partition=9)
    member.topic = Topic(session.name("unknown"), made_up_id(9))
    member.acknowledge("unknown topic", (0, 1, [ACCEPT]))


@case("ShareAcknowledge")
def acknowledge_sessions(session: Session) -> None:
    member = prepared(session, 2)
    warm(member)
    member.acknowledge("no session", (0, 0, [ACCEPT]), epoch=1)
    member.acknowledge("epoch 0", (0, 0, [ACCEPT]), epoch=0)
    member.fetch_offsets("all", max_wait_ms=WAIT_MS)
    member.acknowledge("epoch 0 with a session", (0, 0, [ACCEPT]), epoch=0)
    member.acknowledge("an epoch too high", (0, 0, [ACCEPT]), epoch=9)
    member.acknowledge("good", (0, 0, [ACCEPT]))
    member.acknowledge("last", (1, 1, [ACCEPT]), epoch=-1)
    member.acknowledge("after the last", (1, 1, [ACCEPT]), epoch=-1)
    member.acknowledge("no group", (0, 0, [ACCEPT]), group_id=None, epoch=1)
    member.acknowledge("no member", (0, 0, [ACCEPT]), member_id=None, epoch=1)
    member.acknowledge("a long member", (0, 0, [ACCEPT]), member_id="m" * 37, epoch=1)
