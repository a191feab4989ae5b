"""TxnOffsetCommit and the transaction coordinator's answer: over real partitions, with a coordinator that answers when the test
lets it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from barnabas.broker.coordinator.log import Marker
from barnabas.broker.coordinator.shards import Shards
from barnabas.broker.coordinator.topic import partition_for
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.shard import Shard
from barnabas.broker.groups.transactional_commits import commit_in_transaction
from barnabas.broker.tests.coordinator_world import TOPIC, World
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

GROUP = next(name for name in map(str, range(100)) if partition_for(name, 2) == 1)
PARTITION = (TOPIC, 1)
PID = 7


class Groups:
    """The groups of two partitions, led here. `asked`: the questions to the transaction coordinator that have no answer yet."""

    def __init__(self) -> None:
        self.world = World([1])
        self.shards: Shards[Shard] = Shards(TOPIC, 1, self._make_shard, self.world.runtime.monotonic)
        self.asked: list[tuple[tuple[Any, ...], Callable[[E], object]]] = []
        self.follow()

    def _make_shard(self, index: int) -> Shard:
        return Shard(index, self.world.log, self.world.runtime, GroupSettings())

    def follow(self) -> None:
        """The metadata is known here."""
        self.shards.metadata_changed(self.world.image.topics[TOPIC])
        self.world.runtime.run_until_idle()

    def lead(self, leader: int) -> None:
        self.world.change(1, leader=leader)
        self.follow()

    @property
    def shard(self) -> Shard:
        found = self.shards.of(GROUP)
        assert isinstance(found, Shard)
        return found

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[tuple[str, int]],
        *,
        add: bool,
        done: Callable[[dict[tuple[str, int], E]], object],
    ) -> None:
        question = (transactional_id, producer_id, producer_epoch, list(partitions), add)
        self.asked.append((question, lambda error: done(dict.fromkeys(partitions, error))))

    def answer(self, error: E = E.NONE) -> tuple[Any, ...]:
        question, answer = self.asked.pop(0)
        answer(error)
        return question

    def commit(
        self,
        offset: int,
        *,
        version: int = 5,
        epoch: int = 0,
        generation: int = -1,
        is_verification_enabled: bool = True,
    ) -> list[E]:
        """[] while it waits, then [error]."""
        topic = TxnOffsetCommitRequestTopic("t", [TxnOffsetCommitRequestPartition(0, offset)])
        request = TxnOffsetCommitRequest("id", GROUP, PID, epoch, generation, topics=[topic])
        errors: list[E] = []
        commit_in_transaction(
            self.shards,
            self.verify,
            request,
            [topic],
            version,
            lambda error, _: errors.append(error),
            is_verification_enabled=is_verification_enabled,
        )
        return errors

    def end(self, *, commit: bool = True, epoch: int = 0, transaction_version: int = 0) -> None:
        errors: list[E] = []
        self.shard.end_transaction(Marker(PID, epoch, commit, 0, transaction_version), errors.append)
        assert errors == [E.NONE]

    def offset(self) -> tuple[int | None, bool]:
        """The committed offset, and whether another one is pending."""
        found = self.shard.offsets.get(GROUP, "t", 0)
        pending = self.shard.offsets.is_pending(GROUP, "t", 0)
        return None if found is None else found.offset, pending


@pytest.fixture
def groups() -> Groups:
    return Groups()


@pytest.mark.parametrize("version", range(6))
def test_the_coordinator_is_asked_before_the_first_commit(groups: Groups, version: int) -> None:
    first = groups.commit(5, version=version)
    assert (first, groups.shard.groups) == ([], {})
    assert groups.answer() == ("id", PID, 0, [PARTITION], version == 5)
    assert (first, groups.offset()) == ([E.NONE], (None, True))
    assert (groups.commit(6, version=version), groups.asked) == ([E.NONE], [])
    groups.end()
    assert groups.offset() == (6, False)
    groups.commit(7, version=version, epoch=1)
    assert len(groups.asked) == 1


@pytest.mark.parametrize(
    ("version", "answer", "error"),
    [
        (3, E.TRANSACTION_ABORTABLE, E.INVALID_TXN_STATE),
        (4, E.TRANSACTION_ABORTABLE, E.TRANSACTION_ABORTABLE),
        (5, E.TRANSACTION_ABORTABLE, E.TRANSACTION_ABORTABLE),
        (5, E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS),
        (3, E.NETWORK_EXCEPTION, E.COORDINATOR_LOAD_IN_PROGRESS),
        (5, E.NETWORK_EXCEPTION, E.COORDINATOR_LOAD_IN_PROGRESS),
        (5, E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_NOT_AVAILABLE),
        (5, E.NOT_COORDINATOR, E.NOT_COORDINATOR),
        (5, E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (5, E.INVALID_PRODUCER_EPOCH, E.INVALID_PRODUCER_EPOCH),
        (5, E.INVALID_PRODUCER_ID_MAPPING, E.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_what_the_client_gets_for_the_coordinators_error(
    groups: Groups, version: int, answer: E, error: E
) -> None:
    found = groups.commit(5, version=version)
    groups.answer(answer)
    assert (found, groups.shard.groups) == ([error], {})


@pytest.mark.parametrize(
    ("version", "marker_epoch", "error"), [(4, 0, E.INVALID_TXN_STATE), (5, 1, E.INVALID_PRODUCER_EPOCH)]
)
def test_a_transaction_that_ends_before_the_answer(
    groups: Groups, version: int, marker_epoch: int, error: E
) -> None:
    late = groups.commit(5, version=version)
    groups.end(epoch=marker_epoch)
    groups.answer()
    assert (late, groups.offset(), groups.shard.groups) == ([error], (None, False), {})


def test_the_marker_of_version_2_leaves_the_next_transaction(groups: Groups) -> None:
    """The producer begins the next one with the marker's epoch, which may come to the group first."""
    groups.commit(5)
    groups.answer()
    following = groups.commit(6, epoch=1)
    groups.end(epoch=1, transaction_version=2)
    groups.answer()
    assert (following, groups.offset()) == ([E.NONE], (5, True))
    groups.end(epoch=2, transaction_version=2)
    assert groups.offset() == (6, False)


def test_a_fenced_producer_is_not_asked_about(groups: Groups) -> None:
    groups.commit(5, epoch=1)
    groups.answer()
    assert (groups.commit(6), groups.asked) == ([E.INVALID_PRODUCER_EPOCH], [])


def test_the_group_is_checked_after_the_answer(groups: Groups) -> None:
    absent = groups.commit(5, generation=3)
    groups.answer()
    assert absent == [E.ILLEGAL_GENERATION]
    stranger = groups.commit(5, generation=3)
    groups.shard.store.create(GROUP)
    groups.answer()
    assert stranger == [E.UNKNOWN_MEMBER_ID]


def test_without_verification_partitions_are_added_all_the_same(groups: Groups) -> None:
    assert groups.commit(5, version=4, is_verification_enabled=False) == [E.NONE]
    groups.end(epoch=1)
    assert groups.commit(6, version=4, is_verification_enabled=False) == [E.INVALID_PRODUCER_EPOCH]
    assert groups.commit(6, epoch=1, is_verification_enabled=False) == []
    assert groups.answer() == ("id", PID, 1, [PARTITION], True)


def test_a_group_that_is_led_elsewhere(groups: Groups) -> None:
    groups.lead(-1)
    assert (groups.commit(5), groups.asked) == ([E.NOT_COORDINATOR], [])


def test_a_partition_that_moves_before_the_answer(groups: Groups) -> None:
    gone = groups.commit(5)
    groups.lead(-1)
    groups.answer()
    assert gone == [E.NOT_COORDINATOR]
    groups.lead(1)
    back = groups.commit(5, generation=-1)
    groups.lead(-1)
    groups.lead(1)
    groups.answer()
    assert (back, groups.offset()) == ([E.NONE], (None, True))
    groups.lead(-1)
    groups.lead(1)
    assert groups.offset() == (None, True)
    groups.end()
    assert groups.offset() == (5, False)
