"""Which acknowledgements are sent, when, and what they say; over real partitions of one and of three replicas."""

from __future__ import annotations

import errno
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.partitions.partition import Partition
from barnabas.broker.tests.coordinator_world import World, batch
from barnabas.broker.tests.replicas import Replicas
from barnabas.nats.client.errors import NotConnected
from barnabas.nats.ingress.acks import AckStats, PendingAcks
from barnabas.nats.ingress.expectations import TTL_DISABLED
from barnabas.nats.pub_ack import ACK_ALL, ACK_LEADER, NO_ACK, PubAckBytes, ack_level
from barnabas.wire.errors import ErrorCode
from barnabas.wire.records import Record, build_batch


class Publisher:
    """Takes the answers, as a server would, until it `is_gone`."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Any]] = []
        self.sizes: list[int] = []  # how many at a time
        self.is_gone = False
        self.now_s = 100.0

    def send(self, data: bytes, count: int) -> None:
        if self.is_gone:
            raise NotConnected
        self.sizes.append(count)
        for _ in range(count):
            head, _, data = data.partition(b"\r\n")
            verb, subject, size = head.split(b" ")
            payload, data = data[: int(size)], data[int(size) :]
            assert (verb, data[:2]) == (b"PUB", b"\r\n")
            data = data[2:]
            self.sent.append((subject, json.loads(payload)))
        assert data == b""

    def acks(self, partition: Partition) -> PendingAcks:
        return PendingAcks(partition, self.send, AckStats(), lambda: self.now_s)

    @property
    def sequences(self) -> list[tuple[bytes, int]]:
        return [(subject, answer["seq"]) for subject, answer in self.sent]


def three(number: int = 0) -> bytes:
    return build_batch(
        [
            Record(offset=each, timestamp=1_700_000_000_000, key=b"k", value=b"%d" % number)
            for each in range(3)
        ]
    )


# -- which


@pytest.mark.parametrize(
    ("mode", "reply", "asked", "expected"),
    [
        ("off", b"r", b"all", NO_ACK),
        ("header", b"r", None, NO_ACK),
        ("header", b"r", b"all", ACK_ALL),
        ("header", b"r", b"leader", ACK_LEADER),
        ("header", b"r", b"  ALL", ACK_ALL),
        ("header", b"r", b"-1", ACK_ALL),
        ("header", b"r", b"1", ACK_LEADER),
        ("header", b"r", b"0", NO_ACK),
        ("header", b"r", b"whatever", ACK_ALL),
        ("header", b"r", b"", ACK_ALL),
        ("header", b"", b"all", NO_ACK),
        ("header", b"$JS.ACK.s.c.1.2.3", b"all", NO_ACK),
        ("reply", b"", None, NO_ACK),
        ("reply", b"r", None, ACK_ALL),
        ("reply", b"r", b"leader", ACK_LEADER),
        ("reply", b"r", b"None", NO_ACK),
        ("reply", b"$JS.ACK.s.c.1.2.3", None, NO_ACK),
        ("reply", b"$KV.prices.tea", None, NO_ACK),
        ("reply", b"$JS.API.STREAM.PURGE.S", b"leader", NO_ACK),
        ("header", b"$KV.prices.tea", b"all", NO_ACK),
        ("reply", b"a.$JS.ACK", None, ACK_ALL),
    ],
)
def test_which_acknowledgement_a_message_asks_for(
    mode: str, reply: bytes, asked: bytes | None, expected: int
) -> None:
    assert ack_level(mode)(reply, asked) == expected


# -- what


@given(
    st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True),
    st.integers(0, 9999),
    st.integers(0, (1 << 63) - 2),
)
def test_the_answer_is_a_pub_ack(topic: str, partition: int, offset: int) -> None:
    answers = PubAckBytes(topic, partition)
    expected = {"stream": topic, "partition": partition, "seq": offset + 1}
    assert json.loads(answers.stored(offset)) == expected
    assert json.loads(answers.duplicate(offset)) == expected | {"duplicate": True}


def test_an_error_has_the_fields_that_clients_know() -> None:
    answers = PubAckBytes("orders", 3)
    assert json.loads(answers.failed(ErrorCode.MESSAGE_TOO_LARGE, 'of "1" byte')) == {
        "error": {"code": 400, "err_code": 10054, "description": 'MESSAGE_TOO_LARGE: of "1" byte'},
        "stream": "orders",
        "partition": 3,
        "seq": 0,
    }
    assert json.loads(answers.failed(ErrorCode.UNKNOWN_SERVER_ERROR))["error"] == {
        "code": 503,
        "err_code": 10077,
        "description": "UNKNOWN_SERVER_ERROR",
    }
    assert len(answers.failed(ErrorCode.INVALID_RECORD, "x" * 100_000)) < 1000


# -- when, with one replica


def test_acknowledgements_of_one_replica_are_sent_at_once() -> None:
    partition, publisher = World([1]).partition(), Publisher()
    partition.append(batch(0))
    result = partition.append(three())
    acks = publisher.acks(partition)
    owed = [
        (0, b"a", ACK_ALL, False),
        (1, b"b", ACK_LEADER, False),
        (1, b"c", ACK_ALL, True),
        (2, b"d", ACK_ALL, False),
    ]
    publisher.now_s = 101.5
    acks.appended(result, owed, 100.0)
    assert sorted(publisher.sequences) == [(b"a", 2), (b"b", 3), (b"c", 3), (b"d", 4)]
    assert [subject for subject, answer in publisher.sent if answer.get("duplicate")] == [b"c"]
    assert acks.waiting == 0
    stats = acks.stats
    assert (stats.sent, stats.duplicates, stats.unsent, stats.latency_s) == (4, 1, 0, 1.5)


def test_an_append_that_awaits_a_sync_is_acknowledged_after_it() -> None:
    world, publisher = World([1]), Publisher()
    partition = world.partition()
    partition.log.update_config(type(partition.log.config).from_properties({"flush.messages": "1"}))
    result = partition.append(three())
    assert result.awaits_sync
    acks = publisher.acks(partition)
    acks.appended(result, [(0, b"a", ACK_LEADER, False), (1, b"b", ACK_ALL, False)], 100.0)
    acks.repeated(0, b"c", ACK_LEADER)
    acks.repeated(1, b"d", ACK_ALL)
    assert publisher.sent == []
    assert acks.waiting == 4
    world.storage_runtime.run_until_idle()
    assert sorted(publisher.sequences) == [(b"a", 1), (b"b", 2), (b"c", 1), (b"d", 2)]
    acks.repeated(0, b"e", ACK_LEADER)
    assert publisher.sequences[-1] == (b"e", 1)


def test_a_sync_that_fails_is_an_error() -> None:
    world, publisher = World([1]), Publisher()
    partition = world.partition()
    partition.log.update_config(type(partition.log.config).from_properties({"flush.messages": "1"}))
    result = partition.append(three())
    acks = publisher.acks(partition)
    acks.appended(result, [(0, b"a", ACK_LEADER, False), (1, b"b", ACK_ALL, False)], 100.0)
    world.disk.fault = lambda operation, _path: errno.EIO if operation == "sync" else None
    world.storage_runtime.run_until_idle()
    assert [answer["error"]["description"].split(":")[0] for _, answer in publisher.sent] == [
        "KAFKA_STORAGE_ERROR"
    ] * 2


# -- when, with three


def test_all_is_acknowledged_at_the_high_watermark() -> None:
    replicas, publisher = Replicas(leader=1), Publisher()
    replicas.run(1)
    partition = replicas[1].partition
    acks = publisher.acks(partition)
    for number in range(2):
        result = partition.append(three(number))
        owed = [(0, b"a%d" % number, ACK_ALL, False), (1, b"b%d" % number, ACK_LEADER, False)]
        acks.appended(result, owed, 100.0)
    acks.repeated(0, b"c", ACK_ALL)
    acks.repeated(0, b"d", ACK_LEADER)
    assert publisher.sequences == [(b"b0", 2), (b"b1", 5), (b"d", 1)]
    assert acks.waiting == 3
    replicas.run(1)
    assert publisher.sequences[3:] == [(b"a0", 1), (b"c", 1), (b"a1", 4)]
    assert acks.waiting == 0


def test_a_leader_that_steps_down_sends_no_acknowledgement() -> None:
    replicas, publisher = Replicas(leader=1), Publisher()
    replicas.run(1)
    partition = replicas[1].partition
    acks = publisher.acks(partition)
    result = partition.append(three())
    acks.appended(result, [(0, b"a", ACK_ALL, False), (2, b"b", ACK_ALL, False)], 100.0)
    replicas.elect(2)
    replicas.run(1)
    acks.fail_all([(0, b"c", ACK_ALL, False)], ErrorCode.NOT_LEADER_OR_FOLLOWER)
    acks.repeated(0, b"d", ACK_ALL)
    assert publisher.sent == []
    assert acks.stats == AckStats(withheld=4)
    assert acks.waiting == 0


def test_messages_for_all_are_refused_before_the_append_below_min_isr() -> None:
    replicas, publisher = Replicas(leader=1, min_insync_replicas="2"), Publisher()
    replicas.run(1)
    partition = replicas[1].partition
    acks = publisher.acks(partition)
    assert not acks.refuses_all()
    replicas.elect(1, isr=[1])
    assert acks.refuses_all()
    acks.refuse_for_replicas(b"a")
    acks.refuse_for_replicas(b"")
    assert [answer["error"]["description"].split(":")[0] for _, answer in publisher.sent] == [
        "NOT_ENOUGH_REPLICAS"
    ]
    assert publisher.sent[0][1]["error"]["code"] == 503
    replicas.run(1)  # the others follow, and come back
    assert not acks.refuses_all()


def test_a_partition_with_one_replica_refuses_no_message() -> None:
    assert not Publisher().acks(World([1]).partition()).refuses_all()


# -- what goes wrong


def test_acknowledgements_without_a_connection_are_counted() -> None:
    partition, publisher = World([1]).partition(), Publisher()
    publisher.is_gone = True
    acks = publisher.acks(partition)
    owed = [(each, reply, ACK_ALL, False) for each, reply in enumerate((b"a", b"b", b"c"))]
    acks.appended(partition.append(three()), owed, 100.0)
    acks.fail(b"d", ErrorCode.INVALID_RECORD)
    assert (acks.stats.sent, acks.stats.unsent, acks.stats.refused, acks.waiting) == (0, 4, 0, 0)


def test_many_acknowledgements_are_sent_together() -> None:
    partition, publisher = World([1]).partition(), Publisher()
    acks = publisher.acks(partition)
    owed = [(each % 3, b"r%d" % each, ACK_ALL, False) for each in range(1200)]
    acks.appended(partition.append(three()), owed, 100.0)
    assert publisher.sequences == [(reply, place + 1) for place, reply, _, _ in owed]
    assert publisher.sizes == [512, 512, 176]
    assert acks.stats.sent == 1200


def test_waiting_acknowledgements_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("barnabas.nats.ingress.acks.WAITING_MAX", 2)
    replicas, publisher = Replicas(leader=1), Publisher()
    replicas.run(1)
    acks = publisher.acks(replicas[1].partition)
    for number in range(3):
        acks.appended(replicas[1].partition.append(three()), [(0, b"%d" % number, ACK_ALL, False)], 100.0)
    replicas.run(1)
    assert publisher.sequences == [(b"0", 1), (b"1", 4)]
    assert acks.stats.unsent == 1
    assert "2 acknowledgements wait" in caplog.text


def test_refusals_without_a_reply_subject_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    publisher = Publisher()
    acks = publisher.acks(World([1]).partition())
    with caplog.at_level(logging.WARNING, "barnabas.nats"):
        for now_s in (100.0, 101.0, 170.0):
            publisher.now_s = now_s
            acks.refuse(b"", TTL_DISABLED)
    assert acks.stats == AckStats(refused_unanswered=3)
    assert [record.getMessage().split("(")[1] for record in caplog.records] == [
        "1 such messages of this topic so far)",
        "3 such messages of this topic so far)",
    ]
    acks.refuse(b"r", TTL_DISABLED)
    assert publisher.sent[0][1]["error"]["err_code"] == 10166
