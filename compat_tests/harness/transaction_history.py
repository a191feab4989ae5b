"""What transactional clients did and saw, and the invariants that it must fulfil.

Clients note each transaction, each read and each answer about offsets; at the end the logs of the partitions and the states of the
coordinator are added. `check` compares all of it, without asking the code under test what is right. Times are those of one clock,
in seconds; a value is written once.

Its rules, by the names of Adya's phenomena where they have one:
1. A committed transaction is read whole, once and in order; one whose end is unknown wholly or not at all.
2. Nothing of an aborted transaction is read (G1a), and nothing before its commit was requested (G1b).
3. A group's offset and the outputs of what it has read change together, and offsets never go back.
4. The last stable offset of a leader never goes back, never passes an open transaction, and reaches the high watermark at rest.
5. A transaction in a log has one marker, whose epoch fits its data.
6. Producer ids with their epochs are given out once and in order; a fenced producer commits nothing; none is fenced without a
   cause.
7. At rest no end is half done, and the coordinator's outcome is that of the markers (transaction_state_log.py has more).
8. Nothing is written twice.
9. A read_committed consumer skips nothing that was committed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

Partition = Any
"""A hashable name of a partition."""
Identity = tuple[int, int]
"""Producer id and epoch."""

COMMIT, ABORT = "commit", "abort"
OPEN, COMMITTED, ABORTED, UNKNOWN = "open", "committed", "aborted", "unknown"


class TransactionViolation(AssertionError):
    """An invariant does not hold; the message begins with its number."""

    def __init__(self, rule: int, text: str) -> None:
        super().__init__(f"rule {rule}: {text}")
        self.rule: Final = rule


@dataclasses.dataclass(slots=True)
class Transaction:
    """One transaction of a client. `outcome`: COMMITTED or ABORTED when the end was answered so, UNKNOWN when it may be either,
    OPEN when no end was requested; such a one can only be aborted."""

    holder: str
    transactional_id: str
    identity: Identity
    began_at: float
    sent: dict[Partition, list[bytes]] = dataclasses.field(default_factory=dict)
    consumed: dict[tuple[str, Partition], tuple[int, int]] = dataclasses.field(default_factory=dict)
    """Of each group and input partition: the position before and after; the latter is committed in the transaction."""
    requested_at: float = math.inf  # when the commit was sent first
    ended_at: float = math.inf
    outcome: str = OPEN

    def sends(self, partition: Partition, value: bytes) -> None:
        """Note a value before it is sent."""
        self.sent.setdefault(partition, []).append(value)

    @property
    def may_be_committed(self) -> bool:
        """Whether its records may be visible."""
        return self.outcome in (COMMITTED, UNKNOWN)

    def __str__(self) -> str:
        return f"{self.outcome} transaction of {self.holder} {self.identity} begun at {self.began_at:.3f}"


@dataclasses.dataclass(slots=True, frozen=True)
class Initialization:
    """An answer to InitProducerId, or to an EndTxn that raises the epoch."""

    holder: str
    transactional_id: str
    identity: Identity
    asked_at: float
    answered_at: float
    takes_over: bool = True
    """False where the holder of the id only continues with its next epoch."""


@dataclasses.dataclass(slots=True, frozen=True)
class Fence:
    """A request of a holder that was refused because of its identity."""

    holder: str
    transactional_id: str
    identity: Identity
    what: str
    initialized_at: float
    """When the identity was asked for."""
    times_out_at: float
    """From then on the coordinator may have aborted the holder's transaction; infinite when none is open."""
    at: float


@dataclasses.dataclass(slots=True, frozen=True)
class LogBatch:
    """A batch of a log. `marker` is COMMIT or ABORT for a control batch and empty for data."""

    base_offset: int
    last_offset: int
    identity: Identity
    is_transactional: bool = False
    marker: str = ""
    values: tuple[bytes, ...] = ()
    base_sequence: int = -1
    transaction_version: int = 0
    """Of a marker: 2 where the end raised the epoch, if that is known."""


@dataclasses.dataclass(slots=True)
class Reader:
    """A read_committed consumer without a group: what it has read from `start` to `position` of each partition."""

    name: str
    start: dict[Partition, int] = dataclasses.field(default_factory=dict)
    position: dict[Partition, int] = dataclasses.field(default_factory=dict)
    values: dict[Partition, list[tuple[int, bytes]]] = dataclasses.field(default_factory=dict)
    seen_at: dict[bytes, float] = dataclasses.field(default_factory=dict)

    def read(
        self, partition: Partition, position: int, values: Sequence[tuple[int, bytes]], now: float
    ) -> None:
        """Note an answer: (offset, value) of the records, and the position after it."""
        self.start.setdefault(partition, 0)
        self.values.setdefault(partition, []).extend(values)
        self.position[partition] = position
        for _, value in values:
            self.seen_at.setdefault(value, now)


@dataclasses.dataclass(slots=True, frozen=True)
class StableOffset:
    """A last stable offset and a high watermark, as a leader of an epoch answered them to a fetch. As in Kafka a new leader may
    know a lower high watermark at first."""

    partition: Partition
    leader_epoch: int
    last_stable_offset: int
    high_watermark: int
    asked_at: float
    answered_at: float


@dataclasses.dataclass(slots=True, frozen=True)
class GroupOffset:
    """A committed offset, as OffsetFetch with require_stable answered it; -1 for none."""

    group: str
    partition: Partition
    offset: int
    asked_at: float
    answered_at: float


@dataclasses.dataclass(slots=True, frozen=True)
class CoordinatorState:
    """What DescribeTransactions says of an id at rest."""

    transactional_id: str
    state: str
    identity: Identity


@dataclasses.dataclass(slots=True)
class _Range:
    """A transaction as a log shows it: batches of one producer up to its marker."""

    partition: Partition
    identity: Identity  # of the last batch
    first_offset: int
    values: list[tuple[int, bytes]]
    marker: LogBatch | None = None


class TransactionHistory:
    """See the module."""

    def __init__(self) -> None:
        self.transactions: list[Transaction] = []
        self.initializations: list[Initialization] = []
        self.readers: list[Reader] = []
        self.stable_offsets: list[StableOffset] = []
        self.group_offsets: list[GroupOffset] = []
        self.fences: list[Fence] = []
        self.takeovers: list[tuple[str, str, float]] = []
        """Transactional id, holder and time of the first request of each InitProducerId without an identity."""

    def reader(self, name: str) -> Reader:
        """A new read_committed consumer."""
        self.readers.append(Reader(name))
        return self.readers[-1]

    def begin(self, holder: str, transactional_id: str, identity: Identity, now: float) -> Transaction:
        """A new transaction."""
        self.transactions.append(Transaction(holder, transactional_id, identity, now))
        return self.transactions[-1]

    def check(
        self,
        logs: Mapping[Partition, Sequence[LogBatch]],
        states: Sequence[CoordinatorState],
        *,
        is_at_rest: bool = True,
        max_epoch: int = 32_767,
        clocks_are_right: bool = True,
        ids_expire: bool = False,
    ) -> None:
        """Raise TransactionViolation unless all invariants hold. The logs are those of the leaders, from offset 0; at rest
        everything that began has ended. Where the coordinators' clocks are not right any open transaction may have timed out."""
        self._identities_are_given_once(max_epoch)
        self._fenced_producers_commit_nothing()
        self._fences_have_causes(clocks_are_right=clocks_are_right, ids_expire=ids_expire)
        ranges = {partition: _ranges(partition, log) for partition, log in logs.items()}
        for partition, log in logs.items():
            _nothing_is_written_twice(partition, log)
            _markers_fit(partition, log, is_at_rest=is_at_rest)
        visible = _visible(ranges)
        self._ends_are_as_answered(visible)
        self._nothing_is_read_too_early(visible)
        for reader in self.readers:
            _nothing_is_skipped(reader, ranges)
        self._stable_offsets_are_right(ranges)
        self._offsets_move_with_outputs(visible)
        if is_at_rest:
            self._states_agree(ranges, states)

    # -- rule 6

    def _fences_have_causes(self, *, clocks_are_right: bool, ids_expire: bool) -> None:
        for each in self.fences:
            if each.what.endswith("INVALID_PRODUCER_ID_MAPPING"):
                if ids_expire:
                    continue
            elif each.at >= each.times_out_at or (each.times_out_at < math.inf and not clocks_are_right):
                continue  # a timeout raises the epoch and leaves the producer id
            if not any(
                transactional_id == each.transactional_id
                and holder != each.holder
                and asked_at <= each.at
                and not self._was_over(holder, transactional_id, each)
                for transactional_id, holder, asked_at in self.takeovers
            ):
                raise TransactionViolation(
                    6,
                    f"{each.holder} {each.identity} got {each.what} at {each.at:.3f}, and nothing has fenced it",
                )

    def _was_over(self, holder: str, transactional_id: str, fence: Fence) -> bool:
        """Whether a take-over was answered before the fenced identity was asked for."""
        return any(
            one.holder == holder
            and one.transactional_id == transactional_id
            and one.takes_over
            and one.answered_at < fence.initialized_at
            for one in self.initializations
        )

    def _identities_are_given_once(self, max_epoch: int) -> None:
        given: dict[Identity, Initialization] = {}
        last: dict[str, list[Initialization]] = {}
        for each in sorted(self.initializations, key=lambda one: one.answered_at):
            if each.identity[1] >= max_epoch:
                raise TransactionViolation(
                    6, f"{each.holder} got {each.identity}: there is no later epoch to fence it"
                )
            before = given.setdefault(each.identity, each)
            if before is not each and (before.holder, before.transactional_id) != (
                each.holder,
                each.transactional_id,
            ):
                raise TransactionViolation(
                    6,
                    f"{each.holder} got {each.identity}, which {before.holder} has since {before.answered_at:.3f}",
                )
            for earlier in last.setdefault(each.transactional_id, []):
                if earlier.answered_at < each.asked_at and not _follows(each.identity, earlier.identity):
                    raise TransactionViolation(
                        6,
                        f"{each.holder} got {each.identity} for {each.transactional_id} after {earlier.identity}",
                    )
            last[each.transactional_id].append(each)

    def _fenced_producers_commit_nothing(self) -> None:
        for each in self.transactions:
            if each.outcome != COMMITTED:
                continue
            for other in self.initializations:
                if (
                    other.takes_over
                    and other.transactional_id == each.transactional_id
                    and other.holder != each.holder
                    and other.answered_at < each.requested_at
                    and _is_newer(other, each, self.initializations)
                ):
                    raise TransactionViolation(
                        6,
                        f"{each}: committed at {each.ended_at:.3f}, fenced by {other.holder} {other.identity}",
                    )

    # -- rules 1 and 2

    def _ends_are_as_answered(self, visible: Mapping[Partition, Mapping[bytes, int]]) -> None:
        known: set[bytes] = set()
        for each in self.transactions:
            shown = hidden = 0
            for partition, values in each.sent.items():
                known.update(values)
                if partition not in visible:
                    continue
                offsets = [visible[partition][value] for value in values if value in visible[partition]]
                shown += len(offsets)
                hidden += len(values) - len(offsets)
                if offsets != sorted(offsets):
                    raise TransactionViolation(1, f"{each}: another order in {partition}")
            if shown and not each.may_be_committed:
                raise TransactionViolation(2, f"{each}: {shown} of its records are visible")
            if shown and hidden:
                raise TransactionViolation(1, f"{each}: {shown} of its records are visible, {hidden} are not")
            if hidden and each.outcome == COMMITTED:
                raise TransactionViolation(1, f"{each}: its {hidden} records are not visible")
        for partition, shown_here in visible.items():
            for value in shown_here:
                if value not in known:
                    raise TransactionViolation(1, f"{value!r} in {partition} was never sent")

    def _nothing_is_read_too_early(self, visible: Mapping[Partition, Mapping[bytes, int]]) -> None:
        sources = {
            value: each for each in self.transactions for values in each.sent.values() for value in values
        }
        for reader in self.readers:
            for value, seen_at in reader.seen_at.items():
                source = sources.get(value)
                if source is None:
                    raise TransactionViolation(2, f"{reader.name} read {value!r}, which was never sent")
                if seen_at < source.requested_at:
                    raise TransactionViolation(
                        2, f"{reader.name} read {value!r} at {seen_at:.3f}, of {source} while that was open"
                    )

    # -- rule 3

    def _offsets_move_with_outputs(self, visible: Mapping[Partition, Mapping[bytes, int]]) -> None:
        ends = self._input_positions(visible)
        last: dict[tuple[str, Partition], list[GroupOffset]] = {}
        for found in sorted(self.group_offsets, key=lambda one: one.answered_at):
            key = found.group, found.partition
            for before in last.setdefault(key, []):
                if before.answered_at < found.asked_at and found.offset < before.offset:
                    raise TransactionViolation(
                        3, f"{found.group} has {found.offset} for {found.partition} after {before.offset}"
                    )
            last[key].append(found)
            if found.offset >= 0 and found.offset not in ends.get(key, ()):
                raise TransactionViolation(
                    3,
                    f"{found.group} has {found.offset} for {found.partition}, which no committed transaction has",
                )
        for key, answers in last.items():
            final = answers[-1]
            if key in ends and final.asked_at > self._last_end() and final.offset != ends[key][-1]:
                raise TransactionViolation(
                    3, f"{key[0]} has {final.offset} for {key[1]}, its outputs go to {ends[key][-1]}"
                )

    def _last_end(self) -> float:
        """When the last transaction that may be committed was asked to end, or its end was answered."""
        times = [
            each.requested_at if each.ended_at == math.inf else each.ended_at
            for each in self.transactions
            if each.may_be_committed
        ]
        return max(times, default=-math.inf)

    def _input_positions(
        self, visible: Mapping[Partition, Mapping[bytes, int]]
    ) -> dict[tuple[str, Partition], list[int]]:
        """Of each group and input: the positions that the committed transactions lead to, each from where the last one
        ended."""
        moves: dict[tuple[str, Partition], list[tuple[int, int, Transaction]]] = {}
        for each in self.transactions:
            if not _is_visible(each, visible):
                continue
            for key, (before, after) in each.consumed.items():
                moves.setdefault(key, []).append((before, after, each))
        found: dict[tuple[str, Partition], list[int]] = {}
        for key, several in moves.items():
            position = 0
            positions = found.setdefault(key, [])
            for before, after, each in sorted(several, key=lambda move: move[:2]):
                if before != position:
                    raise TransactionViolation(
                        3,
                        f"{each} read {key[1]} from {before} on; the outputs of {key[0]} before it go to {position}",
                    )
                position = after
                positions.append(after)
        return found

    # -- rule 4

    def _stable_offsets_are_right(self, ranges: Mapping[Partition, Sequence[_Range]]) -> None:
        before: dict[Partition, list[StableOffset]] = {}
        for each in sorted(self.stable_offsets, key=lambda one: one.answered_at):
            if each.last_stable_offset > each.high_watermark:
                raise TransactionViolation(
                    4, f"{each.partition}: {each.last_stable_offset} is above the end {each.high_watermark}"
                )
            for other in before.setdefault(each.partition, []):
                if (
                    other.answered_at < each.asked_at
                    and other.leader_epoch == each.leader_epoch
                    and other.last_stable_offset > each.last_stable_offset
                ):
                    raise TransactionViolation(
                        4,
                        f"{each.partition}: {each.last_stable_offset} at {each.answered_at:.3f}, after "
                        f"{other.last_stable_offset} at {other.answered_at:.3f}",
                    )
            before[each.partition] = [
                other for other in before[each.partition] if other.leader_epoch == each.leader_epoch
            ][-20:] + [each]
            for found in ranges.get(each.partition, ()):
                if found.first_offset >= each.last_stable_offset:
                    continue
                if found.marker is None or found.marker.base_offset >= each.high_watermark:
                    raise TransactionViolation(
                        4,
                        f"{each.partition}: {each.last_stable_offset} at {each.answered_at:.3f} passes the transaction of "
                        f"{found.identity} that began at {found.first_offset}",
                    )

    # -- rule 7

    def _states_agree(
        self, ranges: Mapping[Partition, Sequence[_Range]], states: Sequence[CoordinatorState]
    ) -> None:
        for state in states:
            if state.state.startswith("Prepare") or state.state == "Ongoing":
                raise TransactionViolation(7, f"{state.transactional_id} is in {state.state} at rest")
            mine = [
                found
                for several in ranges.values()
                for found in several
                if found.marker is not None and found.marker.identity == state.identity
            ]
            wanted = {"CompleteCommit": COMMIT, "CompleteAbort": ABORT}.get(state.state)
            for found in mine:
                assert found.marker is not None
                if wanted is not None and found.marker.marker != wanted and self._is_last_end(found, state):
                    raise TransactionViolation(
                        7,
                        f"{state.transactional_id} is in {state.state}, and {found.partition} has a marker to "
                        f"{found.marker.marker} at {found.marker.base_offset}",
                    )

    def _is_last_end(self, found: _Range, state: CoordinatorState) -> bool:
        """Whether a marker of the id's present epoch is that of its last end: with transaction.version 0 and 1 the epoch stays
        the same over several transactions."""
        mine = [
            each
            for each in self.transactions
            if each.transactional_id == state.transactional_id and any(each.sent.values())
        ]
        if not mine:
            return False
        last = {value for values in mine[-1].sent.values() for value in values}
        return any(value in last for _, value in found.values)


# -- the logs


def _ranges(partition: Partition, log: Sequence[LogBatch]) -> list[_Range]:
    """The transactions of a log, in the order of their first offsets."""
    found: list[_Range] = []
    current: dict[int, _Range] = {}
    for batch in log:
        producer_id = batch.identity[0]
        if batch.marker:
            ended = current.pop(producer_id, None)
            if ended is not None:
                ended.marker = batch
        elif batch.is_transactional:
            one = current.get(producer_id)
            if one is None:
                one = current[producer_id] = _Range(partition, batch.identity, batch.base_offset, [])
                found.append(one)
            one.identity = batch.identity
            one.values.extend(enumerate(batch.values, batch.base_offset))
    return found


def _visible(ranges: Mapping[Partition, Sequence[_Range]]) -> dict[Partition, dict[bytes, int]]:
    """The values of committed transactions by partition, with their offsets."""
    return {
        partition: {
            value: offset
            for found in several
            if found.marker is not None and found.marker.marker == COMMIT
            for offset, value in found.values
        }
        for partition, several in ranges.items()
    }


def _is_visible(transaction: Transaction, visible: Mapping[Partition, Mapping[bytes, int]]) -> bool:
    """Whether a transaction is committed, by its records or else by its answer."""
    for partition, values in transaction.sent.items():
        if values and partition in visible:
            return values[0] in visible[partition]
    return transaction.outcome == COMMITTED


def _nothing_is_written_twice(partition: Partition, log: Sequence[LogBatch]) -> None:
    """Rule 8."""
    seen: dict[bytes, int] = {}
    batches: dict[tuple[Identity, int], int] = {}
    for batch in log:
        for value in batch.values:
            if value in seen:
                raise TransactionViolation(
                    8, f"{partition}: {value!r} is at {seen[value]} and in the batch at {batch.base_offset}"
                )
            seen[value] = batch.base_offset
        if batch.base_sequence >= 0:
            before = batches.setdefault((batch.identity, batch.base_sequence), batch.base_offset)
            if before != batch.base_offset:
                raise TransactionViolation(
                    8,
                    f"{partition}: sequence {batch.base_sequence} of {batch.identity} is at {before} and {batch.base_offset}",
                )


def _markers_fit(partition: Partition, log: Sequence[LogBatch], *, is_at_rest: bool) -> None:
    """Rule 5."""
    open_epochs: dict[int, LogBatch] = {}  # the last batch of each open transaction
    known: dict[
        int, tuple[int, int]
    ] = {}  # producer id -> (epoch of the last marker, its transaction.version)
    for batch in log:
        producer_id, epoch = batch.identity
        if batch.marker:
            data = open_epochs.pop(producer_id, None)
            if data is not None and batch.transaction_version >= 2 and data.identity[1] >= epoch < 32767:
                raise TransactionViolation(
                    5, f"{partition}: the marker at {batch.base_offset} has epoch {epoch}, as its data have"
                )
            if data is not None and data.identity[1] > epoch:
                raise TransactionViolation(
                    5,
                    f"{partition}: the marker at {batch.base_offset} has epoch {epoch}, below that of its data",
                )
            if known.get(producer_id, (-1, 0))[0] > epoch:
                raise TransactionViolation(5, f"{partition}: epoch {epoch} at {batch.base_offset} goes back")
            known[producer_id] = epoch, batch.transaction_version
        elif producer_id >= 0:
            if known.get(producer_id, (-1, 0))[0] > epoch:
                raise TransactionViolation(
                    5,
                    f"{partition}: {batch.identity} at {batch.base_offset} is behind a marker of a later epoch",
                )
            if batch.is_transactional:
                before = open_epochs.get(producer_id)
                if before is not None and before.identity != batch.identity:
                    raise TransactionViolation(
                        5, f"{partition}: no marker between {before.identity} and {batch.identity}"
                    )
                open_epochs[producer_id] = batch
    if is_at_rest and open_epochs:
        batch = next(iter(open_epochs.values()))
        raise TransactionViolation(
            4, f"{partition}: the transaction of {batch.identity} at {batch.base_offset} has no marker"
        )


def _nothing_is_skipped(reader: Reader, ranges: Mapping[Partition, Sequence[_Range]]) -> None:
    """Rule 9, and of rules 1 and 2 what a single reader sees."""
    for partition, position in reader.position.items():
        if partition not in ranges:
            continue
        start = reader.start[partition]
        wanted = sorted(
            (offset, value)
            for found in ranges[partition]
            if found.marker is not None and found.marker.marker == COMMIT
            for offset, value in found.values
            if start <= offset < position
        )
        for (offset, value), expected in _pairs(reader.values.get(partition, []), wanted):
            if (offset, value) != expected:
                raise TransactionViolation(
                    9,
                    f"{reader.name} read {value!r} at {offset} of {partition}, where {expected} is committed",
                )


def _pairs(
    found: Sequence[tuple[int, bytes]], wanted: Sequence[tuple[int, bytes]]
) -> Iterator[tuple[tuple[int, bytes], tuple[int, bytes] | None]]:
    """What was read beside what is committed; (-1, b"") where nothing was read."""
    for index in range(max(len(found), len(wanted))):
        yield (
            found[index] if index < len(found) else (-1, b""),
            wanted[index] if index < len(wanted) else None,
        )


# -- identities


def _follows(identity: Identity, earlier: Identity) -> bool:
    """Whether an identity may be given out after another one of the same transactional id: a later epoch, the same one for a
    request that is repeated, or a new producer id when the epochs are used up."""
    return identity[0] != earlier[0] or identity[1] >= earlier[1]


def _is_newer(other: Initialization, each: Transaction, initializations: Sequence[Initialization]) -> bool:
    """Whether an identity was taken over after the transaction's own holder had got its own."""
    mine = [one for one in initializations if one.holder == each.holder and one.identity == each.identity]
    if mine and mine[0].asked_at > other.answered_at:
        return False
    if mine and other.identity[0] != each.identity[0] and mine[0].answered_at > other.asked_at:
        return False  # both were asked for at the same time, and ids of producers have no order
    return _follows(other.identity, each.identity) and other.identity != each.identity
