"""One change of one partition: leader, ISR, eligible leader replicas and epochs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from barnabas.controller.metadata.image import PartitionState, changed_state
from barnabas.controller.operations.partition_change import Election, TopicRules, Wanted, change_partition

TOPIC = b"t" * 16


def state(
    isr: Sequence[int] = (1, 2, 3),
    leader: int = 1,
    elr: Sequence[int] = (),
    last: Sequence[int] = (),
    replicas: Sequence[int] = (1, 2, 3),
    adding: Sequence[int] = (),
    removing: Sequence[int] = (),
    recovery: int = 0,
) -> PartitionState:
    return PartitionState(
        replicas=list(replicas),
        isr=list(isr),
        leader=leader,
        leader_epoch=10,
        partition_epoch=20,
        adding_replicas=list(adding),
        removing_replicas=list(removing),
        leader_recovery_state=recovery,
        directories=[bytes([replica]) * 16 for replica in replicas],
        eligible_leader_replicas=list(elr),
        last_known_elr=list(last),
    )


def outcome(
    before: PartitionState,
    wanted: Wanted,
    alive: Sequence[int] = (1, 2, 3, 4, 5),
    min_isr: int = 2,
    *,
    with_elr: bool = True,
) -> tuple[int, list[int], list[int], list[int], bool, int]:
    """(leader, ISR, ELR, last known leader, whether the leader epoch grows, recovery state)"""
    rules = TopicRules(min_isr=min_isr, unclean=False, with_elr=with_elr)
    record = change_partition(TOPIC, 0, before, rules, lambda broker: broker in alive, wanted)
    after = before if record is None else changed_state(before, record)
    assert (after.partition_epoch > before.partition_epoch) == (record is not None)
    return (
        after.leader,
        after.isr,
        after.eligible_leader_replicas,
        after.last_known_elr,
        after.leader_epoch > before.leader_epoch,
        after.leader_recovery_state,
    )


@pytest.mark.parametrize(
    ("before", "wanted", "alive", "after"),
    [
        # a follower leaves, and then another: the first one to drop the ISR below two stays eligible
        (state(), Wanted(isr=[1, 2]), (1, 2), (1, [1, 2], [], [], False, 0)),
        (state([1, 2]), Wanted(isr=[1]), (1,), (1, [1], [2], [], False, 0)),
        (state([1], elr=[2]), Wanted(isr=[1, 3]), (1, 3), (1, [1, 3], [], [], False, 0)),
        (state([1], elr=[2]), Wanted(isr=[1, 2]), (1, 2), (1, [1, 2], [], [], False, 0)),
        # the leader goes: the first replica in sync leads, in a new epoch
        (state(), Wanted(isr=[2, 3]), (2, 3), (2, [2, 3], [], [], True, 0)),
        (state([3, 2, 1]), Wanted(isr=[3, 2]), (2, 3), (2, [3, 2], [], [], True, 0)),
        (state([1, 2]), Wanted(isr=[2]), (2,), (2, [2], [1], [], True, 0)),
        # the last one in sync is fenced: an eligible replica leads, or none and the last leader is kept
        (state([1], elr=[2]), Wanted(isr=[]), (2,), (2, [2], [1], [], True, 0)),
        (state([1], elr=[2]), Wanted(isr=[]), (3,), (-1, [], [1, 2], [1], True, 0)),
        (state([], -1, elr=[1, 2], last=[1]), Wanted(), (2,), (2, [2], [1], [], True, 0)),
        (state([], -1, elr=[1, 2], last=[1]), Wanted(), (3,), (-1, [], [1, 2], [1], False, 0)),
        # a clean stop keeps who is eligible, an unclean one does not
        (state([1], elr=[2]), Wanted(isr=[1], unclean_shutdown=[2]), (1,), (1, [1], [], [], False, 0)),
        (state([1]), Wanted(isr=[], unclean_shutdown=[1]), (2,), (-1, [], [], [1], True, 0)),
        # no replica is known to have all: the last leader, when it is back, and it is in recovery
        (state([], -1, last=[1]), Wanted(), (2, 3), (-1, [], [], [1], False, 0)),
        (state([], -1, last=[1]), Wanted(), (1, 2, 3), (1, [1], [], [], True, 1)),
        (state([], -1, last=[1, 2]), Wanted(), (1, 2, 3), (-1, [], [], [1, 2], False, 0)),
        # unclean elections
        (state([], -1, last=[1]), Wanted(election=Election.UNCLEAN), (2, 3), (2, [2], [], [], True, 1)),
        (
            state([], -1, elr=[1], last=[1]),
            Wanted(election=Election.UNCLEAN),
            (2, 3),
            (2, [2], [], [], True, 1),
        ),
        (state([1], elr=[2]), Wanted(isr=[], election=Election.UNCLEAN), (2, 3), (2, [2], [1], [], True, 0)),
        (state(), Wanted(election=Election.UNCLEAN), (1, 2, 3), (1, [1, 2, 3], [], [], False, 0)),
        # preferred ones
        (state(leader=2), Wanted(election=Election.PREFERRED), (1, 2, 3), (1, [1, 2, 3], [], [], True, 0)),
        (state([2, 3], 2), Wanted(election=Election.PREFERRED), (1, 2, 3), (2, [2, 3], [], [], False, 0)),
        (state(leader=2), Wanted(election=Election.PREFERRED), (2, 3), (2, [1, 2, 3], [], [], False, 0)),
        # recovery ends when the leader says so
        (state([1], recovery=1), Wanted(recovery_state=0), (1,), (1, [1], [], [], False, 0)),
    ],
)
def test_with_eligible_leader_replicas(
    before: PartitionState, wanted: Wanted, alive: Sequence[int], after: tuple[object, ...]
) -> None:
    if before.leader_recovery_state:  # it has an ISR of one, and min.insync.replicas is two
        assert outcome(before, wanted, alive, min_isr=1) == after
    else:
        assert outcome(before, wanted, alive) == after


@pytest.mark.parametrize(
    ("before", "wanted", "alive", "after"),
    [
        (state([1, 2]), Wanted(isr=[1]), (1,), (1, [1], [], [], False, 0)),
        (state([1]), Wanted(isr=[]), (2, 3), (-1, [1], [], [], True, 0)),
        (state([1], -1), Wanted(), (1,), (1, [1], [], [], True, 0)),
        (state([1], -1), Wanted(), (2, 3), (-1, [1], [], [], False, 0)),
        (state([1], -1), Wanted(election=Election.UNCLEAN), (2, 3), (2, [2], [], [], True, 1)),
        (state([1, 2], elr=[3]), Wanted(isr=[1]), (1,), (1, [1], [], [], False, 0)),  # switched off
    ],
)
def test_without_elr_the_last_replica_stays_in_sync(
    before: PartitionState, wanted: Wanted, alive: Sequence[int], after: tuple[object, ...]
) -> None:
    assert outcome(before, wanted, alive, with_elr=False) == after


def change(before: PartitionState, wanted: Wanted) -> PartitionState:
    record = change_partition(
        TOPIC,
        0,
        before,
        TopicRules(min_isr=1, unclean=False, with_elr=True),
        lambda _: True,
        wanted,
        lambda replica: bytes([replica]) * 16,
    )
    assert record is not None
    return changed_state(before, record)


def test_a_reassignment_ends_when_the_new_replicas_are_in_sync() -> None:
    moving = change(state(), Wanted(replicas=[3, 4, 5, 1, 2], removing=[1, 2], adding=[4, 5]))
    assert (moving.leader, moving.leader_epoch, moving.isr) == (1, 10, [1, 2, 3])
    assert moving.directories == [bytes([replica]) * 16 for replica in moving.replicas]
    moving = change(moving, Wanted(isr=[1, 2, 3, 4]))
    assert (moving.leader, moving.adding_replicas, moving.removing_replicas) == (1, [4, 5], [1, 2])
    done = change(moving, Wanted(isr=[1, 2, 3, 4, 5]))
    assert (done.replicas, done.isr, done.leader) == ([3, 4, 5], [3, 4, 5], 3)
    assert (done.adding_replicas, done.removing_replicas, done.leader_epoch) == ([], [], 11)
    assert done.directories == [bytes([replica]) * 16 for replica in (3, 4, 5)]


def test_removed_replicas_begin_a_leader_epoch_with_the_same_leader() -> None:
    done = change(state(), Wanted(replicas=[1, 2, 3], removing=[3]))
    assert (done.replicas, done.isr, done.leader, done.leader_epoch) == ([1, 2], [1, 2], 1, 11)


def test_no_change_is_no_record() -> None:
    rules = TopicRules(min_isr=1, unclean=False, with_elr=True)
    assert change_partition(TOPIC, 0, state(), rules, lambda _: True, Wanted()) is None
