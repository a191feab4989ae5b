"""The invariants of transactions find what they are for: a good history passes, and each change of it that breaks a rule is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from compat_tests.harness.transaction_history import (
    ABORT,
    ABORTED,
    COMMIT,
    COMMITTED,
    UNKNOWN,
    CoordinatorState,
    GroupOffset,
    Initialization,
    LogBatch,
    Reader,
    StableOffset,
    TransactionHistory,
    TransactionViolation,
)

GROUP, INPUT = "group", ("input", 0)
FIRST, SECOND = ("a", 0), ("a", 1)
Log = list[LogBatch]


@dataclasses.dataclass
class World:
    """A history with the logs and states at its end, as `TransactionHistory.check` takes them."""

    history: TransactionHistory
    logs: dict[tuple[str, int], Log]
    states: list[CoordinatorState]
    reader: Reader

    def check(self) -> None:
        self.history.check(self.logs, self.states)


def _data(offset: int, identity: tuple[int, int], *values: bytes, sequence: int = 0) -> LogBatch:
    return LogBatch(
        offset,
        offset + len(values) - 1,
        identity,
        is_transactional=True,
        values=values,
        base_sequence=sequence,
    )


def _marker(offset: int, identity: tuple[int, int], marker: str) -> LogBatch:
    return LogBatch(offset, offset, identity, is_transactional=True, marker=marker, transaction_version=2)


def _world() -> World:
    """One holder commits, aborts and commits over two partitions, and moves an offset with each commit; another one takes over and
    has an end without an answer, which was a commit."""
    history = TransactionHistory()
    for identity, at in (((7, 0), 0.0), ((7, 1), 3.0), ((7, 2), 5.0), ((7, 3), 7.0)):
        history.initializations.append(
            Initialization("p", "t", identity, at, at + 0.1, takes_over=identity == (7, 0))
        )
    history.initializations.append(Initialization("q", "t", (7, 4), 8.0, 8.1))

    def transaction(
        holder: str, identity: tuple[int, int], began_at: float, outcome: str, moves: tuple[int, int] | None
    ) -> None:
        one = history.begin(holder, "t", identity, began_at)
        number = len(history.transactions) - 1
        for partition in (FIRST, SECOND):
            for index in range(2):
                one.sends(partition, b"%d-%d-%d" % (number, partition[1], index))
        if moves is not None:
            one.consumed[GROUP, INPUT] = moves
        one.outcome = outcome
        if outcome != ABORTED:
            one.requested_at = began_at + 1
        if outcome != UNKNOWN:
            one.ended_at = began_at + 2

    transaction("p", (7, 0), 1.0, COMMITTED, (0, 5))
    transaction("p", (7, 1), 3.2, ABORTED, (5, 9))
    transaction("p", (7, 2), 5.2, COMMITTED, (5, 8))
    transaction("q", (7, 4), 8.2, UNKNOWN, (8, 12))
    logs = {}
    for partition in (FIRST, SECOND):
        values = [b"%d-%d-%d" % (number, partition[1], index) for number in range(4) for index in range(2)]
        logs[partition] = [
            _data(0, (7, 0), *values[0:2]),
            _marker(2, (7, 1), COMMIT),
            _data(3, (7, 1), *values[2:4]),
            _marker(5, (7, 2), ABORT),
            _data(6, (7, 2), *values[4:6]),
            _marker(8, (7, 3), COMMIT),
            _data(9, (7, 4), *values[6:8]),
            _marker(11, (7, 5), COMMIT),
        ]
    reader = history.reader("r")
    for partition, log in logs.items():
        committed = [
            (batch.base_offset + index, value)
            for batch in (log[0], log[4], log[6])
            for index, value in enumerate(batch.values)
        ]
        reader.read(partition, 12, committed, 20.0)
    history.stable_offsets += [
        StableOffset(FIRST, 0, 0, 2, 1.5, 1.6),
        StableOffset(FIRST, 0, 3, 4, 3.5, 3.6),
        StableOffset(FIRST, 1, 12, 12, 19.0, 19.1),
    ]
    history.group_offsets += [
        GroupOffset(GROUP, INPUT, -1, 0.5, 0.6),
        GroupOffset(GROUP, INPUT, 5, 4.0, 4.1),
        GroupOffset(GROUP, INPUT, 12, 20.0, 20.1),
    ]
    return World(history, logs, [CoordinatorState("t", "CompleteCommit", (7, 5))], reader)


def test_a_good_history_passes() -> None:
    _world().check()


def test_the_unknown_end_may_be_an_abort() -> None:
    world = _world()
    for log in world.logs.values():
        log[7] = dataclasses.replace(log[7], marker=ABORT)
    for values in world.reader.values.values():
        del values[4:]
    world.reader.seen_at = {value: at for value, at in world.reader.seen_at.items() if value[:1] != b"3"}
    world.history.group_offsets[2] = GroupOffset(GROUP, INPUT, 8, 20.0, 20.1)
    world.states[0] = CoordinatorState("t", "CompleteAbort", (7, 5))
    world.check()


def _replace(world: World, number: int, **fields: object) -> None:
    """Change a batch in one partition."""
    world.logs[FIRST][number] = dataclasses.replace(world.logs[FIRST][number], **fields)  # type: ignore[arg-type]


def _forget(world: World) -> None:
    """What was read, so that the logs alone speak."""
    world.history.readers.clear()
    world.history.group_offsets.clear()


def _committed_is_lost(world: World) -> None:
    _forget(world)
    for log in world.logs.values():
        log[5] = dataclasses.replace(log[5], marker=ABORT)


def _half_committed(world: World) -> None:
    _forget(world)
    _replace(world, 7, marker=ABORT)


def _record_is_lost(world: World) -> None:
    _forget(world)
    _replace(world, 4, values=world.logs[FIRST][4].values[:1])


def _another_order(world: World) -> None:
    _forget(world)
    _replace(world, 4, values=world.logs[FIRST][4].values[::-1])


def _never_sent(world: World) -> None:
    _forget(world)
    _replace(world, 4, values=(*world.logs[FIRST][4].values, b"strange"))


def _aborted_is_visible(world: World) -> None:
    _forget(world)
    for log in world.logs.values():
        log[3] = dataclasses.replace(log[3], marker=COMMIT)


def _open_is_visible(world: World) -> None:
    _forget(world)
    world.history.transactions[2].outcome = "open"


def _read_before_the_commit(world: World) -> None:
    world.reader.seen_at[b"2-0-0"] = 6.0


def _offset_goes_back(world: World) -> None:
    world.history.group_offsets.append(GroupOffset(GROUP, INPUT, 5, 20.2, 20.3))


def _offset_of_an_abort(world: World) -> None:
    world.history.group_offsets.insert(2, GroupOffset(GROUP, INPUT, 9, 6.0, 6.1))


def _offset_without_outputs(world: World) -> None:
    world.history.group_offsets[2] = GroupOffset(GROUP, INPUT, 8, 20.0, 20.1)


def _input_read_twice(world: World) -> None:
    world.history.transactions[2].consumed[GROUP, INPUT] = (0, 8)


def _input_skipped(world: World) -> None:
    world.history.transactions[2].consumed[GROUP, INPUT] = (6, 8)


def _stable_offset_goes_back(world: World) -> None:
    world.history.stable_offsets.append(StableOffset(FIRST, 1, 11, 12, 19.2, 19.3))


def _stable_offset_above_the_end(world: World) -> None:
    world.history.stable_offsets.append(StableOffset(FIRST, 1, 13, 12, 19.2, 19.3))


def _stable_offset_passes_an_open_one(world: World) -> None:
    world.history.stable_offsets[1] = StableOffset(FIRST, 0, 4, 5, 3.5, 3.6)


def _hanging(world: World) -> None:
    _forget(world)
    world.history.stable_offsets.clear()
    world.history.transactions[3].sent.clear()
    for log in world.logs.values():
        del log[7]


def _marker_of_the_datas_epoch(world: World) -> None:
    _replace(world, 1, identity=(7, 0))


def _marker_below_its_data(world: World) -> None:
    _replace(world, 6, identity=(7, 6))


def _data_behind_a_later_marker(world: World) -> None:
    _replace(world, 2, identity=(7, 0), base_sequence=9)


def _no_marker_between(world: World) -> None:
    _forget(world)
    del world.logs[FIRST][3]


def _identity_given_twice(world: World) -> None:
    world.history.initializations.append(Initialization("z", "other", (7, 2), 9.0, 9.1))


def _epoch_goes_back(world: World) -> None:
    world.history.initializations.append(Initialization("q", "t", (7, -1), 9.0, 9.1))


def _fenced_one_commits(world: World) -> None:
    world.history.initializations.append(Initialization("q", "t", (7, 9), 5.8, 5.9))
    del world.history.initializations[3:5]


def _prepared_at_rest(world: World) -> None:
    world.states[0] = CoordinatorState("t", "PrepareCommit", (7, 5))


def _another_outcome(world: World) -> None:
    world.states[0] = CoordinatorState("t", "CompleteAbort", (7, 5))


def _value_twice(world: World) -> None:
    _forget(world)
    world.logs[FIRST].insert(7, _data(11, (7, 4), *world.logs[FIRST][6].values, sequence=2))


def _sequence_twice(world: World) -> None:
    _forget(world)
    world.logs[FIRST].insert(7, _data(11, (7, 4), b"new", sequence=0))


def _reader_skips(world: World) -> None:
    del world.reader.values[FIRST][2]


def _reader_stops_short(world: World) -> None:
    del world.reader.values[FIRST][-1]


def _reader_reads_twice(world: World) -> None:
    world.reader.values[FIRST].append(world.reader.values[FIRST][-1])


@pytest.mark.parametrize(
    ("rule", "breaks"),
    [
        (1, _committed_is_lost),
        (1, _half_committed),
        (1, _record_is_lost),
        (1, _another_order),
        (1, _never_sent),
        (2, _aborted_is_visible),
        (2, _open_is_visible),
        (2, _read_before_the_commit),
        (3, _offset_goes_back),
        (3, _offset_of_an_abort),
        (3, _offset_without_outputs),
        (3, _input_read_twice),
        (3, _input_skipped),
        (4, _stable_offset_goes_back),
        (4, _stable_offset_above_the_end),
        (4, _stable_offset_passes_an_open_one),
        (4, _hanging),
        (5, _marker_of_the_datas_epoch),
        (5, _marker_below_its_data),
        (5, _data_behind_a_later_marker),
        (5, _no_marker_between),
        (6, _identity_given_twice),
        (6, _epoch_goes_back),
        (6, _fenced_one_commits),
        (7, _prepared_at_rest),
        (7, _another_outcome),
        (8, _value_twice),
        (8, _sequence_twice),
        (9, _reader_skips),
        (9, _reader_stops_short),
        (9, _reader_reads_twice),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else str(value),
)
def test_a_broken_rule_is_found(rule: int, breaks: Callable[[World], None]) -> None:
    world = _world()
    breaks(world)
    with pytest.raises(TransactionViolation) as found:
        world.check()
    assert found.value.rule == rule, found.value


def test_ids_of_producers_have_no_order() -> None:
    """An identity with another id, given out when the epochs are used up, is the later one if it was asked for later."""
    world = _world()
    world.history.initializations.insert(0, Initialization("q", "t", (8, 0), -0.05, 0.05))  # as p asked
    world.check()
    world.history.initializations.append(Initialization("q", "t", (9, 0), 1.1, 1.2))
    with pytest.raises(TransactionViolation) as found:
        world.check()
    assert found.value.rule == 6, found.value
