"""Bootstrap of the metadata quorum: all configured voters form it with the same initial metadata, or none does.

One voter is the seed: the one that has metadata already (a single node that grows), else the one with the lowest id. When all
addresses have answered, it proposes an attempt: the voters with their directories, and the genesis, which is its metadata.

    seed                                   every other voter
    journals the attempt: forming
    Prepare                         ->     compares it with its own links
                                    <-     fetches the genesis; installs it; journals: prepared
                                    <-     Prepared
    all have: installs the genesis;
    journals: formed
    Status(formed)                ->     journals: formed

The seed's "formed" is the commit of a two-phase commit. Before it another attempt may replace this one. After it every voter has
the genesis on disk, and learns from any voter that has "formed" that the attempt is committed. A voter abandons an attempt that
it has prepared only when its seed has, so a committed attempt is never lost.

A node without any metadata joins a quorum that has formed and whose log names the voters. It has no vote there until it is added. It
makes a join id, and opens its links again for the others to know it by.

`_step` runs after every event and takes the next step that the known state allows. So neither the order of events matters nor
the step at which an earlier process has stopped.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from barnabas.controller.link import messages
from barnabas.controller.link.messages import (
    GENESIS_PIECE_BYTES,
    GetPart,
    Part,
    Prepare,
    Prepared,
    Status,
    decode_formation,
    encode,
)
from barnabas.controller.link.quorum_state import (
    FORMED,
    FORMING,
    NOTHING,
    PREPARED,
    QUORUM_STATE,
    QuorumState,
    read_quorum_state,
    write_quorum_state,
)
from barnabas.controller.link.reachability import REMIND_FIRST_S, REMIND_S, unlinked_addresses
from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.local_journal import (
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    has_local_metadata,
    read_local_metadata,
)
from barnabas.controller.raft.files import RaftFiles
from barnabas.controller.raft.voters import Voter
from barnabas.storage.disk.disk import Disk
from barnabas.wire.checksum import crc32c
from barnabas.wire.uuids import random_uuid, uuid_to_string

if TYPE_CHECKING:
    from barnabas.controller.link.links import Links
    from barnabas.controller.link.peer import Peer
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.link")


class QuorumBootstrap:
    """One voter's part. `start` once. It lasts as long as the links, because other voters may come later."""

    def __init__(
        self,
        runtime: Runtime,
        disk: Disk,
        directory: str,
        links: Links,
        done: Callable[[QuorumState], object],
        failed: Callable[[str], object],
    ) -> None:
        """`done(state)` once the quorum has formed; during `start` when it had formed before. `failed(why)` when it can't form
        without an operator."""
        self._runtime = runtime
        self._disk = disk
        self._directory = directory
        self._links = links
        self._done = done
        self._failed = failed
        self._node_id = links.identity.node_id
        self._has_metadata = False
        self.state: QuorumState | None = None
        self._statuses: dict[int, Status] = {}  # of linked voters
        self._offers: dict[int, Prepare] = {}
        self._offered: set[tuple[int, bytes]] = set()  # (link number, attempt): proposals sent
        self._prepared: set[tuple[int, bytes]] = set()  # (node id, attempt)
        self._genesis: Genesis | None = None  # the seed's
        self._received = bytearray()  # of the seed's genesis
        self._receiving: tuple[bytes, int] | None = None  # attempt and link number of `_received`
        self._working = False
        self._is_over = False

    def start(self) -> None:
        """Blocking, small reads. MetadataError when the directory can't be used; OSError."""
        self.state = read_quorum_state(self._disk, self._directory)
        self._has_metadata = has_local_metadata(self._disk, self._directory)
        if self.state is None and has_raft_files(self._disk, self._directory):
            raise MetadataError(
                f"{self._directory}/{QUORUM_STATE} is missing next to the metadata of a quorum. Restore it from a "
                f"backup of this directory; without it the node does not know the voters of its quorum"
            )
        self._links.handle(messages.FORMATION, self._received_message)
        self._links.add_listener(self._connected, self._disconnected)
        self._links.on_address_known(self._later)
        if self.state is not None and self.state.is_formed:
            self._conclude(self.state)
        else:
            log.info("waiting for all voters, to form a quorum")
            self._runtime.call_later(REMIND_FIRST_S, self._remind)

    def _remind(self) -> None:
        if self._is_over or self._links.is_closed:
            return
        missing = unlinked_addresses(self._links)
        if missing:
            log.info("still waiting for %s: a quorum forms when all have been there at once", missing)
        self._runtime.call_later(REMIND_S, self._remind)

    # -- events

    def _connected(self, peer: Peer) -> None:
        if peer.identity.is_controller:
            peer.send(messages.FORMATION, encode(self._status()))
            self._later()

    def _disconnected(self, peer: Peer) -> None:
        self._statuses.pop(peer.node_id, None)
        self._offers.pop(peer.node_id, None)

    def _later(self) -> None:
        self._runtime.call_soon(self._step)

    def _received_message(self, peer: Peer, payload: bytes) -> None:
        message = decode_formation(payload)
        if not peer.identity.is_controller:
            return
        if isinstance(message, Status):
            self._statuses[peer.node_id] = message
        elif isinstance(message, Prepare):
            self._offers[peer.node_id] = message
        elif isinstance(message, Prepared):
            self._prepared.add((peer.node_id, message.attempt))
        elif isinstance(message, GetPart):
            self._send_part(peer, message)
            return
        else:
            self._take_part(peer, message)
        self._step()

    def _status(self) -> Status:
        state = self.state
        if state is None:
            return Status(NOTHING, b"", self._has_metadata)
        return Status(state.stage, state.attempt, self._has_metadata)

    def _send_status(self) -> None:
        for peer in self._links.peers():
            if peer.identity.is_controller:
                peer.send(messages.FORMATION, encode(self._status()))

    # -- the next step

    def _step(self) -> None:
        if self._is_over or self._working or self._follow_formed():
            return
        try:
            voters = find_voters(self._links)
            if voters is None or any(
                voter.node_id not in self._statuses for voter in voters if voter.node_id != self._node_id
            ):
                return
            check_own_address(self._node_id, voters)
            seed_id = find_seed(self._statuses | {self._node_id: self._status()}, voters)
        except CanNotForm as error:
            self._fail(str(error))
            return
        if seed_id == self._node_id:
            self._lead(voters)
        else:
            self._follow(seed_id, voters)

    def _follow_formed(self) -> bool:
        """Whether another voter knows a formed quorum."""
        formed = [node_id for node_id, status in self._statuses.items() if status.stage == FORMED]
        if not formed:
            return False
        state = self.state
        if (
            state is not None
            and state.stage == PREPARED
            and self._statuses[min(formed)].attempt == state.attempt
        ):
            self._write(state.at(FORMED), b"")
            return True
        if state is None and not self._has_metadata and self._join(formed):
            return True
        self._fail(why_not_join(min(formed), self._directory, has_metadata=self._has_metadata))
        return True

    def _join(self, formed: Sequence[int]) -> bool:
        """Whether one of these nodes is in a quorum that others can join."""
        peers = [self._links.peer(node_id) for node_id in formed]
        member = next((peer for peer in peers if peer is not None and peer.identity.dynamic), None)
        if member is None:
            return False
        identity = self._links.identity
        if any(
            (voter.node_id, voter.directory_id) == (identity.node_id, identity.directory_id)
            for peer in peers
            if peer is not None and peer.identity.dynamic
            for voter in peer.identity.journalled
        ):
            self._fail(
                f"this node is a voter with this metadata directory, and {self._directory} holds nothing of the metadata: it was "
                f"wiped, and must not vote. Bring it back; where it is lost, remove the voter "
                f"(kafka-metadata-quorum.sh remove-controller), start this node, and add it again"
            )
            return True
        log.info("joining the quorum of node %d, without a vote", member.node_id)
        self._write(
            QuorumState(
                stage=FORMED,
                attempt=self._statuses[member.node_id].attempt,
                cluster_id=member.identity.cluster_id,
                seed_id=member.node_id,
                voters=member.identity.journalled,
                dynamic=True,
                joins=True,
                join_id=self._runtime.random_bytes(16),
            )
        )
        return True

    # -- the seed

    def _lead(self, voters: list[Voter]) -> None:
        if self._genesis is None:
            self._work(self._read_genesis)
            return
        state = self.state
        if (
            state is None
            or state.seed_id != self._node_id
            or state.voters != voters
            or state.genesis != self._genesis.fingerprint
        ):
            self._write(
                QuorumState(
                    stage=FORMING,
                    attempt=self._new_attempt(voters, self._genesis),
                    cluster_id=self._cluster_id(),
                    seed_id=self._node_id,
                    voters=voters,
                    genesis=self._genesis.fingerprint,
                )
            )
            return
        others = [peer for peer in self._links.peers() if state.voter(peer.node_id) is not None]
        for peer in others:
            if (peer.number, state.attempt) not in self._offered:
                self._offered.add((peer.number, state.attempt))
                genesis = self._genesis
                offer = Prepare(
                    state.attempt, state.cluster_id, voters, genesis.fingerprint, len(genesis.content)
                )
                peer.send(messages.FORMATION, encode(offer))
        if all(
            (voter.node_id, state.attempt) in self._prepared
            for voter in voters
            if voter.node_id != self._node_id
        ):
            self._write(state.at(FORMED), self._genesis.content)

    def _new_attempt(self, voters: list[Voter], genesis: Genesis) -> bytes:
        """Unique for each proposal, also when the random number generator repeats itself."""
        content = self._runtime.random_bytes(16) + b"".join(map(encode, voters)) + b"%d" % genesis.fingerprint
        return hashlib.sha256(content).digest()[:16]

    def _read_genesis(self) -> None:
        """In a thread."""
        self._genesis = read_genesis(self._disk, self._directory)

    def _cluster_id(self) -> str:
        known = [self._links.identity.cluster_id, *(p.identity.cluster_id for p in self._links.peers())]
        return next(filter(None, known), None) or uuid_to_string(random_uuid(self._runtime.random_bytes))

    def _send_part(self, peer: Peer, asked: GetPart) -> None:
        state, genesis = self.state, self._genesis
        if state is None or genesis is None or asked.attempt != state.attempt:
            return  # of an earlier attempt
        data = genesis.content[asked.position : asked.position + GENESIS_PIECE_BYTES]
        peer.send(messages.FORMATION, encode(Part(asked.attempt, asked.position, data)))

    # -- the others

    def _follow(self, seed_id: int, voters: list[Voter]) -> None:
        offer, state, peer = self._offers.get(seed_id), self.state, self._links.peer(seed_id)
        if offer is None or peer is None or directories(offer.voters) != directories(voters):
            return
        if state is not None and state.stage == PREPARED:
            if state.attempt == offer.attempt:
                peer.send(messages.FORMATION, encode(Prepared(state.attempt)))
                return
            if not self._may_abandon(state, offer):
                return
        if self._receiving != (offer.attempt, peer.number):
            self._receiving = offer.attempt, peer.number
            self._received = bytearray()
            peer.send(messages.FORMATION, encode(GetPart(offer.attempt, 0)))
        elif len(self._received) == offer.genesis_bytes:
            content, self._received, self._receiving = bytes(self._received), bytearray(), None
            if crc32c(content) != offer.genesis:
                log.warning("the metadata that node %d has sent is damaged; fetching it again", seed_id)
                self._later()
                return
            self._write(
                QuorumState(
                    stage=PREPARED,
                    attempt=offer.attempt,
                    cluster_id=offer.cluster_id,
                    seed_id=seed_id,
                    voters=offer.voters,
                    genesis=offer.genesis,
                ),
                content,
            )

    def _may_abandon(self, state: QuorumState, offer: Prepare) -> bool:
        """Whether the seed of the prepared attempt can no longer commit it."""
        seed = state.voter(state.seed_id)
        if seed is None or seed.directory_id not in directories(offer.voters).values():
            return True  # the seed's directory is lost, and with it the attempt that it had not committed
        status = self._statuses.get(state.seed_id)
        return status is not None and status.attempt == offer.attempt

    def _take_part(self, peer: Peer, part: Part) -> None:
        if self._receiving != (part.attempt, peer.number) or part.position != len(self._received):
            return
        offer = self._offers.get(peer.node_id)
        self._received += part.data
        if offer is not None and part.data and len(self._received) < offer.genesis_bytes:
            peer.send(messages.FORMATION, encode(GetPart(part.attempt, len(self._received))))

    # -- the disk

    def _write(self, state: QuorumState, genesis: bytes = b"") -> None:
        """Journal a step. A genesis is installed first, while the journal marks it as invalid."""

        def write() -> None:
            if genesis:
                write_quorum_state(self._disk, self._directory, state.at(FORMING))
                install_genesis(self._disk, self._directory, genesis)
            write_quorum_state(self._disk, self._directory, state)

        def written() -> None:
            self.state = state
            self._send_status()
            if state.is_formed:
                log.info(
                    "this node is a member of the quorum of cluster %s: voters %s",
                    state.cluster_id,
                    ",".join(f"{voter.node_id}@{voter.host}:{voter.port}" for voter in state.voters),
                )
                self._conclude(state)

        self._work(write, written)

    def _work(self, work: Callable[[], object], finished: Callable[[], object] = lambda: None) -> None:
        self._working = True

        def done(_: object, error: BaseException | None) -> None:
            self._working = False
            if error is not None:
                self._fail(f"the quorum can't be journalled: {error}")
                return
            finished()
            self._step()

        self._runtime.run_in_thread(work, done)

    # -- the end

    def _conclude(self, state: QuorumState) -> None:
        self._is_over = True
        self._genesis = None
        links = self._links
        links.join_cluster(state.cluster_id, state.voters, dynamic=state.dynamic)
        links.set_join_id(state.join_id)
        for peer in links.peers():
            if state.joins or not peer.identity.is_controller:
                peer.connection.close()  # the node or this one calls again, and it gets the new identity
        self._done(state)

    def _fail(self, why: str) -> None:
        if not self._is_over:
            self._is_over = True
            log.error("%s", why)
            self._failed(why)


class CanNotForm(Exception):
    """The quorum can't form without an operator."""


def find_voters(links: Links) -> list[Voter] | None:
    """The nodes at all configured addresses, by node id; None until each has answered. CanNotForm."""
    own = links.identity
    found: dict[int, Voter] = {}
    for (host, port), node_id, is_self in links.addresses():
        if is_self and node_id is not None and node_id != own.node_id:
            raise CanNotForm(
                f"controller.quorum.voters names node {node_id} at {host}:{port}, and this node, with "
                f"node.id={own.node_id}, answers there: correct one of them"
            )
    for (host, port), node_id, is_self in links.addresses():
        if is_self or node_id == own.node_id:
            found[own.node_id] = Voter(own.node_id, host, port, own.directory_id)
            continue
        peer = links.peer(node_id) if node_id is not None else None
        if peer is None or not peer.is_open:
            return None
        if not peer.identity.is_controller:
            raise CanNotForm(
                f"{host}:{port} is named among the controllers, and node {node_id} there has no such role"
            )
        found.setdefault(peer.node_id, Voter(peer.node_id, host, port, peer.identity.directory_id))
    return [found[node_id] for node_id in sorted(found)]


def check_own_address(node_id: int, voters: Sequence[Voter]) -> None:
    """CanNotForm when this node is none of them: it could only join, and none of them is in a quorum."""
    if all(voter.node_id != node_id for voter in voters):
        raise CanNotForm(
            "controller.quorum.bootstrap.servers does not name this node's own controller listener; name those of "
            "all controllers, on every node, or start this one when the others have formed a quorum"
        )


def find_seed(statuses: Mapping[int, Status], voters: Sequence[Voter]) -> int:
    """Node id of the voter that has metadata, else the lowest. CanNotForm when several have."""
    holders = [node_id for node_id, status in sorted(statuses.items()) if status.has_metadata]
    if len(holders) > 1:
        raise CanNotForm(
            f"nodes {' and '.join(map(str, holders))} each have metadata of their own, and a quorum can begin with that "
            f"of one only. Start the others with empty directories"
        )
    return holders[0] if holders else voters[0].node_id


def directories(voters: Sequence[Voter]) -> dict[int, bytes]:
    """Node id -> id of the metadata directory."""
    return {voter.node_id: voter.directory_id for voter in voters}


def why_not_join(formed_id: int, directory: str, *, has_metadata: bool) -> str:
    """Error text: why this voter is not a member of the quorum of node `formed_id`, and the remedy."""
    text = f"node {formed_id} belongs to a quorum that has formed, and this node's metadata directory {directory} holds "
    if has_metadata:
        return text + (
            f"a single node's metadata instead. Where it is to begin a new quorum (after barnabas leave-quorum): stop "
            f"node {formed_id} and the other voters, remove __cluster_metadata-0 from their metadata directories, and "
            f"start all. Where it is another cluster's: correct controller.quorum.voters"
        )
    return text + (
        "nothing of it: it was wiped or replaced, and must not vote. Bring the old directory back; where it is lost: "
        "barnabas leave-quorum --help"
    )


class Genesis(NamedTuple):
    """The metadata that a quorum begins with, encoded. `fingerprint` is its CRC-32C."""

    content: bytes
    fingerprint: int


def read_genesis(disk: Disk, directory: str) -> Genesis:
    """Blocking: the metadata of a single node in this directory, empty when there is none. MetadataError, OSError."""
    found = read_local_metadata(disk, directory)
    content = encode_snapshot(Snapshot(0, found.end_offset - 1, found.records))
    return Genesis(content, crc32c(content))


def has_raft_files(disk: Disk, directory: str) -> bool:
    files = RaftFiles(disk, directory)
    return disk.exists(files.journal_path) or disk.exists(files.snapshot_path)


def install_genesis(disk: Disk, directory: str, content: bytes) -> None:
    """Blocking: replace Raft's files by new ones with this genesis. Only while quorum.state marks them as invalid.
    MetadataError when the content is damaged; OSError."""
    snapshot = decode_snapshot(content, "the metadata that the seed has sent")
    if not disk.exists(directory):
        disk.make_directory(directory, parents=True)
    files = RaftFiles(disk, directory)
    disk.remove(files.snapshot_path)
    disk.remove(files.journal_path)
    files.load((snapshot.records, snapshot.offset))
