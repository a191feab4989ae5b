"""What the nodes know of transactions, compared with what follows from the batches of their logs: the coordinators' memory,
and each replica's producers and aborted transactions. The models are slow and obvious."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from barnabas.wire.records import iterate_records
from compat_tests.harness.transaction_history import ABORT, COMMIT, LogBatch
from compat_tests.harness.transaction_state_log import (
    STATES,
    StateRecord,
    check_markers,
    check_memory,
    check_sequence,
    decode,
)
from compat_tests.simulation.checkers import Held
from compat_tests.simulation.history import Violation

if TYPE_CHECKING:
    from barnabas.broker.transactions.shard import TransactionShard

STATE_TOPIC: Final = "__transaction_state"


# -- coordinators


def check_coordinator(
    held: Held, shard: TransactionShard | None, logs: dict[tuple[str, int], list[LogBatch]], max_epoch: int
) -> None:
    """One partition of __transaction_state at rest: `held` is its leader's log, `shard` what that has in memory, and `logs` are all
    partitions that clients have written to. Raises TransactionViolation."""
    records = [
        decode(bytes(record.key or b""), None if record.value is None else bytes(record.value))
        for _, data in held
        for record in iterate_records(data)
    ]
    check_sequence(records, max_epoch=max_epoch)
    check_memory(records, {} if shard is None else memory_of(shard))
    ids = {(record.producer_id, record.transactional_id) for record in records}
    mine = {producer_id for producer_id, _ in ids}
    check_markers(
        records,
        {partition: [batch for batch in log if batch.identity[0] in mine] for partition, log in logs.items()},
        max_epoch=max_epoch,
    )


def memory_of(shard: TransactionShard) -> dict[str, StateRecord]:
    """What a coordinator has in memory, in the form of its records."""
    found = {}
    for transactional_id, transaction in shard.transactions.items():
        data = transaction.data
        if transaction.pending is not None:
            raise Violation(f"{transactional_id}: {transaction.pending} is pending at rest")
        found[transactional_id] = StateRecord(
            transactional_id,
            STATES[data.state],
            data.producer_id,
            data.producer_epoch,
            data.timeout_ms,
            data.partitions,
            data.last_update_timestamp,
            data.start_timestamp,
            data.previous_producer_id,
            data.next_producer_id,
            data.client_transaction_version,
        )
    return found


# -- producers


@dataclasses.dataclass(slots=True)
class _Producer:
    epoch: int
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = -1
    first_offset: int = -1  # of the open transaction


def check_producers(name: str, held: Held, log: Any, *, may_expire: bool) -> None:
    """A replica's producers and its aborted transactions are those of its batches, `held`. Raises Violation.

    `may_expire`: producers without an open transaction may be missing."""
    producers: dict[int, _Producer] = {}
    aborted: list[tuple[int, int, int]] = []  # producer id, first offset, offset of the marker
    sequences: dict[tuple[int, int], int] = {}
    for header, data in held:
        if header.producer_id < 0:
            continue
        one = producers.setdefault(header.producer_id, _Producer(header.producer_epoch))
        if header.producer_epoch < one.epoch:
            raise Violation(
                f"{name}: epoch {header.producer_epoch} at {header.base_offset} is behind {one.epoch}"
            )
        if header.producer_epoch > one.epoch:
            one.epoch, one.last_sequence = header.producer_epoch, -1
        one.last_timestamp = header.max_timestamp
        if header.is_control:
            (record,) = iterate_records(data)
            epoch = int.from_bytes(bytes(record.value or b"")[2:6], "big")
            if epoch < one.coordinator_epoch and not may_expire:
                raise Violation(f"{name}: a marker of coordinator epoch {epoch} at {header.base_offset} is behind one of {one.coordinator_epoch}")  # fmt: skip
            one.coordinator_epoch = epoch
            if one.first_offset >= 0 and _marker(data) == ABORT:
                aborted.append((header.producer_id, one.first_offset, header.base_offset))
            one.first_offset = -1
            continue
        expected = sequences.get((header.producer_id, header.producer_epoch), 0)
        if header.base_sequence >= 0 and header.base_sequence != expected:
            raise Violation(
                f"{name}: sequence {header.base_sequence} of producer {header.producer_id}, epoch {header.producer_epoch}, at "
                f"{header.base_offset} follows {expected - 1}"
            )
        sequences[header.producer_id, header.producer_epoch] = header.last_sequence + 1
        one.last_sequence = header.last_sequence
        if header.is_transactional and one.first_offset < 0:
            one.first_offset = header.base_offset
    known = log.producers.active
    for producer_id, one in producers.items():
        entry = known.get(producer_id)
        if entry is None:
            if one.first_offset >= 0 or not may_expire:
                raise Violation(f"{name}: producer {producer_id} is not known, the log has {one}")
            continue
        found = _Producer(
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.current_transaction_first_offset,
        )
        if found != one:
            raise Violation(f"{name}: producer {producer_id} is {found}, by the log it is {one}")
    if unknown := known.keys() - producers.keys():
        raise Violation(f"{name}: producers {unknown} are not in the log")
    indexed = [
        (each.producer_id, each.first_offset, each.last_offset)
        for each in log.producers.collect_aborted(0, log.log_end_offset)
    ]
    if indexed != aborted:
        raise Violation(f"{name}: the aborted transactions are {indexed}, by the log {aborted}")


def _marker(data: bytes) -> str:
    (record,) = iterate_records(data)
    return COMMIT if int.from_bytes(bytes(record.key or b"")[2:4], "big") == 1 else ABORT


def batches(held: Held) -> list[LogBatch]:
    """A log as the checkers of transactions read it."""
    return [
        LogBatch(
            header.base_offset,
            header.last_offset,
            (header.producer_id, header.producer_epoch),
            header.is_transactional,
            _marker(data) if header.is_control else "",
            ()
            if header.is_control
            else tuple(bytes(record.value or b"") for record in iterate_records(data)),
            header.base_sequence,
        )
        for header, data in held
    ]
