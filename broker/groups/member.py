"""One member of a classic group: its metadata, what it waits for, and its session; and the bounds on what the members of all
groups hold in memory, of which Kafka has group.max.size alone.

A member's bytes are its protocols with their metadata, its names, and what an object costs. A group whose members hold more
than max.message.bytes of __consumer_offsets can't complete a generation, so usual groups stay far below. When too many ids
have been given out with MEMBER_ID_REQUIRED, the oldest is forgotten; its client gets UNKNOWN_MEMBER_ID and asks for another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from barnabas.broker.groups.timers import DeadlineTimer
    from barnabas.wire.messages.join_group import JoinGroupResponse
    from barnabas.wire.messages.sync_group import SyncGroupResponse

    JoinReply = Callable[[JoinGroupResponse], None]
    SyncReply = Callable[[SyncGroupResponse], None]

PENDING_JOINS_MAX: Final = 10_000  # of the broker
MEMBER_BYTES_OF_GROUP_MAX: Final = 16 * 1024 * 1024
MEMBER_BYTES_MAX: Final = 256 * 1024 * 1024  # of the broker
MEMBER_OVERHEAD_BYTES: Final = 1000
PROTOCOL_OVERHEAD_BYTES: Final = 200

Protocols = Sequence[tuple[str, bytes]]  # (assignor name, subscription), in the member's order of preference


class Member:
    """A member. `join_reply` and `sync_reply` are set while a request of it waits for its answer."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "join_reply",
        "member_id",
        "protocol_type",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
        "sync_reply",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocol_type: str,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocol_type = protocol_type
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False
        self.join_reply: JoinReply | None = None
        self.sync_reply: SyncReply | None = None
        self.session: DeadlineTimer | None = None

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_awaiting_join(self) -> bool:
        return self.join_reply is not None

    def size(self) -> int:
        """Bytes that it takes, about; its assignment comes from the log, which bounds it."""
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
        """What the member said along with this assignor. KeyError when it doesn't know the assignor."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise KeyError(protocol_name)

    def vote(self, candidates: Collection[str]) -> str:
        """The candidate that the member likes best."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise KeyError(f"{self.member_id} supports none of {sorted(candidates)}")

    def matches(self, protocols: Protocols) -> bool:
        """Whether it says the same as before, in the same order."""
        return list(self.protocols) == list(protocols)

    def has_satisfied_heartbeat(self) -> bool:
        """Whether silence is excused: it waits for us. A new member's wait is bounded all the same, because
        a client that went away while its JoinGroup was parked cannot be distinguished from one that waits."""
        return not self.is_new and (self.join_reply is not None or self.sync_reply is not None)


class GroupUsage:
    """Shared by all groups of a broker."""

    def __init__(self) -> None:
        self.member_bytes = 0
        self._pending_joins: dict[str, Callable[[], object]] = {}  # the oldest first

    def add_pending_join(self, member_id: str, forget: Callable[[], object]) -> None:
        """An id was given out; `forget()` once another needs its place, unless `remove_pending_join` comes first."""
        if len(self._pending_joins) >= PENDING_JOINS_MAX:
            self._pending_joins.pop(next(iter(self._pending_joins)))()
        self._pending_joins[member_id] = forget

    def remove_pending_join(self, member_id: str) -> None:
        self._pending_joins.pop(member_id, None)
