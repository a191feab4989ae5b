"""One change of one partition: from the wanted ISR, replicas or election to the record.

The rules, in the order in which they apply:
1. A reassignment whose new replicas are all in the ISR is complete: the old replicas are removed.
2. With eligible leader replicas (KIP-966), a replica that leaves an ISR smaller than min.insync.replicas stays eligible, because the
   high watermark can't advance past it, until an unclean shutdown. When the ISR is large enough, no replica is eligible.
3. The leader stays while it may lead. Otherwise the leader is the first replica, in order of preference, that is in the ISR and may
   lead; with an empty ISR the first eligible one; without eligible ones the last known leader; and in an unclean election the
   first replica that may lead. A leader elected from outside ISR and ELR is alone in the ISR, and in recovery.
4. An observer (barnabas.observers) is never elected, and a reassignment is complete without it.
5. A change of the leader or the removal of a replica begins a new leader epoch; every change begins a new partition epoch.

Kafka's PartitionChangeBuilder has the same rules.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from barnabas.controller.metadata.image import NO_LEADER, PartitionState
from barnabas.wire.messages.metadata_records import PartitionChangeRecord
from barnabas.wire.primitives import ZERO_UUID

NO_CHANGE: Final = -2  # PartitionChangeRecord.leader
RECOVERED: Final = 0
RECOVERING: Final = 1


class Election(enum.Enum):
    """The replicas that a change may make the leader."""

    ONLINE = enum.auto()  # the current leader while it may lead, else one of the ISR or the ELR
    PREFERRED = enum.auto()  # the first replica when it is in the ISR, else as ONLINE
    UNCLEAN = enum.auto()  # as ONLINE, else any unfenced replica


class TopicRules(msgspec.Struct, frozen=True):
    """The configuration of the partitions of a topic."""

    min_isr: int  # min.insync.replicas, at most the number of replicas
    unclean: bool  # unclean.leader.election.enable
    with_elr: bool  # eligible.leader.replicas.version
    observers: frozenset[int] = frozenset()  # brokers whose replicas never join the ISR

    @property
    def election(self) -> Election:
        """The election that takes place without a request."""
        return Election.UNCLEAN if self.unclean else Election.ONLINE


class Wanted(msgspec.Struct):
    """The wanted state of a partition; None: unchanged."""

    isr: Sequence[int] | None = None
    replicas: Sequence[int] | None = None
    removing: Sequence[int] | None = None
    adding: Sequence[int] | None = None
    recovery_state: int | None = None
    election: Election = Election.ONLINE
    unclean_shutdown: Collection[int] = ()  # replicas whose logs may have lost their ends


def change_partition(
    topic_id: bytes,
    index: int,
    state: PartitionState,
    rules: TopicRules,
    may_lead: Callable[[int], bool],
    wanted: Wanted,
    default_directory: Callable[[int], bytes] = lambda _broker: ZERO_UUID,
) -> PartitionChangeRecord | None:
    """The record, or None when nothing changes. `may_lead(broker)`: it is active, and its directory works.
    `default_directory(broker)`: id of the log directory of a new replica."""
    isr = list(state.isr if wanted.isr is None else wanted.isr)
    replicas = list(state.replicas if wanted.replicas is None else wanted.replicas)
    replicas.sort(
        key=rules.observers.__contains__
    )  # stable: observers are last, and never the preferred leader
    removing = list(state.removing_replicas if wanted.removing is None else wanted.removing)
    adding = list(state.adding_replicas if wanted.adding is None else wanted.adding)
    if removing or adding:
        remaining = [replica for replica in replicas if replica not in removing]
        remaining_isr = [replica for replica in isr if replica not in removing]
        if remaining_isr and rules.observers.union(remaining_isr).issuperset(remaining):
            isr, replicas, removing, adding = remaining_isr, remaining, [], []
    elr: list[int] = []
    if rules.with_elr and len(isr) < rules.min_isr:
        candidates = {*state.eligible_leader_replicas, *state.isr} & set(replicas)
        elr = sorted(candidates.difference(isr, wanted.unclean_shutdown))

    record = PartitionChangeRecord(topic_id=topic_id, partition_id=index)
    electable = [replica for replica in replicas if replica not in rules.observers]
    leader, is_unclean = _elect(state, rules, may_lead, wanted.election, electable, isr, elr)
    if leader != state.leader:
        record.leader = leader
        if is_unclean:
            isr, elr = [leader], []
            if state.leader_recovery_state != RECOVERING:
                record.leader_recovery_state = RECOVERING
        elif leader in elr:
            isr = [leader]
            # With a min.insync.replicas of 1 it commits alone, and the other replicas lack these records.
            elr = [] if rules.min_isr <= 1 else [replica for replica in elr if replica != leader]
    elif not all(replica in replicas for replica in state.replicas):
        record.leader = leader  # the same leader, in a new epoch

    if (isr or rules.with_elr) and isr != state.isr:
        record.isr = isr
    if elr != state.eligible_leader_replicas:
        record.eligible_leader_replicas = elr
    _note_last_known_leader(record, state, rules)
    _note_replicas(record, state, replicas, removing, adding, default_directory)
    if wanted.recovery_state is not None and wanted.recovery_state != state.leader_recovery_state:
        record.leader_recovery_state = wanted.recovery_state
    return None if record == PartitionChangeRecord(topic_id=topic_id, partition_id=index) else record


def _elect(
    state: PartitionState,
    rules: TopicRules,
    may_lead: Callable[[int], bool],
    election: Election,
    replicas: list[int],
    isr: list[int],
    elr: list[int],
) -> tuple[int, bool]:
    """The leader, and whether it may lack committed records."""
    eligible = isr or elr
    candidates = [state.leader, *replicas]
    if election is Election.PREFERRED:
        candidates = [*replicas[:1], *candidates]
    for replica in candidates:
        if replica in eligible and may_lead(replica):
            return replica, False
    last_known = state.last_known_elr
    if rules.with_elr and not eligible and len(last_known) == 1 and may_lead(last_known[0]):
        return last_known[0], True
    if election is Election.UNCLEAN:
        for replica in replicas:
            if may_lead(replica):
                return replica, True
    return NO_LEADER, False


def _note_last_known_leader(record: PartitionChangeRecord, state: PartitionState, rules: TopicRules) -> None:
    if not rules.with_elr:
        return
    if record.leader == NO_LEADER and state.leader != NO_LEADER and not state.last_known_elr:
        record.last_known_elr = [state.leader]
    elif record.leader >= 0 and state.last_known_elr:
        record.last_known_elr = []


def _note_replicas(
    record: PartitionChangeRecord,
    state: PartitionState,
    replicas: list[int],
    removing: list[int],
    adding: list[int],
    default_directory: Callable[[int], bytes],
) -> None:
    if replicas != state.replicas:
        record.replicas = replicas
        known = dict(zip(state.replicas, state.directories, strict=False))
        directories = [
            known[replica] if replica in known else default_directory(replica) for replica in replicas
        ]
        if directories != state.directories:
            record.directories = directories
    if removing != state.removing_replicas:
        record.removing_replicas = removing
    if adding != state.adding_replicas:
        record.adding_replicas = adding
