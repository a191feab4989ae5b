"""Share sessions (KIP-932): the partitions that a member of a share group fetches, bound to the member's connection.

A session's epoch is 1 after the request that opened it, and rises with each that follows, as that of a fetch session.
When the connection ends the session does, and what the member has acquired is released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.broker.fetch.sessions import FINAL_EPOCH
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.requests.context import Peer

_OWNER: Final = "share sessions"  # of the callback when a connection has ended
PARTITIONS_MAX: Final = 200_000  # in all sessions

Key = tuple[str, str]  # group id, member id
TopicPartition = tuple[bytes, int]  # topic id, partition index


class ShareSession:
    """`partitions` in the order in which they are served."""

    __slots__ = ("epoch", "key", "partitions", "peer")

    def __init__(self, key: Key, peer: Peer) -> None:
        self.key = key
        self.peer = peer
        self.epoch = 1
        self.partitions: dict[TopicPartition, None] = {}

    def served(self, partition: TopicPartition) -> None:
        """It had records: the others come first, next time."""
        if partition in self.partitions:
            del self.partitions[partition]
            self.partitions[partition] = None


class ShareSessionCache:
    """All share sessions of the broker."""

    def __init__(self, sessions_max: int, ended: Callable[[Sequence[ShareSession]], object]) -> None:
        """`sessions_max`: group.share.max.share.sessions. `ended(sessions)`: their connection has ended, and they are removed."""
        self._sessions_max = sessions_max
        self._ended = ended
        self._sessions: dict[Key, ShareSession] = {}
        self._by_peer: dict[Peer, dict[Key, None]] = {}
        self._of_group: Counter[str] = Counter()  # sessions
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def has_group(self, group_id: str) -> bool:
        """Whether a member of the group has a session."""
        return group_id in self._of_group

    def has(self, session: ShareSession) -> bool:
        """Whether it has not ended."""
        return self._sessions.get(session.key) is session

    def open(self, key: Key, peer: Peer) -> ShareSession | None:
        """A new session in place of one that the member has; None if there are too many."""
        replaced = self._sessions.get(key)
        if replaced is not None:
            self.remove(replaced)
        if len(self._sessions) >= self._sessions_max:
            return None
        session = self._sessions[key] = ShareSession(key, peer)
        self._by_peer.setdefault(peer, {})[key] = None
        self._of_group[key[0]] += 1
        peer.when_closed(_OWNER, partial(self._closed, peer))
        return session

    def find(self, key: Key, epoch: int) -> ShareSession | ErrorCode:
        """The session that a request with this epoch continues or, with FINAL_EPOCH, ends."""
        session = self._sessions.get(key)
        if session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch not in (session.epoch, FINAL_EPOCH):
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        return session

    def update(
        self, session: ShareSession, added: Iterable[TopicPartition], forgotten: Iterable[TopicPartition]
    ) -> bool:
        """False if all sessions together have too many partitions now."""
        before = len(session.partitions)
        for each in added:
            session.partitions.setdefault(each)
        for each in forgotten:
            session.partitions.pop(each, None)
        self._partition_count += len(session.partitions) - before
        return self._partition_count <= PARTITIONS_MAX

    def remove(self, session: ShareSession) -> bool:
        """False if it has ended already; the member may have another one now."""
        if not self.has(session):
            return False
        del self._sessions[session.key]
        self._partition_count -= len(session.partitions)
        group_id, _ = session.key
        self._of_group[group_id] -= 1
        if not self._of_group[group_id]:
            del self._of_group[group_id]
        of_peer = self._by_peer[session.peer]
        del of_peer[session.key]
        if not of_peer:
            del self._by_peer[session.peer]
            session.peer.when_closed(_OWNER, None)
        return True

    def end_all(self) -> None:
        """As if their connections had ended."""
        for peer in tuple(self._by_peer):
            self._closed(peer)

    def _closed(self, peer: Peer) -> None:
        sessions = [self._sessions[key] for key in self._by_peer.get(peer, ())]
        for session in sessions:
            self.remove(session)
        self._ended(sessions)
