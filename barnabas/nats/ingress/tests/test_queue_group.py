"""Members of a queue group over real partitions of three brokers, while leaders move and answers are lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.broker.cluster.producer_ids import ProducerIdAllocator
from barnabas.broker.extension import host_of
from barnabas.broker.tests.replicas import TOPIC_ID, Replicas
from barnabas.nats.binding.binding import Binding
from barnabas.nats.carrier import CarrierStats
from barnabas.nats.ingress.roles import NO_ROLES, Roles
from barnabas.nats.remote_producer import NO_OFFSET, Produced
from barnabas.nats.tests.ingests import make_ingest
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import PartitionChangeRecord

IDS_AFTER_S = 0.2  # a retry is sooner
SETTLE_S = 40.0  # longer than a request may take, and the next one after it


class Member:
    """One of the brokers, which is given messages with a reply subject each."""

    def __init__(self, replicas: Replicas, broker_id: int, **binding: Any) -> None:
        self.replica = replicas[broker_id]
        services = self.replica.node.services
        # Each broker's controller is its own here, and would hand out the same ids.
        first = 1000 * broker_id
        ids = range(first, first + 1000)
        services.producer_ids = ProducerIdAllocator(
            lambda done: services.runtime.call_later(IDS_AFTER_S, lambda: done(ids, ErrorCode.NONE))
        )
        self.answers: dict[str, dict[str, Any]] = {}
        self.fullness: list[bool] = []
        self.stats = CarrierStats()
        self.loses = 0  # so many answers of the next ones
        given = Binding("t", subjects=("a.>",), acks="reply", queue_group="g", **binding)
        self.ingest = make_ingest(
            services.runtime,
            given,
            self._answered,
            stats=self.stats,
            on_full=self.fullness.append,
            host=host_of(services, MemoryDisk(), "/"),
        )
        assert self.ingest._group is not None
        self.group = self.ingest._group
        self._send = self.group.producer.send
        self.group.producer.send = self._lose  # type: ignore[method-assign]
        self._take = self.ingest.encoder().take
        self.refresh()

    def refresh(self) -> None:
        partition = self.replica.partition
        self.ingest.serve(Roles({0: partition}, {}) if partition.is_leader else NO_ROLES)

    def take(self, *values: str, headers: bytes = b"") -> None:
        for value in values:
            self._take(b"a.b", f"r.{value}".encode(), headers, value.encode())
        self.ingest.close()

    def _lose(self, topic: str, partition: int, records: Any, done: Produced) -> None:
        if not self.loses:
            self._send(topic, partition, records, done)
            return
        self.loses -= 1
        self._send(topic, partition, records, lambda *_: done(ErrorCode.NETWORK_EXCEPTION, NO_OFFSET))

    def _answered(self, data: bytes, _count: int) -> None:
        lines = data.decode().split("\r\n")
        for line, answer in zip(lines[::2], lines[1::2], strict=False):
            value = line.split()[1].removeprefix("r.")
            assert value not in self.answers
            self.answers[value] = json.loads(answer)


STEPS = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 1), st.integers(1, 5)),
    st.tuples(st.just("elect"), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("lose"), st.integers(0, 1), st.integers(1, 3)),
    st.tuples(st.just("run"), st.sampled_from([0.0001, 0.0003, 0.001, 0.1, 2]), st.none()),
)


@pytest.mark.slow
@given(st.lists(STEPS, max_size=40))
def test_each_message_is_stored_once_whatever_the_answers(steps: list[tuple[str, Any, Any]]) -> None:
    replicas = Replicas()
    members = [Member(replicas, 1), Member(replicas, 3)]
    taken: list[list[str]] = [[], []]
    for step, which, detail in steps:
        if step == "take":
            values = [f"{which}-{len(taken[which]) + number}" for number in range(detail)]
            taken[which] += values
            members[which].take(*values)
        elif step == "elect":
            replicas.elect(which, [1, 2, 3])
            if detail:  # else the members do not know yet
                for member in members:
                    member.refresh()
        elif step == "lose":
            members[which].loses = detail
        else:
            replicas.run(which)
    replicas.run(SETTLE_S)
    found = replicas[1].messages
    assert sorted(found) == sorted(taken[0] + taken[1])
    for member, values in zip(members, taken, strict=True):
        assert [value for value in found if value in values] == values  # its own in their order
        assert {value: answer["seq"] - 1 for value, answer in member.answers.items()} == {
            value: found.index(value) for value in values
        }
        assert member.group.held_bytes == 0
        assert member.stats.appended == len(values)


ISR_STEPS = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 1), st.lists(st.booleans(), min_size=1, max_size=5)),
    st.tuples(st.just("elect"), st.integers(1, 3), st.booleans()),
    st.tuples(st.sampled_from(["short", "full"]), st.none(), st.booleans()),
    st.tuples(st.just("lose"), st.integers(0, 1), st.integers(1, 3)),
    st.tuples(st.just("run"), st.sampled_from([0.0001, 0.001, 0.1, 2]), st.none()),
)
WANTS_NO_ACK = b"NATS/1.0\r\nKafka-Ack: none\r\n\r\n"


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(ISR_STEPS, max_size=40))
def test_answers_are_true_while_replicas_are_missing(steps: list[tuple[str, Any, Any]]) -> None:
    replicas = Replicas(min_insync_replicas="2")
    members = [Member(replicas, 1), Member(replicas, 3)]
    taken: list[list[str]] = [[], []]
    leader, is_full = 1, True
    for step, which, detail in steps:
        if step == "take":
            for asks in detail:
                value = f"{which}-{len(taken[which])}"
                taken[which].append(value)
                members[which].take(value, headers=b"" if asks else WANTS_NO_ACK)
        elif step == "elect" and is_full:
            leader = which
            replicas.elect(leader, [1, 2, 3])
        elif step in ("short", "full"):
            replicas.run(1)  # who is in sync has all, then and afterwards
            is_full = step == "full"
            replicas.elect(leader, [1, 2, 3] if is_full else [leader])
        elif step == "lose":
            members[which].loses = detail
        elif step == "run":
            replicas.run(which)
        if step in ("elect", "short", "full") and detail:
            for member in members:
                member.refresh()
    replicas.run(1)
    replicas.elect(leader, [1, 2, 3])
    replicas.run(SETTLE_S)
    found = replicas[1].messages
    refused: set[str] = set()
    for member in members:
        for value, answer in member.answers.items():
            if "error" not in answer:
                assert found[answer["seq"] - 1] == value
            elif "AFTER_APPEND" not in answer["error"]["description"]:
                refused.add(value)
        assert member.group.held_bytes == 0
        assert member.group.waiting == 0
    for values in taken:
        stored = [value for value in values if value not in refused]
        assert [value for value in found if value in values] == stored


@pytest.mark.parametrize("leader", [1, 3])
def test_waiting_bytes_are_bounded_and_large_messages_are_refused(leader: int) -> None:
    replicas = Replicas(leader=leader)
    member = Member(replicas, 1, buffer_bytes=10_000)
    replicas.elect(-1)
    member.refresh()
    member.take("a" * 6000, "b" * 6000)
    assert member.fullness == [True]
    member.take("c" * 2_000_000, "d")
    replicas.elect(leader, [1, 2, 3])
    member.refresh()
    replicas.run(5)
    assert member.fullness == [True, False]
    assert replicas[1].messages == ["a" * 6000, "b" * 6000, "d"]
    refusal = member.answers["c" * 2_000_000]["error"]["description"]
    assert refusal.startswith("MESSAGE_TOO_LARGE: the record would take ")
    assert refusal.endswith("more than max.message.bytes of the topic")
    assert member.stats.refused == 1


@pytest.mark.parametrize("leader", [1, 3])
def test_messages_for_all_are_refused_while_replicas_are_missing(leader: int) -> None:
    replicas = Replicas(leader=leader, min_insync_replicas="3")
    member = Member(replicas, 1)
    replicas.kill(2)
    replicas.elect(leader, [1, 3])
    member.refresh()
    member.take("1")
    member.take("2", headers=b"NATS/1.0\r\nKafka-Ack: none\r\n\r\n")
    replicas.run(1)
    member.take("3")
    for value in ("1", "3"):
        assert "NOT_ENOUGH_REPLICAS" in member.answers[value]["error"]["description"]
    assert member.group.held_bytes > 0
    replicas.start(2)
    replicas.tell(2)
    replicas.elect(leader, [1, 2, 3])
    member.refresh()
    replicas.run(5)
    assert replicas[leader].messages == ["2"]
    assert sorted(member.answers) == ["1", "3"]
    assert member.group.held_bytes == 0


@pytest.mark.parametrize("leader", [1, 3])
def test_messages_for_all_are_stored_again_when_replicas_are_back(leader: int) -> None:
    """Also when no other message waits for the replicas: none retries."""
    replicas = Replicas(leader=leader, min_insync_replicas="3")
    member = Member(replicas, 1)
    replicas.kill(2)
    replicas.elect(leader, [1, 3])
    member.refresh()
    member.take("1")
    replicas.run(1)
    assert "NOT_ENOUGH_REPLICAS" in member.answers["1"]["error"]["description"]
    replicas.start(2)
    replicas.tell(2)
    replicas.elect(leader, [1, 2, 3])
    member.refresh()
    replicas.run(5)
    member.take("2")
    replicas.run(5)
    assert member.answers["2"].get("seq") == 1
    assert replicas[leader].messages == ["2"]


def test_expectations_of_the_log_are_refused() -> None:
    replicas = Replicas()
    member = Member(replicas, 1)
    member.take("1", headers=b"NATS/1.0\r\nNats-Expected-Last-Sequence: 0\r\n\r\n")
    member.take("2", headers=b"NATS/1.0\r\nNats-Expected-Stream: t\r\nNats-Msg-Id: 2\r\n\r\n")
    replicas.run(2)
    assert replicas[1].messages == ["2"]
    assert member.answers["1"]["error"]["code"] == 400
    assert member.answers["2"]["seq"] == 1


def test_messages_for_the_only_replica_go_to_the_next_leader() -> None:
    replicas = Replicas(ids=(1, 2))

    def place(*nodes: int) -> None:
        change = PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, leader=nodes[0])
        change.replicas = change.isr = list(nodes)
        replicas.commit(change)

    place(1)
    member = Member(replicas, 1)
    assert list(member.ingest.lanes) == [0]
    place(2, 1)  # and the member does not know yet
    member.take("1", "2", headers=b"NATS/1.0\r\nNats-Msg-Id: an id\r\n\r\n")
    member.take("3")
    member.refresh()
    assert not member.ingest.lanes
    replicas.run(2)
    assert replicas[2].messages == ["1", "3"]  # the second one was a duplicate, as long as ids were looked up
    assert {value: answer["seq"] for value, answer in member.answers.items()} == {"1": 1, "2": 1, "3": 2}
    assert member.answers["2"]["duplicate"]


def test_a_leader_that_changes_before_the_first_batch_makes_no_second_producer() -> None:
    replicas = Replicas(leader=3)
    member = Member(replicas, 1)
    member.take("1")  # its producer id is asked for
    replicas.elect(2, [1, 2, 3])
    member.refresh()
    replicas.run(5)
    assert replicas[2].messages == ["1"]
    assert member.answers["1"]["seq"] == 1
