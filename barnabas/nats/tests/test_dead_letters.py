"""Records of messages that were not stored: whatever was in the message is in them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.extension import host_of
from barnabas.broker.tests.replicas import Replicas
from barnabas.nats.binding.binding import Binding
from barnabas.nats.carrier import CarrierStats
from barnabas.nats.dead_letters import (
    LETTER_BYTES,
    DeadLetters,
    record_of_message,
    record_of_tail,
)
from barnabas.nats.ingress.backpressure import Budget
from barnabas.nats.records.encoder import Encoder
from barnabas.nats.records.keys import compile_key
from barnabas.nats.records.partitioners import compile_partitioner
from barnabas.nats.remote_producer import RemoteProducer
from barnabas.nats.tests.header_blocks import format_headers
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode

BINDING = Binding("orders", dead_letter_topic="t")
_NAMES = st.text("abcXYZ-", min_size=1, max_size=8).map(str.encode)
_VALUES = st.binary(max_size=20).map(lambda value: value.replace(b"\r", b"").replace(b"\n", b"").strip())


@given(
    st.sampled_from([b"a", b"a.b.c"]),
    st.sampled_from([b"", b"reply.to"]),
    st.lists(st.tuples(_NAMES, _VALUES), max_size=4),
    st.binary(max_size=300),
)
def test_records_of_messages_and_of_tails_are_alike(
    subject: bytes, reply: bytes, headers: list[tuple[bytes, bytes]], payload: bytes
) -> None:
    block = format_headers(headers) if headers else b""

    def unused(*_arguments: object) -> None:
        raise AssertionError

    encoder = Encoder(
        compile_key("subject"),
        compile_partitioner("murmur2", 3),
        3,
        {},
        special=unused,
        refused=unused,
    )
    encoded = encoder.encode(subject, reply, block, payload)
    assert encoded is not None
    from_tail = record_of_tail(encoded[2], 77)
    assert from_tail == record_of_message(subject, reply, block, payload, 77)
    assert (from_tail.key, from_tail.value, from_tail.timestamp) == (subject, payload, 77)


def test_malformed_header_blocks_are_kept_whole() -> None:
    record = record_of_message(b"a", b"", b"no headers", b"x", 0)
    assert record.headers == [("nats.subject", b"a"), ("nats.headers.raw", b"no headers")]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 80))))
def test_a_budget_is_full_from_its_limit_on_until_half_of_it(changes: list[tuple[str, int]]) -> None:
    told: list[bool] = []
    budget = Budget(100, told.append)
    sizes: dict[str, int] = {}
    is_full = False
    for who, size in changes:
        budget.note(who, size)
        sizes[who] = size
        total = sum(sizes.values())
        before = is_full
        is_full = total > 50 if is_full else total > 100
        assert told[-1:] == ([is_full] if told or before != is_full else [])
        if told:
            assert told[-1] == is_full
    assert all(first != second for first, second in pairwise(told))


def test_waiting_letters_count_by_size_and_are_retried_with_backoff(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replicas = Replicas(ids=(1, 2))
    replicas.elect(-1, [1])
    fullness: list[bool] = []
    stats = CarrierStats()
    count = 65
    budget = Budget((count - 1) * LETTER_BYTES, fullness.append)
    letters = DeadLetters(host_of(replicas[1].node.services, MemoryDisk(), "/"), BINDING, stats, budget)
    sent = 0
    send = RemoteProducer.produce

    def counted(self: RemoteProducer, *arguments: Any) -> None:
        nonlocal sent
        sent += 1
        send(self, *arguments)

    monkeypatch.setattr(RemoteProducer, "produce", counted)
    answers: list[ErrorCode] = []
    for _ in range(count):
        letters.put_message(
            (b"a", b"", b"", b"x"),
            ErrorCode.INVALID_REQUEST,
            "why",
            lambda error, _why: answers.append(error),
            "orders",
        )
    assert fullness == [True]
    replicas.run(20)
    assert 5 * count < sent < 12 * count
    assert not answers
    replicas.elect(1)
    replicas.run(5)
    assert fullness == [True, False]
    assert stats.dead_letters == len(replicas[1].messages) == count
    assert answers == [ErrorCode.INVALID_REQUEST] * count


def test_waiting_letters_are_refused_when_their_topic_is_unset() -> None:
    replicas = Replicas(ids=(1, 2))
    replicas.elect(-1, [1])
    fullness: list[bool] = []
    stats = CarrierStats()
    letters = DeadLetters(
        host_of(replicas[1].node.services, MemoryDisk(), "/"), BINDING, stats, Budget(100, fullness.append)
    )
    answers: list[ErrorCode] = []

    def put() -> None:
        letters.put_message(
            (b"a", b"", b"", b"x"),
            ErrorCode.INVALID_REQUEST,
            "why",
            lambda error, _why: answers.append(error),
            "orders",
        )

    put()
    assert fullness == [True]
    letters.rebind(Binding("orders"))
    replicas.run(5)
    assert fullness == [True, False]
    assert answers == [ErrorCode.INVALID_REQUEST]
    assert stats.refused == 1
    letters.rebind(BINDING)
    put()
    letters.close()
    replicas.run(5)
    assert fullness == [True, False, True, False]
    assert len(answers) == 1
