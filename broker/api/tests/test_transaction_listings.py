"""DescribeTransactions and ListTransactions on a node with open, ended and unused transactional ids.

Expected answers are Apache Kafka 4.3.1's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.tests.one_node import OneNode
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages import create_topics as ct
from barnabas.wire.messages import describe_transactions as dt
from barnabas.wire.messages import list_transactions as lt


class World(OneNode):
    """A node, and the producer id and epoch of each transactional id."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"log.dirs={directory}", "transaction.state.log.num.partitions=4")
        self.coordinator = self.node.services.transactions
        self.producers: dict[str, tuple[int, int]] = {}

    def list(self, version: int | None = None, **filters: Any) -> Any:
        return self.ask(lt.ListTransactionsRequest(**filters), version)

    def describe(self, *ids: str) -> Any:
        return self.ask(dt.DescribeTransactionsRequest(list(ids))).transaction_states

    def initialize(self, transactional_id: str, timeout_ms: int = 60_000) -> None:
        found: list[E] = []
        self.coordinator.topic.find(transactional_id, lambda error, _: found.append(error))
        self.runtime.run_until_idle()

        def done(error: E, producer_id: int, epoch: int) -> None:
            found.append(error)
            self.producers[transactional_id] = producer_id, epoch

        self.coordinator.initialize(transactional_id, timeout_ms, -1, -1, done)
        self.runtime.run_until_idle()
        assert found == [E.NONE, E.NONE]

    def add(self, transactional_id: str, *partitions: tuple[str, int]) -> None:
        results: list[E] = []
        self.coordinator.add_partitions(
            transactional_id, *self.producers[transactional_id], partitions, False, results.append
        )
        self.runtime.run_until_idle()
        assert results == [E.NONE]

    def end(self, transactional_id: str, *, commit: bool) -> None:
        results: list[E] = []
        self.coordinator.end(
            transactional_id,
            *self.producers[transactional_id],
            commit,
            False,
            lambda error, *_: results.append(error),
        )
        self.runtime.run_until_idle()
        assert results == [E.NONE]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The ids "unused", "open", "committed" and "aborted"."""
    world = World(tmp_path)
    topics = [ct.CreatableTopic(name=name, num_partitions=3, replication_factor=1) for name in ("t", "s")]
    world.ask(ct.CreateTopicsRequest(topics=topics))
    for number, name in enumerate(("unused", "open", "committed", "aborted")):
        world.initialize(name, 10_000 + number)
    for name in ("committed", "aborted"):
        world.add(name, ("t", 0))
        world.end(name, commit=name == "committed")
    world.add("open", ("t", 2), ("s", 0), ("t", 0))
    yield world
    world.node.stop()


def names(answer: Any) -> list[str]:
    assert answer.error_code == E.NONE
    return sorted(each.transactional_id for each in answer.transaction_states)


def test_an_open_transaction_is_described(world: World) -> None:
    (found,) = world.describe("open")
    assert (found.error_code, found.transactional_id, found.transaction_state) == (E.NONE, "open", "Ongoing")
    assert (found.producer_id, found.producer_epoch) == world.producers["open"]
    assert found.transaction_timeout_ms == 10_001
    assert found.transaction_start_time_ms == world.runtime.time_ms()
    assert {each.topic: each.partitions for each in found.topics} == {"s": [0], "t": [0, 2]}


def test_an_id_that_is_repeated_often_is_not_described_each_time(world: World) -> None:
    found = world.describe(*["open"] * 1000)
    assert [each.error_code for each in found] == [E.NONE] * 11 + [E.INVALID_REQUEST] * 989


def test_ids_are_described_in_the_order_of_the_request(world: World) -> None:
    found = world.describe("unused", "nope", "", "aborted", "committed", "unused")
    assert [(each.error_code, each.transactional_id, each.transaction_state) for each in found] == [
        (E.NONE, "unused", "Empty"),
        (E.TRANSACTIONAL_ID_NOT_FOUND, "nope", ""),
        (E.INVALID_REQUEST, "", ""),
        (E.NONE, "aborted", "CompleteAbort"),
        (E.NONE, "committed", "CompleteCommit"),
        (E.NONE, "unused", "Empty"),
    ]
    assert [each.transaction_start_time_ms == -1 for each in found] == [
        True,
        False,
        False,
        False,
        False,
        True,
    ]
    assert [each.topics for each in found] == [[]] * 6
    assert (found[1].producer_id, found[1].transaction_timeout_ms, found[1].transaction_start_time_ms) == (
        *(0, 0, 0),
    )


def test_ending_transactions_have_the_partitions_that_lack_a_marker(world: World) -> None:
    results: list[E] = []
    world.coordinator.end(
        "open", *world.producers["open"], True, False, lambda error, *_: results.append(error)
    )
    while not results:  # before the markers are written
        assert world.runtime.step()
    (found,) = world.describe("open")
    assert found.transaction_state == "PrepareCommit"
    assert {each.topic: each.partitions for each in found.topics} == {"s": [0], "t": [0, 2]}
    world.runtime.run_until_idle()
    (found,) = world.describe("open")
    assert (found.transaction_state, found.topics) == ("CompleteCommit", [])


@pytest.mark.parametrize("version", [0, 1, 2])
def test_all_ids_are_listed(world: World, version: int) -> None:
    answer = world.list(version)
    assert names(answer) == ["aborted", "committed", "open", "unused"]
    assert {
        each.transactional_id: (each.producer_id, each.transaction_state)
        for each in answer.transaction_states
    } == {
        "unused": (world.producers["unused"][0], "Empty"),
        "open": (world.producers["open"][0], "Ongoing"),
        "committed": (world.producers["committed"][0], "CompleteCommit"),
        "aborted": (world.producers["aborted"][0], "CompleteAbort"),
    }


@pytest.mark.parametrize(
    ("states", "found", "unknown"),
    [
        (["Empty"], ["unused"], []),
        (["empty"], [], ["empty"]),
        (["Ongoing", "Foo", "Bar", "Foo"], ["open"], ["Foo", "Bar"]),
        (["Dead"], [], []),
        (["PrepareEpochFence"], [], []),
        ([""], [], [""]),
        (["CompleteCommit", "CompleteAbort"], ["aborted", "committed"], []),
    ],
)
def test_states_are_a_filter(world: World, states: list[str], found: list[str], unknown: list[str]) -> None:
    answer = world.list(state_filters=states)
    assert (names(answer), answer.unknown_state_filters) == (found, unknown)


def test_producer_ids_are_a_filter(world: World) -> None:
    wanted = world.producers["open"][0], world.producers["unused"][0]
    assert names(world.list(producer_id_filters=[*wanted, 999, -1])) == ["open", "unused"]
    assert names(world.list(producer_id_filters=[999])) == []


def test_the_duration_is_a_filter_that_ids_without_a_start_pass(world: World) -> None:
    everything = ["aborted", "committed", "open", "unused"]
    for duration in (-1, -2):
        assert names(world.list(1, duration_filter=duration)) == everything
    assert names(world.list(1, duration_filter=0)) == ["unused"]  # not of the same millisecond
    world.runtime.advance(1)
    assert names(world.list(1, duration_filter=999)) == everything
    assert names(world.list(1, duration_filter=1000)) == ["unused"]
    assert names(world.list(1, duration_filter=2**62)) == []


def test_a_pattern_matches_the_whole_id(world: World) -> None:
    assert names(world.list(transactional_id_pattern=".*ed")) == ["aborted", "committed", "unused"]
    assert names(world.list(transactional_id_pattern="pen|open")) == ["open"]
    assert names(world.list(transactional_id_pattern="pe")) == []
    assert len(names(world.list(transactional_id_pattern=""))) == 4
    bad = world.list(transactional_id_pattern="(", state_filters=["Foo"])
    assert (bad.error_code, bad.unknown_state_filters, bad.transaction_states) == (
        *(E.INVALID_REGULAR_EXPRESSION, [], []),
    )


def test_nothing_is_listed_before_there_is_a_transaction(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert names(world.list()) == []
    assert [each.error_code for each in world.describe("x", "")] == [E.NOT_COORDINATOR, E.INVALID_REQUEST]
    world.node.stop()


def test_nothing_is_listed_while_a_partition_is_loaded(world: World) -> None:
    led = next(iter(world.coordinator.shards.led.values()))
    led.is_loaded = False
    assert world.list().error_code == E.COORDINATOR_LOAD_IN_PROGRESS
    assert world.list(transactional_id_pattern="(").error_code == E.COORDINATOR_LOAD_IN_PROGRESS
    led.is_loaded = True
    assert len(names(world.list())) == 4
