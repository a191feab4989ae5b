"""The values of a share group's records."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from barnabas.broker.groups.modern.values import (
    JOINING,
    UNKNOWN_EPOCH,
    GroupEpoch,
    Partitions,
    TargetEpoch,
)

MEMBER_ID_MAX: Final = 36  # characters, as of a UUID
STABLE: Final = 0  # the state of every member: there is nothing to wait for


class Key(enum.IntEnum):
    """The types of record."""

    MEMBER = 10
    GROUP = 11
    TARGET = 12
    TARGET_OF_MEMBER = 13
    CURRENT = 14
    STATE_TOPICS = 15


class Member(msgspec.Struct, frozen=True):
    """A member's description of itself."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()


class CurrentAssignment(msgspec.Struct, frozen=True):
    """What a member has. `state`: STABLE, but in records of a later release."""

    epoch: int = JOINING
    previous_epoch: int = UNKNOWN_EPOCH
    state: int = STABLE
    assigned: Partitions = {}

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state == STABLE and self.epoch == target_epoch


class StateTopic(msgspec.Struct, frozen=True):
    """A topic by name, and those of its partitions that are initialized, or are being so."""

    name: str
    partitions: frozenset[int]


class StateTopics(msgspec.Struct, frozen=True):
    """The delivery states that the group has at the share coordinator, by topic id. Partitions are assigned once they are initialized.
    `deleting`: the names of topics whose states are being deleted."""

    initializing: Mapping[bytes, StateTopic] = {}
    initialized: Mapping[bytes, StateTopic] = {}
    deleting: Mapping[bytes, str] = {}


NO_STATE_TOPICS: Final = StateTopics()
Value: TypeAlias = (
    "GroupEpoch | Member | TargetEpoch | Mapping[bytes, frozenset[int]] | CurrentAssignment | StateTopics"
)
