"""A member of a classic group: its metadata, its waiting requests and its session; and bounds on the memory of the members of
all groups, of which Kafka has group.max.size alone.

A member's bytes are its protocols with their metadata, its names, and the size of the objects. A group whose members hold more
than max.message.bytes of __consumer_offsets can't complete a generation, so usual groups stay far below. When too many ids
have been given out with MEMBER_ID_REQUIRED, the oldest is forgotten; its client gets UNKNOWN_MEMBER_ID and requests another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from barnabas.broker.coordinator.timers import DeadlineTimer
    from barnabas.wire.messages.join_group import JoinGroupResponse
    from barnabas.wire.messages.sync_group import SyncGroupResponse

    JoinReply = Callable[[JoinGroupResponse], None]
    SyncReply = Callable[[SyncGroupResponse], None]

PENDING_JOINS_MAX: Final = 10_000  # of the broker
MEMBER_BYTES_OF_GROUP_MAX: Final = 16 * 1024 * 1024
MEMBER_BYTES_MAX: Final = 256 * 1024 * 1024  # of the broker
MEMBER_OVERHEAD_BYTES: Final = 1000
NAME_OVERHEAD_BYTES: Final = 100  # of a topic that a member reads
PROTOCOL_OVERHEAD_BYTES: Final = 200
SUBSCRIPTION_BYTES_MAX: Final = 1024 * 1024  # read in one turn; a record does not have more either

Protocols = Sequence[tuple[str, bytes]]  # (assignor name, subscription), in the member's order of preference


class Client(msgspec.Struct, frozen=True):
    """The sender of a request."""

    client_id: str
    client_host: str  # as Kafka prints it: "/127.0.0.1"
    api_version: int


class Member(msgspec.Struct, eq=False):
    """A member. `join_reply` and `sync_reply` are set while a request of it waits for its answer."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False  # since it was given its id, until its first generation
    join_reply: JoinReply | None = None
    sync_reply: SyncReply | None = None
    session: DeadlineTimer | None = None

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_awaiting_join(self) -> bool:
        return self.join_reply is not None

    def size(self) -> int:
        """About how many bytes it takes, without its assignment, which the size of a record bounds."""
        return (
            MEMBER_OVERHEAD_BYTES
            + len(self.member_id)
            + len(self.client_id)
            + len(self.group_instance_id or "")
            + sum(len(name) + len(metadata) + PROTOCOL_OVERHEAD_BYTES for name, metadata in self.protocols)
        )

    def protocol_names(self) -> set[str]:
        return {name for name, _ in self.protocols}

    def subscription(self, protocol_name: str) -> bytes:
        """The member's metadata for this assignor. KeyError when it doesn't support the assignor."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise KeyError(protocol_name)

    def vote(self, candidates: Collection[str]) -> str:
        """The candidate that comes first in the member's list."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise KeyError(f"{self.member_id} supports none of {sorted(candidates)}")

    def matches(self, protocols: Protocols) -> bool:
        """Whether the protocols are the same, in the same order."""
        return list(self.protocols) == list(protocols)

    def has_satisfied_heartbeat(self) -> bool:
        """Whether it need not send heartbeats, as a request of it waits here. A new member's wait is bounded all the same: a
        client that went away while its JoinGroup waited can't be distinguished from one that is there."""
        return not self.is_new and (self.join_reply is not None or self.sync_reply is not None)


class GroupUsage:
    """Memory of members and ids given out, of all groups of a broker."""

    def __init__(self) -> None:
        self.member_bytes = 0
        self._pending_joins: dict[str, Callable[[], object]] = {}  # the oldest first

    def add_pending_join(self, member_id: str, forget: Callable[[], object]) -> None:
        """An id was given out; `forget()` is called when there are too many, unless `remove_pending_join` comes first."""
        if len(self._pending_joins) >= PENDING_JOINS_MAX:
            self._pending_joins.pop(next(iter(self._pending_joins)))()
        self._pending_joins[member_id] = forget

    def remove_pending_join(self, member_id: str) -> None:
        self._pending_joins.pop(member_id, None)
