"""How the groups and offsets of a partition of __consumer_offsets come back from its records, and what a group
metadata record makes of a group."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from barnabas.broker.coordinator.compacted_records import CompactedRecords
from barnabas.broker.groups.group import ClassicGroup
from barnabas.broker.groups.member import Member
from barnabas.broker.groups.records import (
    GroupRecord,
    GroupWritten,
    UnknownRecord,
    UnknownValue,
    decode_record,
)
from barnabas.broker.groups.state import GroupState

if TYPE_CHECKING:
    from barnabas.broker.groups.member import GroupUsage

log = logging.getLogger(__name__)


class GroupReplay(CompactedRecords):
    """Passes the compacted records of the partition to `apply`, then goes through the steps of `begin`.

    Records of kinds that this version does not know (Kafka's consumer, share and streams groups) are passed over. So
    is a value of a later version than this one knows, and then what was written to the same key before counts:
    `needs_every` says that the partition has to be replayed again, with `every` of its records."""

    def __init__(
        self,
        name: str,
        apply: Callable[[GroupRecord], object],
        begin: Callable[[], Iterator[None]],
        *,
        every: bool,
    ) -> None:
        super().__init__(name, self._decode, every=every)
        self.needs_every = False
        self._apply = apply
        self._begin = begin
        self._unknown: Counter[str] = Counter()

    def _decode(self, key: bytes | None, value: bytes | None) -> None:
        try:
            self._apply(decode_record(key, value))
        except UnknownRecord as error:
            self._unknown[str(error)] += 1
            if isinstance(error, UnknownValue):
                self.needs_every = not self.every

    def finish(self) -> Iterator[None]:
        """Replay, and begin."""
        yield from super().finish()
        if self.needs_every:
            return
        if self._unknown:
            kinds = ", ".join(f"{kind}: {count}" for kind, count in self._unknown.most_common(8))
            log.warning("%s: records that can't be read are passed over (%s)", self.name, kinds)
        yield from self._begin()


def restore_group(written: GroupWritten, clock: Callable[[], int], usage: GroupUsage) -> ClassicGroup:
    """The group that a group metadata record describes: Stable with members, else Empty."""
    value = written.value
    group = ClassicGroup(written.group_id, clock, usage)
    group.persisted = True
    group.generation_id = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    group.state = GroupState.STABLE if value.members else GroupState.EMPTY
    group.state_timestamp = None if value.current_state_timestamp == -1 else value.current_state_timestamp
    for stored in value.members:
        timeout = stored.session_timeout if stored.rebalance_timeout == -1 else stored.rebalance_timeout
        member = Member(
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            timeout,
            stored.session_timeout,
            value.protocol_type,
            [(value.protocol or "", stored.subscription)],
            stored.assignment,
        )
        group.add(member, None)
    group.leader_id = value.leader
    group.subscribed_topics = group.compute_subscribed_topics()
    return group
