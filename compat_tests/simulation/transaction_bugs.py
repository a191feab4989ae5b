"""Bugs that Kafka's transactions had, planted one at a time: they prove that the simulator finds such bugs.

Each replaces single functions at run time; the product has no switch for them. `python -m compat_tests.simulation.transactions
--bug NAME` looks for the first seed that finds one. The number is that of Kafka's issue.

Of the other issues in Kafka's list these can't exist here, or can't be seen by clients:

| KAFKA- | why |
|---|---|
| 9807 | the last stable offset and the high watermark are read in one turn of the event loop |
| 7866 | an aborted transaction is indexed in memory, which can't fail; the file is written with its segment |
| 10778 | a log whose disk has failed is offline, and with its only directory the broker ends |
| 7190 | producers are not removed with their records, and nothing here deletes records |
| 14904 | a failed verification is NOT_ENOUGH_REPLICAS for old clients, which send the batch again (test_verification_requests.py) |
| 9600 | no client has an epoch that its coordinator has not committed, so none is higher; a lower one: no-epoch-is-checked |
| 18401, 18227 | mended in Kafka's client: a commit of nothing is INVALID_TXN_STATE, and the broker goes by each request's version |
| 18654, 18662 | costs time only: the broker repeats CONCURRENT_TRANSACTIONS, and clients do (test_late_batches.py) |
| 19999 | a marker's INVALID_PRODUCER_EPOCH ends its partition, so a refused repetition is one that was written |
| 20322 | the version of markers needs no negotiation: every broker with transactions has WriteTxnMarkers 2 |
| 14880 | an id with epoch -1 exists only while its first record is pending, and goes with a failed append |
| 13099 | tombstones go in batches of bounded size; too few ids live here (test_transaction_coordinator.py) |
| 20031, 20058 | an answer without a block fails all that wait, and there is one request at a time (test_producer_ids.py) |
| 18957 | its cause is not known |
| 18137 | a load that is cancelled calls nothing back (test_coordinator_log.py) |
| 15784 | members of groups do not transact here (test_transactional_commits.py: the group is checked after the answer) |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final
from unittest import mock

import msgspec

from barnabas.broker.coordinator.shards import Shards
from barnabas.broker.groups import offset_requests
from barnabas.broker.groups.coordinator import GroupCoordinator
from barnabas.broker.groups.group import ClassicGroup
from barnabas.broker.groups.offset_requests import OffsetRequests
from barnabas.broker.groups.offsets import OffsetStore
from barnabas.broker.partitions.leadership import PartitionLeadership
from barnabas.broker.transactions import batch_verifier, markers, records, transaction
from barnabas.broker.transactions.batch_verifier import BatchVerifier
from barnabas.broker.transactions.coordinator import TransactionCoordinator
from barnabas.broker.transactions.shard import TransactionShard
from barnabas.broker.transactions.state import TransactionState
from barnabas.broker.transactions.transaction import Transaction, _Sender
from barnabas.controller.metadata.image import INTERNAL_TOPICS
from barnabas.controller.operations import producer_ids
from barnabas.storage.log.log import Log
from barnabas.storage.log.producers import ProducerStateManager
from barnabas.storage.log.verification import VERIFICATION_OFF, Verifications
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import ProducerIdsRecord
from compat_tests.simulation.bugs import Patch

_S, _E = TransactionState, ErrorCode


# -- before a batch is appended


def _late_batches_open_transactions() -> list[Patch]:
    """12671: nothing is verified for clients of transaction.version 0 and 1."""
    begin, verification = BatchVerifier.begin, BatchVerifier.verification
    return [
        (BatchVerifier, "begin", lambda self: begin(self) if self._adds else iter(())),
        (
            BatchVerifier,
            "verification",
            lambda self, each: verification(self, each) if self._adds else VERIFICATION_OFF,
        ),
    ]


def _guard_is_not_checked() -> list[Patch]:
    """14884: a marker between the coordinator's answer and the append goes unnoticed."""
    return [(BatchVerifier, "verification", lambda _self, _partition: VERIFICATION_OFF)]


def _lowest_sequence_is_forgotten() -> list[Patch]:
    """14920: a batch passes one before it that was not verified."""
    check = Verifications.check

    def checked(self: Verifications, header: Any, *rest: Any) -> None:
        known = self.entries.get(header.producer_id)
        if known is not None:
            known.lowest_sequence = max(known.lowest_sequence, header.base_sequence)
        check(self, header, *rest)

    return [(Verifications, "check", checked)]


def _first_sequence_is_not_checked() -> list[Patch]:
    """18202: with transaction.version 2 a producer that is not known may begin with any sequence. The leaders of topics also
    acknowledge what only they have, so that there are such producers."""
    check, commit = Verifications.check, PartitionLeadership.when_committed

    def checked(self: Verifications, header: Any, *rest: Any) -> None:
        known = self.entries.get(header.producer_id)
        if known is None:
            check(self, header, *rest)
            return
        bumps, known.supports_epoch_bump = known.supports_epoch_bump, False
        try:
            check(self, header, *rest)
        finally:
            known.supports_epoch_bump = bumps

    def when_committed(
        self: PartitionLeadership, end_offset: int, call: Callable[[ErrorCode], object]
    ) -> None:
        if self._partition.topic in INTERNAL_TOPICS:
            commit(self, end_offset, call)
        else:
            call(_E.NONE)

    return [(Verifications, "check", checked), (PartitionLeadership, "when_committed", when_committed)]


def _errors_among_brokers_are_passed_on() -> list[Patch]:
    """16386: an old client gets NETWORK_EXCEPTION."""
    return [(batch_verifier, "_RETRIABLE", frozenset())]


# -- decisions


def _no_epoch_is_checked() -> list[Patch]:
    """EndTxn of a fenced producer ends the transaction of its successor."""
    end = TransactionShard.end

    def ended(
        self: TransactionShard, transactional_id: str, producer_id: int, epoch: int, *rest: Any
    ) -> object:
        one = self.transactions.get(transactional_id)
        if one is not None:
            producer_id, epoch = one.data.producer_id, one.data.producer_epoch
        return end(self, transactional_id, producer_id, epoch, *rest)

    return [(TransactionShard, "end", ended)]


def _failed_fence_raises_again() -> list[Patch]:
    """9666: a fence that could not be written raises the epoch once more when it is repeated."""
    return [(Transaction, "drop", lambda self: self._end_pending() and None)]


def _fence_of_version_2_raises_twice() -> list[Patch]:
    """19367: as with version 1 the stored epoch is raised before the append has succeeded."""
    begin = Transaction.begin

    def begun(self: Transaction, transition: Any) -> None:
        begin(self, transition)
        if transition.is_fence:
            self.data = msgspec.structs.replace(self.data, producer_epoch=transition.producer_epoch)

    return [(Transaction, "begin", begun)]


def _empty_abort_fences() -> list[Patch]:
    """18464: an abort of nothing fences its own producer."""
    states = (_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)
    outcomes: dict[Any, Any] = {
        (state, _Sender.CURRENT): (_E.INVALID_TXN_STATE, _E.PRODUCER_FENCED) for state in states
    }
    return [(transaction, "_END_BUMPING", {**transaction._END_BUMPING, **outcomes})]


def _identity_before_pending() -> list[Patch]:
    """18575: a producer that has the next producer id already is refused while its last transaction is completed."""
    add = Transaction.add_partitions

    def added(self: Transaction, producer_id: int, epoch: int, *rest: Any, **named: Any) -> Any:
        return self._check_participant(producer_id, epoch) or add(self, producer_id, epoch, *rest, **named)

    return [(Transaction, "add_partitions", added)]


def _overflow_is_not_repeated() -> list[Patch]:
    """18660: an end that has changed the producer id can't be repeated."""
    sender = Transaction._sender

    def found(self: Transaction, *identity: int) -> _Sender:
        known = sender(self, *identity)
        return _Sender.OTHER if known is _Sender.OVERFLOW_RETRY else known

    return [(Transaction, "_sender", found)]


def _last_epoch_is_given_out() -> list[Patch]:
    """20090: a client gets the epoch that nothing can fence."""
    end = Transaction.end_bumping

    def ended(self: Transaction, producer_id: int, epoch: int, **named: Any) -> Any:
        decision, data = end(self, producer_id, epoch, **named), self.data
        is_last = epoch + 1 == data.producer_epoch == transaction.LAST_CLIENT_EPOCH + 1
        if decision == _E.PRODUCER_FENCED and is_last:
            return transaction.Accepted(producer_id, data.producer_epoch)
        return decision

    return [(Transaction, "end_bumping", ended)]


def _next_id_is_not_logged() -> list[Patch]:
    """20310: a coordinator that is loaded does not know the next producer id."""
    encode = records.encode_value

    def encoded(data: Any, version: int) -> bytes | None:
        known = None if data is None else msgspec.structs.replace(data, next_producer_id=-1)
        return encode(known, version)

    return [(records, "encode_value", encoded)]


def _failed_expiry_stays_pending() -> list[Patch]:
    """7519: an id whose tombstone could not be written gets CONCURRENT_TRANSACTIONS for ever."""
    drop = Transaction.drop

    def dropped(self: Transaction) -> None:
        assert self.pending is not None
        if self.pending.state != _S.DEAD:
            drop(self)

    return [(Transaction, "drop", dropped)]


# -- completion, loading


def _completion_is_written_twice() -> list[Patch]:
    """10080: a completion is repeated although it is in the log."""

    def complete(self: TransactionShard, one: Transaction) -> None:
        def ended(error: ErrorCode) -> None:
            if error and not self._log.is_closed:
                self._runtime.call_later(0.1, partial(self._complete, one))

        if not self._log.is_closed:
            self._append([one], one.data.timeout_ms, ended)

    return [(TransactionShard, "_complete", complete)]


def _failed_completion_is_forgotten() -> list[Patch]:
    """16352: a transaction stays in PREPARE_COMMIT."""
    failed = TransactionShard._failed

    def ended(self: TransactionShard, one: Transaction) -> None:
        assert one.pending is not None
        if one.pending.state not in (_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT):
            failed(self, one)

    return [(TransactionShard, "_failed", ended)]


def _partitions_are_loaded_twice() -> list[Patch]:
    """15468: a partition that is led in the next epoch is loaded again, beside what is in memory."""
    keep = Shards._keep_or_unload

    def kept(self: Shards[Any], index: int, topic_id: bytes, state: Any) -> None:
        led = self.led[index]
        if state is not None and state.leader == self._node_id and state.leader_epoch == led.leader_epoch + 1:
            del self.led[index]
        else:
            keep(self, index, topic_id, state)

    return [(Shards, "_keep_or_unload", kept)]


def _markers_are_not_sent_again() -> list[Patch]:
    """A new coordinator leaves the ends as they are that its predecessor has decided."""

    def resume(_self: TransactionShard) -> Iterator[None]:
        yield from ()

    return [(TransactionShard, "_resume", resume)]


def _replica_errors_end_markers() -> list[Patch]:
    """9749: a marker that a leader could not write is not sent again."""
    outcomes = dict(markers._OUTCOMES)
    for error in (_E.KAFKA_STORAGE_ERROR, _E.NOT_ENOUGH_REPLICAS, _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
        outcomes[error] = markers._Outcome.FENCED
    return [(markers, "_OUTCOMES", outcomes)]


def _producer_ids_overlap() -> list[Patch]:
    """19990: two brokers get the same block."""

    def unmoved(**fields: int) -> Any:
        fields["next_producer_id"] -= producer_ids.BLOCK_SIZE
        return ProducerIdsRecord(**fields)

    return [(producer_ids, "ProducerIdsRecord", unmoved)]


def _errors_of_the_controller_are_passed_on() -> list[Patch]:
    """14417: a client gets an error that it does not repeat its request after, when there is no producer id."""

    def attempt(
        self: TransactionCoordinator, transactional_id: str, ask: Any, done: Any, new_id: int | None = None
    ) -> None:
        shard = self.shards.of(transactional_id)
        if isinstance(shard, ErrorCode):
            done(shard, -1, -1)
        elif ask(shard, new_id) is not None:

            def allocated(producer_id: int, error: ErrorCode) -> None:
                if error:
                    done(_E.REQUEST_TIMED_OUT, -1, -1)
                else:
                    self._attempt(transactional_id, ask, done, producer_id)

            self._producer_ids.next(allocated)

    return [(TransactionCoordinator, "_attempt", attempt)]


# -- in the partitions


def _markers_do_not_refresh() -> list[Patch]:
    """9144: a producer is as old as its last data."""
    end = ProducerStateManager._end_transaction

    def ended(self: ProducerStateManager, header: Any, marker: Any) -> Any:
        entry = self.entries.get(header.producer_id)
        before = -1 if entry is None else entry.last_timestamp
        aborted = end(self, header, marker)
        self.entries[header.producer_id].last_timestamp = before
        return aborted

    return [(ProducerStateManager, "_end_transaction", ended)]


def _late_markers_end_the_next() -> list[Patch]:
    """19446: a marker of transaction.version 2 that comes again ends the next transaction, which has its epoch."""
    check = ProducerStateManager.check_marker

    def checked(
        self: ProducerStateManager, producer_id: int, epoch: int, coordinator_epoch: int, *rest: Any
    ) -> None:
        check(self, producer_id, epoch, coordinator_epoch, 0, rest[1])

    return [(ProducerStateManager, "check_marker", checked)]


def _open_transactions_are_read() -> list[Patch]:
    """Consumers with read_committed read up to the high watermark."""
    return [(Log, "last_stable_offset", property(lambda self: self.high_watermark))]


def _aborted_transactions_are_not_named() -> list[Patch]:
    """A fetch names no aborted transactions."""
    return [(Log, "aborted_within", lambda *_arguments, **_named: [])]


# -- groups


def _markers_are_answered_early() -> list[Patch]:
    """17507: a marker is acknowledged before the group's offsets are visible."""
    end = GroupCoordinator.end_transaction

    def ended(self: GroupCoordinator, index: int, marker: Any, done: Callable[[ErrorCode], object]) -> None:
        end(self, index, marker, lambda _error: None)
        done(_E.NONE)

    return [(GroupCoordinator, "end_transaction", ended)]


def _unstable_offsets_are_answered() -> list[Patch]:
    """OffsetFetch answers the last committed offset while another one waits for its marker."""
    return [(OffsetStore, "is_pending", lambda *_: False)]


def _empty_members_are_refused() -> list[Patch]:
    """18060: a commit without a member is refused beside members."""

    def check(self: OffsetRequests, request: Any, _topics: Any) -> ErrorCode:
        group = self._groups.get(request.group_id)
        if not isinstance(group, ClassicGroup):
            return _E.NONE
        member = request.member_id, request.group_instance_id, request.generation_id
        return offset_requests._check_committer(group, *member)

    return [(OffsetRequests, "_check_transactional_commit", check)]


def _groups_are_deleted_under_transactions() -> list[Patch]:
    """19163: a group expires that has only what an open transaction has written."""
    expire = OffsetRequests.expire

    def expired(self: OffsetRequests, now_ms: int) -> Iterator[None]:
        with mock.patch.object(OffsetStore, "pending_of", return_value=()):
            steps = [*expire(self, now_ms)]  # at once: other nodes run between steps
        yield from steps

    return [(OffsetRequests, "expire", expired)]


BUGS: Final[dict[str, Callable[[], list[Patch]]]] = {
    each.__name__.strip("_").replace("_", "-"): each
    for each in (
        _late_batches_open_transactions,
        _guard_is_not_checked,
        _lowest_sequence_is_forgotten,
        _first_sequence_is_not_checked,
        _errors_among_brokers_are_passed_on,
        _no_epoch_is_checked,
        _failed_fence_raises_again,
        _fence_of_version_2_raises_twice,
        _empty_abort_fences,
        _identity_before_pending,
        _overflow_is_not_repeated,
        _last_epoch_is_given_out,
        _next_id_is_not_logged,
        _failed_expiry_stays_pending,
        _completion_is_written_twice,
        _failed_completion_is_forgotten,
        _partitions_are_loaded_twice,
        _markers_are_not_sent_again,
        _replica_errors_end_markers,
        _producer_ids_overlap,
        _errors_of_the_controller_are_passed_on,
        _markers_do_not_refresh,
        _late_markers_end_the_next,
        _open_transactions_are_read,
        _aborted_transactions_are_not_named,
        _markers_are_answered_early,
        _unstable_offsets_are_answered,
        _empty_members_are_refused,
        _groups_are_deleted_under_transactions,
    )
}

# A seed that finds the bug, as of the last search. Changes of the code move it: `--bug NAME` searches for another one.
FOUND_BY: Final[dict[str, int]] = {
    "late-batches-open-transactions": 10,
    "guard-is-not-checked": 10,
    "lowest-sequence-is-forgotten": 11,
    "first-sequence-is-not-checked": 477,
    "errors-among-brokers-are-passed-on": 0,
    "no-epoch-is-checked": 0,
    "failed-fence-raises-again": 5,
    "fence-of-version-2-raises-twice": 15,
    "empty-abort-fences": 0,
    "identity-before-pending": 0,
    "overflow-is-not-repeated": 17,
    "last-epoch-is-given-out": 15,
    "next-id-is-not-logged": 0,
    "failed-expiry-stays-pending": 1,
    "completion-is-written-twice": 0,
    "failed-completion-is-forgotten": 0,
    "partitions-are-loaded-twice": 6,
    "markers-are-not-sent-again": 17,
    "replica-errors-end-markers": 7,
    "producer-ids-overlap": 0,
    "errors-of-the-controller-are-passed-on": 0,
    "markers-do-not-refresh": 0,
    "late-markers-end-the-next": 0,
    "open-transactions-are-read": 0,
    "aborted-transactions-are-not-named": 0,
    "markers-are-answered-early": 30,
    "unstable-offsets-are-answered": 1,
    "empty-members-are-refused": 0,
    "groups-are-deleted-under-transactions": 13,
}

# What a seed has to say to have found the bug, where something else is broken for it, too.
SAYS: Final[dict[str, str]] = {"first-sequence-is-not-checked": "follows -1"}


def is_found(bug: str, failure: str) -> bool:
    """Whether a seed's failure shows the bug; an error of the simulator itself shows none."""
    is_violation = failure.startswith(("Violation", "TransactionViolation", "AssertionError"))
    return is_violation and SAYS.get(bug, "") in failure


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """Plants a bug while the simulation runs; the empty name plants none."""
    with ExitStack() as stack:
        for where, name, replacement in BUGS[bug]() if bug else ():
            assert hasattr(where, name), name
            stack.enter_context(mock.patch.object(where, name, replacement))
        yield
