"""A broker that does not vote: how it finds its cluster and the voters, and its metadata log, a follower of the voters.

The log follows the active controller where there is a link to it, since that one learns of a commit first, else any voter. When
that changes it continues with another one after the last record that it has applied. Nothing is kept on disk: a start fetches
everything, which takes milliseconds, and never acts on old metadata.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from barnabas.controller.link import messages
from barnabas.controller.link.messages import (
    VOTERS_SINCE,
    Acknowledge,
    Groups,
    MalformedMessage,
    QuorumVoters,
    SnapshotPart,
    Subscribe,
    Unsubscribe,
    decode,
    decode_metadata,
    encode,
)
from barnabas.controller.metadata.errors import NotController
from barnabas.controller.metadata.local_journal import decode_snapshot

if TYPE_CHECKING:
    from barnabas.controller.link.links import Links
    from barnabas.controller.link.peer import Peer
    from barnabas.controller.metadata.metadata_log import Apply, Done, Replace
    from barnabas.controller.raft.voters import Voter

Target = tuple[str, int, int | None]  # host, port, node id or None for any node

log = logging.getLogger("barnabas.metadata")


class FollowedMetadataLog:
    """A MetadataLog that other nodes lead. It is subscribed from `serve` to `close`."""

    def __init__(self, links: Links, on_error: Callable[[Exception], object] = lambda _: None) -> None:
        """`on_error`: the metadata can no longer be followed."""
        self._on_error = on_error
        self.offset = -1  # of the last record applied
        self._links = links
        self._source: Peer | None = None
        self._subscription = 0
        self._acknowledged = 0
        self._snapshot = bytearray()
        self._is_following = False
        self._apply: Apply
        self._replace: Replace

    # MetadataLog

    @property
    def is_leader(self) -> bool:
        return False

    @property
    def term(self) -> int:
        """The term of the active controller; 0 before one is known."""
        return max(0, self._links.leader.term)

    def open(self, apply: Apply, snapshot: Callable[[], list[bytes]], replace: Replace) -> int:  # noqa: ARG002
        self._apply, self._replace = apply, replace
        links = self._links
        links.handle(messages.METADATA, self._received)
        links.add_listener(lambda _: self._choose(), self._disconnected)
        links.leader.on_change(lambda _: self._choose())
        return -1

    def serve(self) -> None:
        self._is_following = True
        self._choose()

    def propose(self, records: Sequence[bytes], done: Done) -> None:  # noqa: ARG002
        done(NotController("this node is not the active controller"))

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        """This node never leads: the callback is never called."""

    def close(self) -> None:
        self._is_following = False
        self._leave()

    # The voter that is followed

    def _choose(self) -> None:
        if not self._is_following:
            return
        wanted = self._links.peer(self._links.active_controller())
        if wanted is None or not wanted.identity.is_controller:
            if self._source is not None:
                return
            wanted = next((peer for peer in self._links.peers() if peer.identity.is_controller), None)
        if wanted is None or wanted is self._source:
            return
        self._leave()
        self._source = wanted
        self._subscription += 1
        self._acknowledged = 0
        self._snapshot = bytearray()
        wanted.send(messages.METADATA, encode(Subscribe(self._subscription, self.offset)))

    def _leave(self) -> None:
        source, self._source = self._source, None
        if source is not None and source.is_open:
            source.send(messages.METADATA, encode(Unsubscribe(self._subscription)))

    def _disconnected(self, peer: Peer) -> None:
        if self._source is peer:
            self._source = None
            self._choose()

    # Messages

    def _received(self, peer: Peer, payload: bytes) -> None:
        if peer is not self._source:
            return
        message = decode_metadata(payload)
        if message.subscription != self._subscription:
            return
        try:
            if isinstance(message, Groups):
                self._take_groups(message)
            elif isinstance(message, SnapshotPart):
                self._take_part(message, peer)
        except MalformedMessage:
            raise
        except Exception as error:  # noqa: BLE001 - a group may be applied in part, so the log can't continue
            self._fail(error)

    def _take_groups(self, message: Groups) -> None:
        if message.base_offset != self.offset + 1:
            raise MalformedMessage(
                f"records from offset {message.base_offset} on, where {self.offset + 1} is expected"
            )
        for group in message.groups:
            self._apply(group)
            self.offset += len(group)
        if message.groups:
            self._count(message.cost)

    def _take_part(self, message: SnapshotPart, peer: Peer) -> None:
        if message.position != len(self._snapshot):
            raise MalformedMessage(
                f"a piece of a snapshot at {message.position}, where {len(self._snapshot)} is expected"
            )
        self._snapshot += message.data
        if len(self._snapshot) >= message.size:
            content, self._snapshot = bytes(self._snapshot), bytearray()
            snapshot = decode_snapshot(content, f"the metadata snapshot of node {peer.node_id}")
            log.info(
                "taking a snapshot of the metadata up to offset %d from node %d",
                snapshot.offset,
                peer.node_id,
            )
            self._replace(snapshot.records, snapshot.offset)
            self.offset = snapshot.offset
        self._count(len(message.data))

    def _count(self, cost: int) -> None:
        self._acknowledged += cost
        if self._source is not None:
            self._source.send(messages.METADATA, encode(Acknowledge(self._subscription, self._acknowledged)))

    def _fail(self, error: Exception) -> None:
        log.error("the metadata can no longer be followed: %s", error)
        self._is_following = False
        self._leave()
        self._on_error(error)


class Discovery:
    """Finds the cluster: the first linked voter of a formed quorum names it and all voters.

    From then on all voters are called, also those that the bootstrap servers do not name. `done(cluster_id)` once.
    `configured`: the targets of the links.
    """

    def __init__(self, links: Links, configured: Sequence[Target], done: Callable[[str], object]) -> None:
        self._links = links
        self._configured = configured
        self._done = done
        self._is_over = False
        links.add_listener(self._connected, lambda _: None)

    def _connected(self, peer: Peer) -> None:
        identity = peer.identity
        if self._is_over or not identity.is_controller or not identity.journalled:
            return
        self._is_over = True
        self._links.join_cluster(identity.cluster_id)
        self._links.call(targets_with(self._configured, identity.journalled))
        self._done(identity.cluster_id)


class VoterUpdates:
    """The voters of a quorum whose log names them, sent between nodes, so that each calls those that there are.

    A controller takes them from its metadata log when they are committed, and sends them over all links and each new one. A broker,
    and a controller whose log is behind, takes those of the highest entry. Only addresses follow from them: the log decides who
    votes. `configured`: the targets of the links by configuration, which are called as well.
    """

    def __init__(self, links: Links, configured: Sequence[Target]) -> None:
        self._links = links
        self._configured = configured
        self._known: QuorumVoters | None = None
        self._own: QuorumVoters | None = None  # from this controller's log
        links.handle(messages.VOTERS, self._received)
        links.add_listener(self._send, lambda _: None)

    def announce(self, index: int, voters: Sequence[Voter]) -> None:
        """These are committed in this controller's log, up to entry `index`."""
        links = self._links
        self._own = QuorumVoters(index, list(voters))
        links.join_cluster(links.identity.cluster_id, voters, dynamic=True)
        for peer in links.peers():
            self._send(peer)
        self._take(self._own)

    def _send(self, peer: Peer) -> None:
        if self._own is not None and peer.version >= VOTERS_SINCE:
            peer.send(messages.VOTERS, encode(self._own))

    def _received(self, peer: Peer, payload: bytes) -> None:
        voters = decode(payload, QuorumVoters)
        if peer.identity.is_controller:
            self._take(voters)

    def _take(self, voters: QuorumVoters) -> None:
        if self._known is None or voters.index > self._known.index:
            self._known = voters
            self._links.voter_ids = frozenset(voter.node_id for voter in voters.voters)
            self._links.call(targets_with(self._configured, voters.voters))


def targets_with(configured: Sequence[Target], voters: Sequence[Voter]) -> list[Target]:
    """Targets in a formed quorum: those configured, and each voter that no configured id or address names."""
    ids = {node_id for _, _, node_id in configured}
    addresses = {(host, port) for host, port, _ in configured}
    return list(configured) + [
        (voter.host, voter.port, voter.node_id)
        for voter in voters
        if voter.node_id not in ids and (voter.host, voter.port) not in addresses
    ]
