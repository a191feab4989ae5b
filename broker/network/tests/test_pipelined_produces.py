"""Produces behind a produce that waits for replicas are served; every answer goes out in the order of the requests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.tests.leader import Leader
from barnabas.broker.tests.virtual_client import Client
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode as E


@pytest.fixture
def leader() -> Leader:
    made = Leader("/d", MemoryDisk())
    made.register(2)
    made.create(replicas=[1, 2], partitions=2)
    for index in range(2):
        made.follower(2).fetch(0, index=index)
    return made


def fetch(leader: Leader, offset: int, index: int = 0) -> None:
    leader.follower(2).fetch(offset, index=index)
    leader.runtime.advance(0.01)


def test_what_waits_for_replicas_keeps_no_produce_from_being_served(leader: Leader) -> None:
    client = Client(leader)
    client.send(b"".join(client.produce(str(number)) for number in range(5)))
    assert leader.partition().log.log_end_offset == 5
    assert client.answers == []
    fetch(leader, 2)
    assert client.order == [1, 2]
    fetch(leader, 5)
    assert client.order == [1, 2, 3, 4, 5]
    assert client.errors() == [0] * 5


def test_what_is_committed_first_is_answered_in_turn(leader: Leader) -> None:
    client = Client(leader)
    client.send(client.produce("a") + client.produce("b", index=1) + client.produce("c", acks=1))
    fetch(leader, 1, index=1)
    assert client.order == [], "the first one waits"
    fetch(leader, 2)
    assert client.order == [1, 2, 3]


def test_another_request_waits_until_all_is_answered(leader: Leader) -> None:
    client = Client(leader)
    client.send(client.produce("a") + client.latest() + client.produce("b"))
    assert leader.partition().log.log_end_offset == 1
    fetch(leader, 1)
    assert client.order == [1, 2]
    assert client.answers[1][1].topics[0].partitions[0].offset == 1
    assert leader.partition().log.log_end_offset == 2
    fetch(leader, 2)
    assert client.order == [1, 2, 3]


def test_the_time_of_each_is_its_own(leader: Leader) -> None:
    client = Client(leader)
    client.send(client.produce("a", timeout_ms=5000) + client.produce("b", timeout_ms=1000))
    leader.runtime.advance(2)
    assert client.answers == []
    leader.runtime.advance(4)
    assert client.order == [1, 2]
    assert client.errors() == [E.REQUEST_TIMED_OUT] * 2


def test_leadership_is_lost_while_many_wait(leader: Leader) -> None:
    client = Client(leader)
    client.send(b"".join(client.produce(str(number)) for number in range(3)))
    leader.change(leader=2)
    leader.runtime.advance(0.01)
    assert client.errors() == [E.NOT_LEADER_OR_FOLLOWER] * 3


def test_a_failure_without_acknowledgement_closes_when_its_turn_comes(leader: Leader) -> None:
    client = Client(leader)
    client.send(client.produce("a") + client.produce("b", index=9, acks=0) + client.produce("c"))
    assert not client.is_closed
    assert leader.partition().log.log_end_offset == 1, "nothing behind it is served"
    fetch(leader, 1)
    assert client.order == [1]
    assert client.is_closed


def test_a_client_disconnects_while_its_produces_wait(leader: Leader) -> None:
    client = Client(leader)
    client.send(client.produce("a") + client.produce("b"))
    client._transport.abort()
    leader.runtime.advance(0.01)
    fetch(leader, 2)
    assert leader.partition().high_watermark == 2


def test_large_batches_arrive_while_others_wait(leader: Leader) -> None:
    client = Client(leader)
    large = "x" * 900_000
    client.send(b"".join(client.produce(large) for _ in range(6)))
    leader.runtime.advance(1)
    assert leader.partition().log.log_end_offset == 6
    fetch(leader, 6)
    assert client.order == [1, 2, 3, 4, 5, 6]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.integers(0, 1), st.sampled_from([-1, -1, 1, 0])),
        st.just(("latest",)),
        st.just(("versions",)),
        st.tuples(st.just("cut"), st.integers(1, 200)),
        st.tuples(st.just("fetch"), st.integers(0, 1)),
    ),
    max_size=30,
)


@given(steps=steps)
def test_whatever_comes_is_answered_once_and_in_order(steps: list[tuple[Any, ...]]) -> None:
    """Requests arrive in pieces while followers fetch at any time; in the end everything is answered."""
    leader = Leader("/d", MemoryDisk())
    leader.register(2)
    leader.create(replicas=[1, 2], partitions=2)
    client = Client(leader)
    unsent = b""
    due: list[int] = []
    sent = [0, 0]
    for step in steps:
        match step:
            case ("produce", index, acks):
                unsent += client.produce("v", index=index, acks=acks)
                sent[index] += 1
                if acks:
                    due.append(len(client._asked))
            case ("latest",):
                unsent += client.latest()
                due.append(len(client._asked))
            case ("versions",):
                unsent += client.versions()
                due.append(len(client._asked))
            case ("cut", size):
                client.send(unsent[:size])
                unsent = unsent[size:]
            case ("fetch", index):
                fetch(leader, leader.partition(index).log.log_end_offset, index)
        assert client.order == due[: len(client.order)]
    client.send(unsent)
    for _ in range(len(steps) + 1):
        for index in range(2):
            fetch(leader, leader.partition(index).log.log_end_offset, index)
    assert client.order == due
    assert client.errors() == [0] * len(client.errors())
    assert [leader.partition(index).log.log_end_offset for index in range(2)] == sent
    leader.node.stop()
