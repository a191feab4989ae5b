"""Known bugs that can be planted in the code: they prove that the simulator finds such bugs.

Each bug replaces single functions and methods at run time. The product code has no switch for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from barnabas.broker.api import fetch
from barnabas.broker.cluster.broker_lifecycle import BrokerLifecycle
from barnabas.broker.fetch import reader as fetch_read
from barnabas.broker.groups.consumer import changes, reconciliation
from barnabas.broker.groups.streams import changes as streams_changes
from barnabas.broker.groups.streams import reconciliation as streams_reconciliation
from barnabas.broker.partitions import leadership
from barnabas.broker.partitions.leadership import PartitionLeadership
from barnabas.broker.partitions.partition import Partition
from barnabas.broker.partitions.partition_manager import PartitionManager
from barnabas.broker.partitions.replica import RemoteReplica
from barnabas.broker.share_coordinator import state as share_state
from barnabas.broker.share_coordinator.persister import Persister
from barnabas.broker.share_coordinator.state_batches import ACQUIRED, AVAILABLE
from barnabas.broker.share_partitions import share_partition
from barnabas.broker.share_partitions.in_flight import Run
from barnabas.broker.share_partitions.manager import LedSharePartition, SharePartitionManager
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.metadata.image import MetadataImage
from barnabas.controller.operations import brokers
from barnabas.controller.raft import transport
from barnabas.controller.raft.messages import Append, AppendResponse, SnapshotChunk
from barnabas.controller.raft.transport import Fitted, GuardedTransport
from barnabas.controller.sessions import broker_sessions
from barnabas.storage.log.follower_append import ANY_EPOCH
from barnabas.storage.log.log import Log
from barnabas.storage.manager import retention
from barnabas.storage.tier import garbage
from barnabas.storage.tier.memory_store import MemoryStore
from barnabas.storage.tier.object_store import ObjectInfo, Version
from barnabas.storage.tier.tiered_partition import TieredPartition
from barnabas.storage.wall_clock import WallClock
from barnabas.wire.errors import ErrorCode

Patch = tuple[Any, str, Any]  # (owner, attribute, replacement)


def _removes_what_is_not_tiered() -> list[Patch]:
    """Segments leave the disk of a tiered log whether the store has them or not."""
    return [(retention, "_tiered_offset", lambda log: log.log_end_offset)]


def _stale_leaders_write_manifests() -> list[Patch]:
    """A leader that does not know yet that it is none any more replaces the manifest, whatever its successor has made of it."""

    def has_ended(self: TieredPartition) -> bool:
        return self.log.closed or self.log.offline

    conditional = MemoryStore.replace

    def replace(self: MemoryStore, key: str, data: bytes, version: Version) -> Version:
        if not key.endswith("/manifest"):
            return conditional(self, key, data, version)
        with self._lock:
            return self._write(key, data)

    return [(MemoryStore, "replace", replace), (TieredPartition, "_has_ended", has_ended)]


def _no_epoch_check() -> list[Patch]:
    """Leaders answer requests of any leader epoch, and followers append every answer."""
    append = Log.append_as_follower
    return [
        (Partition, "check_leader_epoch", lambda _self, _epoch: ErrorCode.NONE),
        (fetch_read, "_diverging_epoch", lambda _partition, _wanted: None),
        (
            Log,
            "append_as_follower",
            lambda self, records, _epoch=ANY_EPOCH, *most: append(self, records, ANY_EPOCH, *most),
        ),
    ]


def _wiped_replica_counts() -> list[Patch]:
    """A broker with a new disk counts as the one that stopped, and joins an ISR before it has caught up."""
    register = brokers.register

    def registered(image: MetadataImage, settings: Any, request: Any, *rest: Any, **named: Any) -> Any:
        former = image.brokers.get(request.broker_id)
        if former is not None and set(former.log_dirs) != set(request.log_dirs):
            request.previous_broker_epoch = former.broker_epoch
        return register(image, settings, request, *rest, **named)

    def admit(self: PartitionLeadership, replica: RemoteReplica) -> None:
        if self._rules.may_be_in_sync(replica):
            self._propose([*self.isr, replica.broker_id])
            self._maximal |= {replica.broker_id}

    return [(broker_sessions, "register", registered), (PartitionLeadership, "_admit", admit)]


def _early_acknowledgement() -> list[Patch]:
    """A leader answers acks=all as soon as its own log has the records."""
    return [(PartitionLeadership, "when_committed", lambda _self, _end_offset, call: call(ErrorCode.NONE))]


def _hedged_replicas_stay_electable() -> list[Patch]:
    """A leader acknowledges without the replicas that it hedges out before the controller has removed them from the ISR."""
    hedge = PartitionLeadership.hedge

    def hedged(self: PartitionLeadership) -> None:
        hedge(self)
        if self._pending is not None:
            self._maximal = frozenset(self._pending.isr)
            self.advance()

    return [(PartitionLeadership, "hedge", hedged)]


def _hedges_below_min_isr() -> list[Patch]:
    """A hedge leaves the leader alone, and from then on min.insync.replicas does not hold it back."""
    hedge, min_isr = PartitionLeadership.hedge, PartitionLeadership.min_isr
    assert isinstance(min_isr, property)
    assert min_isr.fget is not None
    get = min_isr.fget
    hedging: set[tuple[str, int]] = set()

    def hedged(self: PartitionLeadership) -> None:
        hedging.add((self._partition.name, self._partition.leader_epoch))
        hedge(self)

    def after_hedges(self: PartitionLeadership) -> int:
        is_hedged = (self._partition.name, self._partition.leader_epoch) in hedging
        return 1 if is_hedged else get(self)

    return [
        (leadership, "HEDGED_ISR_MIN", 1),
        (PartitionLeadership, "hedge", hedged),
        (PartitionLeadership, "min_isr", property(after_hedges)),
    ]


def _unclean_member_stays() -> list[Patch]:
    """A broker that starts without its clean-shutdown marker stays in ISR and ELR."""
    return [(brokers, "broker_unclean_shutdown", lambda _image, _settings, _broker_id: [])]


def _without_h1() -> list[Patch]:
    """A chunk of a snapshot carries a commit index, which the library applies to the log that it still has."""
    chunk, verified = GuardedTransport._chunk, GuardedTransport._verified
    committed: list[int] = []

    def _chunk(self: GuardedTransport, node_id: int, connection_number: int, message: SnapshotChunk) -> None:
        committed.append(message.index)
        try:
            chunk(self, node_id, connection_number, message)
        finally:
            committed.clear()

    def _verified(
        self: GuardedTransport, node_id: int, term: int, index: int, next_index: int | None
    ) -> None:
        if next_index is None and committed:
            self._pass_append(node_id, term, {"commit_index": committed[0], "serialized": None})
            self._send_message(node_id, AppendResponse(term, 0, False, False))
        else:
            verified(self, node_id, term, index, next_index)

    return [(GuardedTransport, "_chunk", _chunk), (GuardedTransport, "_verified", _verified)]


def _without_h2() -> list[Patch]:
    """An append reaches the library unchanged, and truncates the log wherever it begins."""

    def unfitted(message: Append, _journal: object, _applied_index: int) -> Fitted:
        return Fitted(
            message.commit_index, message.previous_index, message.previous_term, list(message.entries), None
        )

    return [(transport, "fit_append", unfitted)]


def _every_clock_is_trusted() -> list[Patch]:
    """Retention deletes records by the leader's clock alone, however implausible that clock is."""
    return [(WallClock, "is_trusted", True)]


def _answers_without_session() -> list[Patch]:
    """A leader or coordinator that is cut off keeps answering from its old state."""
    return [(BrokerLifecycle, "has_session", lambda _self: True)]


def _followers_expire() -> list[Patch]:
    """Every replica applies retention by its own clock, as in Kafka."""
    return [(PartitionManager, "is_led", lambda _self, _log: True), (WallClock, "is_trusted", True)]


def _unauthenticated_followers_replicate() -> list[Patch]:
    """A broker accepts any replica id on any connection."""
    return [(fetch, "may_act_as_replica", lambda _context, _replica_id: True)]


def _every_partition_is_free() -> list[Patch]:
    """A member of a consumer group gets its target at once, though others have the partitions (KAFKA-16147)."""
    return [(changes, "_is_free", lambda *_: True)]


def _nothing_is_owned_any_more() -> list[Patch]:
    """A partition that is taken from a member goes to the next one before the member has given it up."""
    return [(reconciliation, "_owns_any", lambda *_: False)]


def _every_task_is_free() -> list[Patch]:
    """A member of a streams group gets its target's active tasks at once, though others run them."""
    reconcile = streams_reconciliation.reconcile

    def at_once(current: Any, goal: Any, owned: Any) -> Any:
        return reconcile(current, msgspec.structs.replace(goal, may_run=lambda *_: True), owned)

    return [(streams_changes, "reconcile", at_once)]


def _no_task_runs_any_more() -> list[Patch]:
    """A task that is taken from a member goes to the next one before the member has ended it."""
    return [(streams_reconciliation, "_owns_any", lambda *_: False)]


def _unpersisted_acknowledgements() -> list[Patch]:
    """The leader answers acknowledgements before the share coordinator has them."""
    persist = LedSharePartition._persist

    def answered(self: LedSharePartition, transition: Any, done: Callable[[ErrorCode, None], object]) -> None:
        done(ErrorCode.NONE, None)
        persist(self, transition, lambda *_: None)

    return [(LedSharePartition, "_persist", answered)]


def _late_initializations() -> list[Patch]:
    """The request to initialize a share partition is received once more, with the same epoch, when the partition is in use."""
    initialize = Persister.initialize

    def twice(
        self: Persister, key: Any, state_epoch: int, start_offset: int, done: Callable[[ErrorCode], object]
    ) -> None:
        initialize(self, key, state_epoch, start_offset, done)
        self.later(10.0, lambda: initialize(self, key, state_epoch, start_offset, lambda _error: None))

    return [(Persister, "initialize", twice)]


def _unfenced_share_leaders() -> list[Patch]:
    """The share coordinator takes what a leader writes that was replaced."""
    read, write = share_state.read, share_state.write

    def unrecorded(key: Any, state: Any, _leader_epoch: int, *rest: Any) -> Any:
        return read(key, state, share_state.NO_EPOCH, *rest)

    def unchecked(key: Any, state: Any, state_epoch: int, _leader_epoch: int, *rest: Any) -> Any:
        return write(key, state, state_epoch, share_state.NO_EPOCH, *rest)

    return [(share_state, "read", unrecorded), (share_state, "write", unchecked)]


def _locks_outlive_sessions() -> list[Patch]:
    """What a member has acquired stays locked when its session ends."""
    return [(SharePartitionManager, "_release", lambda _self, _sessions, done: done())]


def _locks_never_expire() -> list[Patch]:
    """Records that are neither acknowledged nor released stay with their member."""
    return [(LedSharePartition, "_set_timer", lambda _self, _expires_at: None)]


def _locked_records_are_available() -> list[Patch]:
    """Records are delivered while another member has them."""
    is_available = property(lambda run: run.state in (AVAILABLE, ACQUIRED) and run.transition is None)
    return [(Run, "is_available", is_available)]


def _any_member_may_acknowledge() -> list[Patch]:
    """A member whose lock has expired acknowledges what another one has by now."""

    def check(run: Run, _member_id: str) -> None:
        if run.state != ACQUIRED:
            raise ApiError(ErrorCode.INVALID_RECORD_STATE, "")

    return [(share_partition, "_check_acknowledge", check)]


def _orphans_by_age_alone() -> list[Patch]:
    """What was written a second ago is removed from the object store, whether a manifest names it or not."""

    def is_orphan(
        found: ObjectInfo, _keys: object, _named: object, _leader_epoch: int, older_than_ms: int | None
    ) -> bool:
        return older_than_ms is not None and found.modified_ms < older_than_ms + garbage.ORPHAN_AGE_MS - 1000

    return [(garbage, "_is_orphan", is_orphan)]


BUGS: dict[str, Callable[[], list[Patch]]] = {
    "no-epoch-check": _no_epoch_check,
    "wiped-replica-counts": _wiped_replica_counts,
    "removes-what-is-not-tiered": _removes_what_is_not_tiered,
    "stale-leaders-write-manifests": _stale_leaders_write_manifests,
    "orphans-by-age-alone": _orphans_by_age_alone,
    "early-acknowledgement": _early_acknowledgement,
    "hedged-replicas-stay-electable": _hedged_replicas_stay_electable,
    "hedges-below-min-isr": _hedges_below_min_isr,
    "unclean-member-stays": _unclean_member_stays,
    "without-h1": _without_h1,
    "without-h2": _without_h2,
    "every-clock-is-trusted": _every_clock_is_trusted,
    "followers-expire": _followers_expire,
    "unauthenticated-followers-replicate": _unauthenticated_followers_replicate,
    "answers-without-session": _answers_without_session,
    "every-partition-is-free": _every_partition_is_free,
    "nothing-is-owned-any-more": _nothing_is_owned_any_more,
    "every-task-is-free": _every_task_is_free,
    "no-task-runs-any-more": _no_task_runs_any_more,
    "unpersisted-acknowledgements": _unpersisted_acknowledgements,
    "late-initializations": _late_initializations,
    "unfenced-share-leaders": _unfenced_share_leaders,
    "locks-outlive-sessions": _locks_outlive_sessions,
    "locks-never-expire": _locks_never_expire,
    "locked-records-are-available": _locked_records_are_available,
    "any-member-may-acknowledge": _any_member_may_acknowledge,
}


class Circumstances(NamedTuple):
    """What makes a bug likely to be found: nodes, a fault that comes every other time, a share group. By default the seed chooses."""

    shape: tuple[str, ...] = ()
    frequent_fault: str = ""
    has_share_group: bool = False


ANY = Circumstances()
CIRCUMSTANCES = {
    "wiped-replica-counts": Circumstances((*("broker,controller",) * 3, "broker", "broker"), "slow_network"),
    "unclean-member-stays": Circumstances((*("broker,controller",) * 3, "broker"), "power_failure"),
    "every-clock-is-trusted": Circumstances((*("broker,controller",) * 3, "broker"), "far_ahead"),
    "unpersisted-acknowledgements": Circumstances(("broker,controller",) * 3, "isolate", True),
    "late-initializations": Circumstances(has_share_group=True),
    "unfenced-share-leaders": Circumstances(("broker,controller",) * 3, "cut_pair", True),
    "locks-outlive-sessions": Circumstances(has_share_group=True),
    "locks-never-expire": Circumstances(has_share_group=True),
    "locked-records-are-available": Circumstances(has_share_group=True),
    "any-member-may-acknowledge": Circumstances(has_share_group=True),
}


# A seed that found the bug in its circumstances at the last search. When it no longer does, `--bug NAME` finds another. They are
# few, as each runs without a bug, too.
FOUND_BY = {
    "no-epoch-check": 1,
    "wiped-replica-counts": 2,
    "early-acknowledgement": 4,
    "removes-what-is-not-tiered": 19,
    "stale-leaders-write-manifests": 419,
    "orphans-by-age-alone": 8,
    "hedged-replicas-stay-electable": 2,
    "hedges-below-min-isr": 2,
    "unclean-member-stays": 5,
    "without-h1": 162,
    "without-h2": 4,
    "every-clock-is-trusted": 0,
    "followers-expire": 4,
    "unauthenticated-followers-replicate": 4,
    "answers-without-session": 4,
    "every-partition-is-free": 2,
    "nothing-is-owned-any-more": 11,
    "every-task-is-free": 46,
    "no-task-runs-any-more": 6,
    "unpersisted-acknowledgements": 1,
    "late-initializations": 0,
    "unfenced-share-leaders": 27,
    "locks-outlive-sessions": 0,
    "locks-never-expire": 3,
    "locked-records-are-available": 0,
    "any-member-may-acknowledge": 7,
}


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """Plants a bug while the simulation runs; the empty name plants none."""
    with ExitStack() as stack:
        for where, name, replacement in BUGS[bug]() if bug else ():
            assert hasattr(where, name), name
            stack.enter_context(mock.patch.object(where, name, replacement))
        yield
