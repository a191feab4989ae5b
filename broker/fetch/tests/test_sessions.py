"""Fetch sessions against a model that walks every partition at every request, and the cache against Kafka's
rules."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.fetch.sessions import EVICTION_MS, FetchSession, FetchSessionCache
from barnabas.broker.node import Node
from barnabas.broker.tests.leader import Leader
from barnabas.broker.tests.reply import Reply, send
from barnabas.storage.errors import WouldWait
from barnabas.storage.log.log import Log
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from barnabas.wire.records import Record, build_batch
from compat_tests.virtual.runtime import VirtualRuntime

PRODUCE, FETCH, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 0, 1, 19, 20, 21
VERSION = 12
TOPIC = "topic"
PARTITIONS = 4
INVALID_EPOCH, NOT_FOUND = 71, 70


class Broker:
    """A whole node under a virtual clock, asked without a socket."""

    def __init__(self, directory: Path, **properties: str) -> None:
        self.runtime = VirtualRuntime()
        config = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory), **properties}
        self.node = Node(BrokerConfig.from_properties(config), self.runtime)
        self.node.start()
        self.runtime.run_until_idle()
        self._topics = itertools.count()

    def send(self, key: int, version: int, request: Any) -> Reply:
        return send(self.node.services, key, version, request)

    def ask(self, key: int, version: int, request: Any) -> Any:
        reply = self.send(key, version, request)
        self.runtime.run_until_idle()
        assert reply.answer is not None
        return reply.answer

    def create_topic(self, partitions: int) -> str:
        name = f"{TOPIC}-{next(self._topics)}"
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        answer = self.ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=1000))
        assert answer.topics[0].error_code == 0
        return name

    def delete_topic(self, topic: str) -> None:
        self.ask(DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=[topic], timeout_ms=1000))

    def append(self, topic: str, partition: int, records: int = 1, size: int = 10) -> bytes:
        """One batch of `records` records; its bytes as a fetch will give them."""
        found = self.node.services.partitions.get(topic, partition)
        assert found is not None
        batch = build_batch(
            [
                Record(
                    offset=index, timestamp=self.runtime.time_ms(), key=None, value=b"x" * size, headers=[]
                )
                for index in range(records)
            ]
        )
        offset = found.append(memoryview(batch)).base_offset
        return offset.to_bytes(8, "big") + batch[8:12] + found.leader_epoch.to_bytes(4, "big") + batch[16:]

    def delete_records(self, topic: str, partition: int, offset: int) -> None:
        wanted = DeleteRecordsPartition(partition_index=partition, offset=offset)
        topics = [DeleteRecordsTopic(name=topic, partitions=[wanted])]
        self.ask(DELETE_RECORDS, 2, DeleteRecordsRequest(topics=topics, timeout_ms=1000))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("logs"))
    yield broker
    broker.node.stop()


def fetch_request(
    topic: str,
    wanted: dict[int, int],
    *,
    session_id: int = 0,
    epoch: int = 0,
    forget: list[int] | None = None,
    max_bytes: int = 1 << 20,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
) -> FetchRequest:
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index, offset in wanted.items()
    ]
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic=topic, partitions=partitions)] if partitions else [],
        forgotten_topics_data=[ForgottenTopic(topic=topic, partitions=forget)] if forget else [],
    )


class Answered(NamedTuple):
    """What an answer says of one partition."""

    partition: int
    error: int
    high_watermark: int
    log_start_offset: int
    records: bytes


def records_of(one: Any) -> bytes:
    """Few are copied into the answer, more are regions of files."""
    records = one.records or b""
    return records if isinstance(records, bytes) else b"".join(region.read() for region in records)


def answered_in(answer: Any) -> list[Answered]:
    return [
        Answered(
            one.partition_index,
            one.error_code,
            one.high_watermark,
            one.log_start_offset,
            records_of(one),
        )
        for topic in answer.responses
        for one in topic.partitions
    ]


# -- sessions against the model


class ModelLog:
    def __init__(self) -> None:
        self.start = 0
        self.batches: list[tuple[int, int, bytes]] = []  # first offset, next offset, bytes

    @property
    def end(self) -> int:
        return self.batches[-1][1] if self.batches else 0

    def read(self, offset: int, room: int, min_one: bool) -> bytes:
        data = b""
        for _, next_offset, batch in self.batches:
            if next_offset > offset:
                data += batch
        if len(data) <= room:
            return data
        first = next(len(batch) for _, next_offset, batch in self.batches if next_offset > offset)
        return data[:room] if first <= room else data[:first] if min_one else b""


class ModelSession:
    """Every partition is looked at, at every request."""

    def __init__(self) -> None:
        self.wanted: dict[int, int] = {}  # partition -> offset, in the order of turns
        self.known: dict[int, tuple[int, int]] = {}  # partition -> high watermark and start, as last sent

    def fetch(
        self, logs: list[ModelLog], wanted: dict[int, int], forget: list[int], room: int
    ) -> list[Answered]:
        for partition, offset in wanted.items():
            self.wanted[partition] = offset
            self.known.setdefault(partition, (-1, -1))
        for partition in forget:
            self.wanted.pop(partition, None)
            self.known.pop(partition, None)
        found = [self._look(logs, partition, offset) for partition, offset in self.wanted.items()]
        read = []
        size = 0
        for one in found:
            if one.error == 0:
                log = logs[one.partition]
                records = log.read(self.wanted[one.partition], max(0, room - size), size == 0)
                size += len(records)
                one = one._replace(records=records)
            read.append(one)
        answer = []
        for one in read:
            if one.records:
                self.wanted[one.partition] = self.wanted.pop(one.partition)
            if one.records or one.error or self.known[one.partition] != one[2:4]:
                answer.append(one)
            self.known[one.partition] = (-1 if one.error else one.high_watermark, one.log_start_offset)
        return answer

    def _look(self, logs: list[ModelLog], partition: int, offset: int) -> Answered:
        if partition >= len(logs):
            return Answered(partition, 3, -1, -1, b"")
        log = logs[partition]
        if not log.start <= offset <= log.end:
            return Answered(partition, 1, -1, -1, b"")
        return Answered(partition, 0, log.end, log.start, b"")


partition_numbers = st.integers(0, PARTITIONS)  # the last one does not exist
steps = st.one_of(
    st.tuples(st.just("append"), st.integers(0, PARTITIONS - 1), st.integers(1, 3)),
    st.tuples(st.just("start"), st.integers(0, PARTITIONS - 1), st.integers(0, 100)),
    st.tuples(
        st.just("fetch"),
        st.dictionaries(partition_numbers, st.integers(-1, 6), max_size=2),
        st.lists(partition_numbers, max_size=1),
        st.sampled_from([1, 150, 300, 1 << 20]),
    ),
    st.tuples(st.just("read on"), st.sampled_from([1, 150, 300, 1 << 20])),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=40))
def test_a_session_answers_as_if_it_looked_at_everything(broker: Broker, script: list[Any]) -> None:
    topic = broker.create_topic(PARTITIONS)
    logs = [ModelLog() for _ in range(PARTITIONS)]
    model = ModelSession()
    everything = dict.fromkeys(range(PARTITIONS), 0)
    answer = broker.ask(FETCH, VERSION, fetch_request(topic, everything))
    model.fetch(logs, everything, [], 1 << 20)
    session_id, epoch = answer.session_id, 1
    last: list[Answered] = []
    for step, *rest in script:
        if step == "append":
            partition, records = rest
            log = logs[partition]
            log.batches.append((log.end, log.end + records, broker.append(topic, partition, records)))
            continue
        if step == "start":
            partition, share = rest
            log = logs[partition]
            log.start = max(log.start, log.end * share // 100)
            broker.delete_records(topic, partition, log.start)
            log.batches = [batch for batch in log.batches if batch[1] > log.start] or log.batches[-1:]
            continue
        if step == "read on":  # as a client does: from behind what it was given
            wanted, forget, room = {}, [], rest[0]
            for one in last:
                if one.records and one.partition in model.wanted:
                    wanted[one.partition] = logs[one.partition].end
        else:
            wanted, forget, room = rest
        if not {*model.wanted, *wanted} - set(forget):
            continue  # the session would end
        request = fetch_request(
            topic, wanted, session_id=session_id, epoch=epoch, forget=forget, max_bytes=room
        )
        answer = broker.ask(FETCH, VERSION, request)
        last = answered_in(answer)
        assert last == model.fetch(logs, wanted, forget, room)
        assert (answer.error_code, answer.session_id) == (0, session_id)
        epoch += 1
    broker.node.services.fetch_sessions.remove(session_id)
    for partition in range(PARTITIONS):
        found = broker.node.services.partitions.get(topic, partition)
        assert found is not None
        assert not found.fetch_waiters, "a closed session is not notified"
    broker.delete_topic(topic)


def test_a_fetch_in_a_session_looks_at_what_changed_only(broker: Broker) -> None:
    topic = broker.create_topic(1000)
    answer = broker.ask(FETCH, VERSION, fetch_request(topic, dict.fromkeys(range(1000), 0)))
    assert len(answered_in(answer)) == 1000
    session = broker.node.services.fetch_sessions.get(answer.session_id)
    assert session is not None
    for epoch, partition in enumerate((7, 999, 7), start=1):
        broker.append(topic, partition)
        broker.append(topic, partition)
        assert [one.wanted.partition for one in session.to_read()] == [partition]
        request = fetch_request(topic, {}, session_id=session.id, epoch=epoch * 2 - 1)
        answered = answered_in(broker.ask(FETCH, VERSION, request))
        assert [one.partition for one in answered] == [partition]
        at_end = {partition: answered[0].high_watermark}
        request = fetch_request(topic, at_end, session_id=session.id, epoch=epoch * 2)
        assert answered_in(broker.ask(FETCH, VERSION, request)) == []
        assert session.to_read() == []
    broker.node.services.fetch_sessions.remove(session.id)


# -- waiting


def made_session(broker: Broker, topic: str, partitions: int) -> int:
    answer = broker.ask(FETCH, VERSION, fetch_request(topic, dict.fromkeys(range(partitions), 0)))
    return int(answer.session_id)


def test_what_comes_while_the_woken_fetch_of_a_new_session_reads_the_disk_is_not_missed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create_topic(3)
    broker.append(topic, 0)
    request = fetch_request(topic, dict.fromkeys(range(3), 0), min_bytes=1000, max_wait_ms=60_000)
    reply = broker.send(FETCH, VERSION, request)
    cold = [True]
    read = Log.read

    def read_cold(log: Log, *arguments: Any, **named: Any) -> Any:
        if cold.pop() if cold else False:
            raise WouldWait(lambda: broker.append(topic, 2))  # in the meantime
        return read(log, *arguments, **named)

    monkeypatch.setattr(Log, "read", read_cold)
    broker.append(topic, 1, size=1000)
    broker.runtime.run_until_idle()
    assert not cold
    assert {one.partition for one in answered_in(reply.answer) if one.records} == {0, 1, 2}
    broker.node.services.fetch_sessions.remove(reply.answer.session_id)


def test_a_session_that_waits_is_woken_by_min_bytes(broker: Broker) -> None:
    topic = broker.create_topic(3)
    session_id = made_session(broker, topic, 3)
    request = fetch_request(topic, {}, session_id=session_id, epoch=1, max_wait_ms=1000, min_bytes=300)
    reply = broker.send(FETCH, VERSION, request)
    for partition in (0, 1, 1):
        broker.append(topic, partition)
        broker.runtime.run_until_idle()
        assert reply.answer is None
    broker.append(topic, 2, size=100)
    broker.runtime.run_until_idle()
    assert [(one.partition, one.high_watermark) for one in answered_in(reply.answer)] == [
        (0, 1),
        (1, 2),
        (2, 1),
    ]


def test_what_was_there_before_the_wait_counts_and_is_answered(broker: Broker) -> None:
    topic = broker.create_topic(2)
    session_id = made_session(broker, topic, 2)
    first = broker.append(topic, 0)
    request = fetch_request(
        topic, {}, session_id=session_id, epoch=1, max_wait_ms=1000, min_bytes=len(first) + 1
    )
    reply = broker.send(FETCH, VERSION, request)
    assert reply.answer is None
    second = broker.append(topic, 0)
    broker.runtime.run_until_idle()
    assert [one.records for one in answered_in(reply.answer)] == [first + second]


def test_a_wait_ends_with_max_wait(broker: Broker) -> None:
    topic = broker.create_topic(2)
    session_id = made_session(broker, topic, 2)
    request = fetch_request(topic, {}, session_id=session_id, epoch=1, max_wait_ms=1000)
    reply = broker.send(FETCH, VERSION, request)
    broker.runtime.advance(0.99)
    assert reply.answer is None
    broker.runtime.advance(0.02)
    assert answered_in(reply.answer) == []
    answer: Any = reply.answer
    assert answer.session_id == session_id


def test_a_request_that_overtakes_a_waiting_one_of_its_session(broker: Broker) -> None:
    topic = broker.create_topic(1)
    session_id = made_session(broker, topic, 1)
    early = broker.send(
        FETCH, VERSION, fetch_request(topic, {}, session_id=session_id, epoch=1, max_wait_ms=5000)
    )
    late = broker.send(
        FETCH, VERSION, fetch_request(topic, {}, session_id=session_id, epoch=2, max_wait_ms=5000)
    )
    broker.runtime.run_until_idle()
    assert early.answer.error_code == INVALID_EPOCH
    assert late.answer is None
    broker.append(topic, 0)
    broker.runtime.run_until_idle()
    assert [one.high_watermark for one in answered_in(late.answer)] == [1]


@pytest.mark.parametrize("named", [{}, {0: 0}])
def test_closing_a_session_answers_its_waiting_fetch(broker: Broker, named: dict[int, int]) -> None:
    topic = broker.create_topic(1)
    session_id = made_session(broker, topic, 1)
    waiting = broker.send(
        FETCH, VERSION, fetch_request(topic, named, session_id=session_id, epoch=1, max_wait_ms=5000)
    )
    broker.ask(FETCH, VERSION, fetch_request(topic, {}, session_id=session_id, epoch=-1))
    broker.runtime.run_until_idle()
    assert waiting.answer is not None
    answer = broker.ask(FETCH, VERSION, fetch_request(topic, {}, session_id=session_id, epoch=2))
    assert answer.error_code == NOT_FOUND
    partition = broker.node.services.partitions.get(topic, 0)
    assert partition is not None
    assert not partition.fetch_waiters, "it has no waiter"


def test_a_client_that_leaves_takes_its_wait_along(broker: Broker) -> None:
    topic = broker.create_topic(1)
    session_id = made_session(broker, topic, 1)
    waiting = broker.send(
        FETCH, VERSION, fetch_request(topic, {}, session_id=session_id, epoch=1, max_wait_ms=5000)
    )
    before = broker.node.services.purgatory.waiting
    waiting.closed = True
    assert waiting.disconnected is not None
    waiting.disconnected()
    assert broker.node.services.purgatory.waiting == before - 1
    broker.append(topic, 0)
    broker.runtime.run_until_idle()
    assert waiting.answer is None
    again = broker.ask(FETCH, VERSION, fetch_request(topic, {}, session_id=session_id, epoch=2))
    assert [one.high_watermark for one in answered_in(again)] == [1]


def test_deleting_a_topic_wakes_those_who_wait_for_it(broker: Broker) -> None:
    topic = broker.create_topic(1)
    session_id = made_session(broker, topic, 1)
    plain = broker.send(FETCH, VERSION, fetch_request(topic, {0: 0}, epoch=-1, max_wait_ms=5000))
    waiting = broker.send(
        FETCH, VERSION, fetch_request(topic, {}, session_id=session_id, epoch=1, max_wait_ms=5000)
    )
    broker.delete_topic(topic)
    assert [one.error for one in answered_in(plain.answer)] == [3]
    assert [one.error for one in answered_in(waiting.answer)] == [3]


def test_a_full_fetch_that_waited_has_all_partitions_and_the_new_records(broker: Broker) -> None:
    topic = broker.create_topic(3)
    first = broker.append(topic, 0)
    reply = broker.send(
        FETCH, VERSION, fetch_request(topic, {0: 0, 1: 0, 2: 0}, epoch=-1, max_wait_ms=5000, min_bytes=150)
    )
    assert reply.answer is None
    second = broker.append(topic, 2)
    broker.runtime.run_until_idle()
    answered = [(one.partition, one.high_watermark, one.records) for one in answered_in(reply.answer)]
    assert answered == [(0, 1, first), (1, 0, b""), (2, 1, second)]
    answer: Any = reply.answer
    assert answer.session_id == 0


# -- the cache


class ModelCache:
    """Kafka's FetchSessionCache, looking at every session each time."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.sessions: dict[int, list[Any]] = {}  # id -> [privileged, size, created, used], by last use

    def add(self, session_id: int, privileged: bool, size: int, now: int) -> bool:
        if len(self.sessions) >= self.slots and not self._evict((privileged, size, 0), now):
            return False
        self.sessions[session_id] = [privileged, size, now, now]
        return True

    def _evict(self, proposed: tuple[bool, int, int], now: int) -> bool:
        if not self.sessions:
            return False
        oldest = next(iter(self.sessions))
        if now - self.sessions[oldest][3] > EVICTION_MS:
            del self.sessions[oldest]
            return True
        evictable = sorted(
            (privileged, size, session_id)
            for session_id, (privileged, size, created, used) in self.sessions.items()
            if used - created > EVICTION_MS or (proposed[0] and not privileged)
        )
        if not evictable or proposed < evictable[0]:
            return False
        del self.sessions[evictable[0][2]]
        return True

    def touch(self, session_id: int, now: int) -> None:
        session = self.sessions.pop(session_id)
        session[3] = now
        self.sessions[session_id] = session


@given(
    st.integers(0, 4),
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.booleans(), st.integers(0, 3)),
            st.tuples(st.just("touch"), st.integers(0, 5)),
            st.tuples(st.just("remove"), st.integers(0, 5)),
            st.tuples(st.just("pass"), st.sampled_from([1, 60, 119, 121])),
        ),
        max_size=50,
    ),
)
def test_the_cache_evicts_as_kafka_does(slots: int, script: list[Any]) -> None:
    runtime = VirtualRuntime()
    cache = FetchSessionCache(runtime, slots)
    model = ModelCache(slots)
    for step, *rest in script:
        now = round(runtime.monotonic() * 1000)
        if step == "add":
            privileged, size = rest
            session = FetchSession(False, 1 if privileged else -1, False)
            for index in range(size):
                session.add("t", bytes(16), FetchPartition(partition=index))
            added = cache.make_room(privileged, size)
            if added:
                cache.add(session)
            assert model.add(session.id, privileged, size, now) == added
        elif step == "pass":
            runtime.advance(rest[0])
        elif model.sessions:
            session_id = sorted(model.sessions)[rest[0] % len(model.sessions)]
            known = cache.get(session_id)
            assert known is not None
            if step == "touch":
                cache.touch(known)
                model.touch(session_id, now)
            else:
                cache.remove(session_id)
                del model.sessions[session_id]
        assert len(cache) == len(model.sessions)
        assert all(cache.get(session_id) is not None for session_id in model.sessions)


def test_without_a_slot_the_answer_has_no_session(tmp_path: Path) -> None:
    broker = Broker(tmp_path, **{"max.incremental.fetch.session.cache.slots": "1"})
    topic = broker.create_topic(2)
    first = made_session(broker, topic, 1)
    assert first
    answer = broker.ask(FETCH, VERSION, fetch_request(topic, {0: 0, 1: 0}))
    assert (answer.error_code, answer.session_id) == (0, 0)
    assert len(answered_in(answer)) == 2
    broker.runtime.advance(EVICTION_MS / 1000 + 1)
    second = made_session(broker, topic, 2)
    assert second not in (0, first)
    answer = broker.ask(FETCH, VERSION, fetch_request(topic, {}, session_id=first, epoch=1))
    assert answer.error_code == NOT_FOUND
    broker.node.stop()


def test_the_sessions_of_clients_hold_so_many_partitions_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.broker.fetch.sessions.CLIENT_PARTITIONS_MAX", 5)
    broker = Broker(tmp_path)
    topic = broker.create_topic(PARTITIONS)
    first, second = made_session(broker, topic, 3), made_session(broker, topic, 2)
    assert first
    assert second
    assert made_session(broker, topic, 1) == 0, "the client goes on without a session"
    grown = broker.ask(FETCH, VERSION, fetch_request(topic, {3: 0}, session_id=second, epoch=1))
    assert grown.error_code == NOT_FOUND
    assert made_session(broker, topic, 2), "it has made room"
    known = broker.ask(FETCH, VERSION, fetch_request(topic, {0: 0, 1: 0}, session_id=first, epoch=1))
    assert known.error_code == 0, "what it names again it has already"
    broker.runtime.advance(EVICTION_MS / 1000 + 1)
    assert made_session(broker, topic, 4), "of those that are not used as many go as it takes"
    broker.node.stop()


def test_a_session_has_a_partition_once_that_a_request_names_often(broker: Broker) -> None:
    topic = broker.create_topic(PARTITIONS)
    request = fetch_request(topic, {0: 0})
    request.topics[0].partitions *= 100
    session_id = broker.ask(FETCH, VERSION, request).session_id
    session = broker.node.services.fetch_sessions.get(session_id)
    assert session is not None
    assert len(session.partitions) == 1
    assert len(session.active) <= 1


def test_a_session_holds_no_more_partitions_than_a_request_may_name() -> None:
    leader = Leader("/d", MemoryDisk())
    leader.create(replicas=[1], isr=[1])

    def fetch(session: int, epoch: int, topic: int) -> tuple[int, int]:
        partitions = [FetchPartition(index, -1, 0, partition_max_bytes=1) for index in range(10_000)]
        request = FetchRequest(max_wait_ms=0, min_bytes=1, session_id=session, session_epoch=epoch)
        request.topics = [FetchTopic("", topic.to_bytes(16, "big"), partitions)]
        answer = leader.ask(1, 17, request).answer
        assert answer is not None
        return answer.error_code, answer.session_id

    error, session = fetch(0, 0, 1)
    assert (error, session != 0) == (0, True)
    # Each empty request of a session of 190,000 partitions that do not exist takes 1.6 s, and is answered with 7 MB.
    assert fetch(session, 1, 2)[0] == E.FETCH_SESSION_ID_NOT_FOUND
