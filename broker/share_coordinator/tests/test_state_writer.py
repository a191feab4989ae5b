"""The writes of one share partition: what waits is merged, and what is too large for one write is sent in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.share_coordinator import persister
from barnabas.broker.share_coordinator.persister import Persister, StateWriter
from barnabas.broker.share_coordinator.state import SharePartitionKey
from barnabas.broker.share_coordinator.state_batches import StateBatch
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages import write_share_group_state as writing
from compat_tests.virtual.runtime import VirtualRuntime

KEY = SharePartitionKey("g", b"t" * 16, 0)
WRITTEN_MAX = 3


class Coordinator:
    """Keeps what it is asked until the test answers."""

    def __init__(self) -> None:
        self.asked: list[list[StateBatch]] = []
        self._answered: Callable[[Any, E], object] | None = None
        self.writer: StateWriter = Persister(VirtualRuntime(), self.ask, self.find).writer(KEY, 0, 0)

    def find(self, _key: str, found: Callable[[E, int], object]) -> None:
        found(E.NONE, 1)

    def ask(
        self, _node_id: int, _key: int, _version: int, request: Any, answered: Callable[[Any, E], object]
    ) -> None:
        assert self._answered is None, "one write at a time"
        self._answered = answered
        batches = request.topics[0].partitions[0].state_batches
        self.asked.append(
            [
                StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
                for each in batches
            ]
        )

    def answer(self, error: E = E.NONE) -> None:
        assert self._answered is not None
        answered, self._answered = self._answered, None
        result = writing.WriteStateResult(KEY.topic_id, [writing.PartitionResult(0, error, None)])
        answered(writing.WriteShareGroupStateResponse([result]), E.NONE)


def batch(first: int, state: int = 2, count: int = 1) -> StateBatch:
    return StateBatch(first, first, state, count)


@pytest.fixture(autouse=True)
def short_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persister, "WRITTEN_MAX", WRITTEN_MAX)


def test_a_large_write_is_sent_in_parts() -> None:
    coordinator = Coordinator()
    batches = [batch(2 * number) for number in range(7)]
    done: list[E] = []
    coordinator.writer.write(0, 0, batches, done.append)
    for _ in range(3):
        assert done == []
        coordinator.answer()
    assert coordinator.asked == [batches[:3], batches[3:6], batches[6:]]
    assert done == [E.NONE]


def test_a_part_that_fails_is_the_last() -> None:
    coordinator = Coordinator()
    done: list[E] = []
    coordinator.writer.write(0, 0, [batch(2 * number) for number in range(7)], done.append)
    coordinator.answer()
    coordinator.answer(E.FENCED_LEADER_EPOCH)
    assert done == [E.FENCED_LEADER_EPOCH]
    coordinator.writer.write(0, 0, [batch(1)], done.append)
    assert coordinator.asked[2:] == [[batch(1)]]


def test_what_waits_is_merged() -> None:
    coordinator = Coordinator()
    done: list[E] = []
    for number in range(4):
        coordinator.writer.write(0, 0, [batch(0, count=number)], done.append)
    coordinator.answer()
    assert done == [E.NONE]
    coordinator.answer()
    assert coordinator.asked == [[batch(0, count=0)], [batch(0, count=3)]]
    assert done == [E.NONE] * 4
