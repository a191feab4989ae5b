"""The leader's side of a replicated partition: its followers, the in-sync replicas, the high watermark.

The rules, Kafka's (Partition.scala, KIP-497, KIP-841, KIP-903, KIP-966):
- The high watermark is the smallest end of all replicas of the maximal ISR, which holds all that are in the ISR
  or may be: the committed one and a replica whose admission has been proposed; a replica whose removal has been proposed
  stays until that is committed. It never goes back, and does not move while the ISR is smaller than
  min.insync.replicas.
- A replica that is close behind and eligible holds the high watermark back as well, or it could never catch up with one
  that follows the leader's end.
- A follower joins the ISR when it has reached the high watermark and the start of the leader's epoch: what was
  committed before may lie above the high watermark that is known here, but not above that start. Where an extension
  requires more of a leader than its log, a follower joins when it has that, too (`IsrRules.may_take_over`).
- A replica that holds up acknowledgements is hedged out: it leaves the ISR early, and is not waited for as it joins
  (isr_hedge.py). This is not Kafka's.
- One proposal at a time; the state that the controller has committed is applied from its answer or from the metadata,
  whichever arrives first.

A follower's fetch, an append, a sync and a change of the ISR each call `advance`, and nothing else moves the high
watermark of a leader.
"""

from __future__ import annotations

import logging
from bisect import bisect_right, insort
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from barnabas.broker.partitions.alter_partition import IsrChange
from barnabas.broker.partitions.isr_hedge import HEDGED_ISR_MIN
from barnabas.broker.partitions.replica import RemoteReplica
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.partitions.alter_partition import AlterPartitionManager
    from barnabas.broker.partitions.isr_rules import IsrRules
    from barnabas.broker.partitions.replica import LocalReplica
    from barnabas.controller.metadata.image import PartitionState
    from barnabas.storage.log.leader_append import AppendResult
    from barnabas.wire.messages.alter_partition import ResponsePartitionData

log = logging.getLogger("barnabas.replication")

Call = Callable[[ErrorCode], object]
_OFFSET: Final = itemgetter(0)
UNCOMMITTED_MAX: Final = 256
TAIL_BYTES_MAX: Final = 8 * 1024
# The partition epoch is right, and the controller has changed nothing.
_NOT_DONE: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
# The state here is old, or will be: the next metadata settles it, and until then the proposal stays.
_SETTLED_BY_METADATA: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)


class PartitionLeadership:
    """See the module. It exists while this broker leads a partition that has other replicas; it does not know what followers
    fetched when this broker led before."""

    __slots__ = (
        "_deletions",
        "_hedged",
        "_is_over",
        "_last_base_offset",
        "_maximal",
        "_partition",
        "_pending",
        "_proposals",
        "_rules",
        "_skipped",
        "_tail",
        "_uncommitted",
        "_waiting",
        "epoch_start_offset",
        "isr",
        "replicas",
        "wait",
    )

    def __init__(self, partition: LocalReplica, rules: IsrRules, proposals: AlterPartitionManager) -> None:
        self._partition = partition
        self._rules = rules
        self._proposals = proposals
        self._is_over = False
        self.replicas: dict[int, RemoteReplica] = {}  # by broker id, without this broker
        self.isr: list[int] = []  # as committed
        self._maximal: frozenset[int] = frozenset()
        self._pending: IsrChange | None = None
        # Followers that might have been proposed since it was made.
        self._skipped: frozenset[int] = frozenset()
        self._hedged: list[RemoteReplica] = []  # which the pending proposal hedges out
        self.wait: object | None = None  # while IsrHedge watches it
        self.epoch_start_offset = 0
        self._waiting: list[tuple[int, Call]] = []  # (end offset, called once it is committed), ascending
        self._deletions: list[tuple[int, Call]] = []  # (low watermark, called once it is reached)
        self._uncommitted: list[tuple[int, int]] = []  # (end offset, bytes) of appends
        self._last_base_offset = -1  # of the last append
        self._tail = b""  # that batch, while it is small and uncommitted: followers fetch it next

    # -- the metadata

    def take(self, state: PartitionState, *, is_new_epoch: bool) -> None:
        """Apply a committed state of the partition."""
        log_end = self._partition.log.log_end_offset
        for broker_id in [each for each in self.replicas if each not in state.replicas]:
            del self.replicas[broker_id]
        for broker_id in state.replicas:
            if broker_id != self._rules.node_id and broker_id not in self.replicas:
                self.replicas[broker_id] = RemoteReplica(broker_id)
        if is_new_epoch:
            now = self._rules.now()
            self.epoch_start_offset = log_end
            self.isr = list(state.isr)
            for replica in self.replicas.values():
                replica.reset(now, log_end, in_sync=replica.broker_id in state.isr)
        self._settle(state.isr)
        self.advance()
        if not is_new_epoch:
            self._look_at_skipped()
        self._low_watermark_moved()

    def _settle(self, isr: list[int]) -> None:
        """This ISR is committed, and no proposal is pending."""
        if self._pending is not None:
            self._pending.obsolete = True
            self._pending = None
        self._rules.isr_shrinks += len(isr) < len(self.isr)
        self._rules.isr_expands += len(isr) > len(self.isr)
        self.isr = list(isr)
        self._maximal = frozenset(isr)
        hedged, self._hedged = self._hedged, []
        for replica in hedged:
            if replica.broker_id not in isr:
                replica.rest(self._rules.now())
                self._rules.hedge.hedges[replica.broker_id] += 1

    def resign(self) -> None:
        """This broker no longer leads, or no longer hosts, the partition."""
        self._is_over = True
        if self._pending is not None:
            self._pending.obsolete = True
            self._pending = None
        waiting, self._waiting = self._waiting, []
        deletions, self._deletions = self._deletions, []
        _call_all(waiting + deletions, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def end_alone(self) -> list[tuple[int, Call]]:
        """This broker stays the leader, as the only replica. Returns the waiting (end offset, callback)."""
        self._is_over = True
        self._settle([self._rules.node_id])
        self.replicas.clear()
        waiting, self._waiting = self._waiting, []
        self._low_watermark_moved()
        return waiting

    # -- appending

    @property
    def min_isr(self) -> int:
        """min.insync.replicas, at most the number of replicas that are not observers."""
        config = self._partition.log.config
        observer_count = len(config.observers.intersection(self.replicas)) if config.observers else 0
        return min(config.min_insync_replicas, len(self.replicas) + 1 - observer_count)

    @property
    def is_under_min_isr(self) -> bool:
        return len(self.isr) < self.min_isr

    def append_failed(self) -> None:
        """The disk has refused an append: another replica in sync should lead."""
        if len(self.isr) > 1:
            self._rules.on_append_failed()

    def check_enough_replicas(self) -> None:
        """NOT_ENOUGH_REPLICAS when the ISR is too small for an append with acks=all."""
        if len(self.isr) < self.min_isr:
            partition = self._partition
            raise StorageError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {self.isr} is insufficient to satisfy the min.isr requirement of "
                f"{self.min_isr} for partition {partition.name}",
            )

    def appended(self, result: AppendResult, byte_count: int) -> None:
        """A batch has been appended, or is a duplicate of one in the log."""
        partition = self._partition
        end_offset = result.last_offset + 1
        if not result.duplicate:
            self._last_base_offset = result.base_offset
            self._note_uncommitted(end_offset, byte_count)
            # A produce that waits keeps the result, which must not keep the buffer of the request.
            records, result.records = result.records, None
            self._tail = bytes(records) if records and len(records) <= TAIL_BYTES_MAX else b""
            waiters = partition.replica_waiters
            if waiters:
                for waiter in tuple(waiters):
                    waiter.appended(partition, byte_count)
            if result.awaits_sync:
                partition.log.flusher.when_synced(end_offset, self._synced)
            elif len(self._maximal) == 1:
                self.advance()
        else:  # what held the high watermark back may be gone: a joining replica that was fenced
            self.advance()
        result.awaits_commit = partition.log.high_watermark < end_offset

    def _note_uncommitted(self, end_offset: int, byte_count: int) -> None:
        uncommitted = self._uncommitted
        if len(uncommitted) >= UNCOMMITTED_MAX:  # no follower keeps up: the last ones become one entry
            byte_count += uncommitted.pop()[1]
        uncommitted.append((end_offset, byte_count))

    def tail_at(self, offset: int) -> bytes | None:
        """The last batch, if the log ends with it from `offset` on and it is in memory; else None."""
        return self._tail or None if offset == self._last_base_offset else None

    def _synced(self, failure: str | None) -> None:
        if failure is None and not self._is_over:
            self.advance()

    def when_committed(self, end_offset: int, call: Call) -> None:
        """Call once: with NONE when the high watermark has reached `end_offset` (NOT_ENOUGH_REPLICAS_AFTER_APPEND when the
        ISR has become too small), with NOT_LEADER_OR_FOLLOWER when this broker stops leading before."""
        if self._partition.log.high_watermark >= end_offset:
            call(self._commit_error())
            return
        waiting = self._waiting
        if not waiting or waiting[-1][0] <= end_offset:
            waiting.append((end_offset, call))
        else:
            insort(waiting, (end_offset, call), key=_OFFSET)
        if self.wait is None and self._partition.log.config.isr_hedge_ms >= 0:
            self._rules.hedge.watch(self)

    def _commit_error(self) -> ErrorCode:
        if len(self._maximal) < self.min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    # -- followers

    def follower_fetched(
        self, replica: RemoteReplica, broker_epoch: int, fetch_offset: int, start_offset: int
    ) -> bool:
        """A follower has everything below `fetch_offset`, from `start_offset` on. False, and nothing changes, when its broker
        epoch is missing or older than the registered one."""
        rules = self._rules
        known = rules.alive_epoch(replica.broker_id)
        if broker_epoch < 0 or (known is not None and known > broker_epoch):
            return False
        log_end = self._partition.log.log_end_offset
        start_before = replica.start_offset
        moved = replica.fetched(fetch_offset, start_offset, rules.now(), log_end, broker_epoch)
        if replica.broker_id not in self._maximal:
            self.reconsider(replica.broker_id)
        if moved:
            self.advance()
        if self._deletions and start_before != start_offset:
            self._low_watermark_moved()
        return True

    def was_idle(self, broker_id: int, until: float) -> None:
        """Before the last append, a follower that was caught up kept fetching up to the time `until`, in a session whose
        requests did not name this partition (fetch/sessions.py)."""
        replica = self.replicas.get(broker_id)
        if replica is not None and replica.end_offset == self._last_base_offset:
            replica.was_idle(until)

    def is_settled(self, broker_id: int) -> bool:
        """Whether the follower's next fetch changes nothing here: it is in the ISR, or a proposal is in flight, after which
        it is looked at."""
        return self._pending is not None or broker_id in self._maximal

    def _admit(self, replica: RemoteReplica) -> None:
        """Propose the replica for the ISR if it may join."""
        end_offset = replica.end_offset
        if (
            end_offset >= self._partition.log.high_watermark
            and end_offset >= self.epoch_start_offset
            and not replica.is_resting
            and self._may_be_in_sync(replica)
            and self._rules.may_take_over(self._partition, replica)
        ):
            self._propose([*self.isr, replica.broker_id])
            self._maximal |= {replica.broker_id}

    def _may_be_in_sync(self, replica: RemoteReplica) -> bool:
        return replica.broker_id not in self._partition.log.config.observers and self._rules.may_be_in_sync(
            replica
        )

    @property
    def readable(self) -> list[int]:
        """Brokers that consumers may read from: the ISR and the observers."""
        observers = self._partition.log.config.observers
        return [*self.isr, *(each for each in self.replicas if each in observers and each not in self.isr)]

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica that is not an observer is out of sync."""
        observers = self._partition.log.config.observers
        return any(each not in self.isr and each not in observers for each in self.replicas)

    def reconsider(self, broker_id: int) -> None:
        """Propose the follower if it may join by now: it has fetched, or `IsrRules.may_take_over` has changed. While another proposal is in
        flight, do it later."""
        replica = self.replicas.get(broker_id)
        if replica is None or broker_id in self._maximal:
            return
        if self._pending is None:
            self._admit(replica)
        else:
            self._skipped |= {broker_id}

    def _look_at_skipped(self) -> None:
        """A proposal has been decided. Propose the next follower; all fetches of the others count again."""
        if self._is_over:
            return
        skipped, self._skipped = self._skipped, frozenset()
        for broker_id in skipped:
            self.reconsider(broker_id)
        if not all(map(self.is_settled, self.replicas)):
            self._partition.interrupt_followers()

    def drop_laggards(self, now: float) -> None:
        """Propose an ISR without the followers that have not been caught up for replica.lag.time.max.ms."""
        self.advance()  # as in `appended`
        if self._pending is not None:
            return
        log_end = self._partition.log.log_end_offset
        lag_max_s = self._rules.lag_time_max_s
        kept = [
            broker_id
            for broker_id in self.isr
            if broker_id == self._rules.node_id
            or (
                (replica := self.replicas.get(broker_id)) is not None
                and replica.is_caught_up(log_end, now, lag_max_s)
            )
        ]
        if len(kept) < len(self.isr):
            partition = self._partition
            log.info(
                "%s: the ISR is to shrink from %s to %s (high watermark %d, end %d)",
                partition.name,
                self.isr,
                kept,
                partition.log.high_watermark,
                log_end,
            )
            self._propose(kept)

    # -- the hedge (isr_hedge.py)

    @property
    def hedge_ms(self) -> int:
        """barnabas.isr.hedge.ms; negative: a slow replica is waited for as in Kafka."""
        return self._partition.log.config.isr_hedge_ms

    @property
    def awaited_high_watermark(self) -> int:
        """The high watermark, while acknowledgements wait for it to move; else -1."""
        return self._partition.log.high_watermark if self._waiting else -1

    def config_changed(self) -> None:
        """The topic's settings have changed, maybe while acknowledgements wait."""
        self.wait = None
        if self._waiting:
            self._rules.hedge.watch(self)

    def hedge(self) -> None:
        """Wait no longer for the replicas that lack the oldest record that waits, if enough stay: those in the ISR are to leave it, and
        others are not waited for as joining. They return when they have rested and caught up."""
        oldest_end = self._waiting[0][0]
        if self._pending is not None or self._partition.log.replica_end_offset < oldest_end:
            return  # the controller decides; or this broker's own disk is slow
        slow = {each.broker_id: each for each in self.replicas.values() if each.end_offset < oldest_end}
        kept = [broker_id for broker_id in self.isr if broker_id not in slow]
        if len(kept) < max(HEDGED_ISR_MIN, self.min_isr):
            return
        leaving = [replica for broker_id, replica in slow.items() if broker_id in self.isr]
        if leaving:
            log.info(
                "%s: the ISR is to shrink from %s to %s, so that acknowledgements wait no longer (end %d)",
                self._partition.name,
                self.isr,
                kept,
                oldest_end,
            )
            self._propose(kept)
            self._hedged = leaving
        else:
            for replica in slow.values():
                if self._is_joining(replica):
                    replica.rest(self._rules.now())
            self.advance()

    # -- the controller

    def _propose(self, isr: list[int]) -> None:
        partition = self._partition
        self._pending = change = IsrChange(
            self._answered,
            partition.topic_id,
            partition.partition,
            partition.leader_epoch,
            partition.partition_epoch,
            [(broker_id, self._epoch_of(broker_id)) for broker_id in isr],
        )
        self._proposals.propose(change)

    def _epoch_of(self, broker_id: int) -> int:
        if broker_id == self._rules.node_id:
            return self._proposals.broker_epoch()
        replica = self.replicas.get(broker_id)
        return -1 if replica is None or replica.broker_epoch is None else replica.broker_epoch

    def _answered(self, change: IsrChange, error: ErrorCode, decided: ResponsePartitionData | None) -> None:
        """The answer to a proposal."""
        if change is not self._pending:
            return
        partition = self._partition
        name = partition.name
        if decided is not None:
            if (
                decided.leader_epoch != partition.leader_epoch
                or decided.partition_epoch < partition.partition_epoch
            ):
                return  # newer metadata has arrived, or will
            partition.partition_epoch = decided.partition_epoch
            self._settle(decided.isr)
            log.info("%s: the ISR is %s (partition epoch %d)", name, self.isr, decided.partition_epoch)
            self.advance()
            self._look_at_skipped()
        elif error in _NOT_DONE:
            log.info("%s: the ISR stays %s: %s", name, self.isr, error.name)
            self._settle(self.isr)
            self.advance()
            self._proposals.later(self._look_at_skipped)
        elif error in _SETTLED_BY_METADATA:
            log.info("%s: the ISR is not %s: %s", name, change.isr, error.name)
        else:
            log.warning("%s: the ISR could not be changed to %s: %s", name, change.isr, error.name)
            self._proposals.propose_later(change)

    # -- the high watermark

    def advance(self) -> None:
        """Move the high watermark as far as the replicas allow, and call what waits for it."""
        log = self._partition.log
        if len(self.isr) < self.min_isr:
            return
        high_watermark = log.replica_end_offset
        maximal = self._maximal
        for replica in self.replicas.values():
            if replica.end_offset < high_watermark and (
                replica.broker_id in maximal or self._is_joining(replica)
            ):
                high_watermark = replica.end_offset
        partition = self._partition
        stable_offset = log.last_stable_offset if partition.fetch_waiters else -1
        if log.set_high_watermark(high_watermark):
            self._committed(high_watermark, stable_offset)

    def _is_joining(self, replica: RemoteReplica) -> bool:
        if replica.is_resting:
            return False
        rules = self._rules
        log_end = self._partition.log.log_end_offset
        return replica.is_caught_up(log_end, rules.now(), rules.lag_time_max_s) and self._may_be_in_sync(
            replica
        )

    def _committed(self, high_watermark: int, stable_offset: int) -> None:
        """The high watermark has moved. Acknowledgements are first: fetches wait for a turn of the loop anyway."""
        byte_count = 0
        uncommitted = self._uncommitted
        if high_watermark > self._last_base_offset:
            self._tail = b""
        if uncommitted and uncommitted[0][0] <= high_watermark:
            count = bisect_right(uncommitted, high_watermark, key=_OFFSET)
            byte_count = sum(size for _, size in uncommitted[:count])
            del uncommitted[:count]
        waiting = self._waiting
        if waiting and waiting[0][0] <= high_watermark:
            count = bisect_right(waiting, high_watermark, key=_OFFSET)
            due = waiting[:count]
            del waiting[:count]
            error = self._commit_error()
            _call_all(due, error)
        self._partition.high_watermark_moved(byte_count or 1, stable_offset)

    # -- deleting records

    @property
    def low_watermark(self) -> int:
        """The smallest log start offset of all replicas that are alive."""
        low_watermark = self._partition.log.log_start_offset
        for replica in self.replicas.values():
            if (
                replica.start_offset < low_watermark
                and self._rules.alive_epoch(replica.broker_id) is not None
            ):
                low_watermark = replica.start_offset
        return low_watermark

    def when_deleted(self, offset: int, call: Call) -> None:
        """Call once the low watermark has reached `offset`, or this broker stops leading."""
        if self.low_watermark >= offset:
            call(ErrorCode.NONE)
        else:
            self._deletions.append((offset, call))

    def _low_watermark_moved(self) -> None:
        if not self._deletions:
            return
        low_watermark = self.low_watermark
        due = [each for each in self._deletions if each[0] <= low_watermark]
        self._deletions = [each for each in self._deletions if each[0] > low_watermark]
        _call_all(due, ErrorCode.NONE)


def _call_all(waiting: list[tuple[int, Call]], error: ErrorCode) -> None:
    """Call all, also if one fails."""
    for _, call in waiting:
        try:
            call(error)
        except Exception:
            log.exception("a callback that waited for an offset failed (%s)", error.name)
