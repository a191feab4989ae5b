"""The links of this node: one to every voter, and on a controller one from every broker that calls.

Between two nodes there is at most one open link. It carries everything in both directions, so what one side sends arrives in
order or, when the link breaks, not at all. Each new link has a higher number than all before. After `listen` and `call` broken
links are opened again. All calls on the loop's thread.

Other parts use links for Raft's messages (`send`, `attach_raft`), requests (`request`, `serve`), and further kinds of messages
with a handler each (`handle`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from barnabas.controller.link import messages
from barnabas.controller.link.admission import other_addresses
from barnabas.controller.link.connection import LinkSettings
from barnabas.controller.link.dialer import Dialer
from barnabas.controller.link.handshake import Handshake, HungUp
from barnabas.controller.link.liveness import Liveness, Probes
from barnabas.controller.link.messages import (
    Identity,
    Leader,
    LinkRefused,
    MalformedMessage,
    RefusalCode,
    busy,
    decode,
    encode,
)
from barnabas.controller.link.peer import Done, Handler, Peer, Serve
from barnabas.controller.link.traffic import LinkTraffic
from barnabas.controller.raft.voters import Directory, Voter
from barnabas.runtime.repeated_warnings import RepeatedWarnings

if TYPE_CHECKING:
    import ssl

    from barnabas.controller.link.sasl import NewLinkSasl
    from barnabas.controller.raft.peers import RaftReceiver
    from barnabas.runtime.interface import Runtime, Server

Address = tuple[str, int]

NO_LEADER = -1
HANG_UPS_LOGGED = 20  # in a row, about ten seconds: a node that starts or stops may hang up a few times

log = logging.getLogger("barnabas.link")


class LeaderHints:
    """The active controller that this node knows.

    Controllers send the leader over all links when it changes, and over each new link. The newer term wins. A term has one
    leader, so within a term its id replaces "none", and only the leader itself replaces it by "none", when it resigns.
    """

    def __init__(self, identity: Identity, peers: Callable[[], Sequence[Peer]]) -> None:
        self.term = -1
        self.leader_id = NO_LEADER
        self._node_id = identity.node_id
        self._is_controller = identity.is_controller
        self._peers = peers
        self._callbacks: list[Callable[[int], object]] = []

    def on_change(self, callback: Callable[[int], object]) -> None:
        """Call `callback(leader_id)` after each change."""
        self._callbacks.append(callback)

    def announce(self, term: int, leader_id: int) -> None:
        """This controller knows the leader from Raft, has become active itself, or has resigned (-1)."""
        if self._take(term, leader_id, self._node_id):
            for peer in self._peers():
                self.send_to(peer)
            self._changed()

    def send_to(self, peer: Peer) -> None:
        """Send the leader, if this node is a controller and knows one."""
        if self._is_controller and self.term >= 0:
            peer.send(messages.LEADER, encode(Leader(self.term, self.leader_id)))

    def receive(self, peer: Peer, payload: bytes) -> None:
        leader = decode(payload, Leader)
        if peer.identity.is_controller and self._take(leader.term, leader.leader_id, peer.node_id):
            self._changed()

    def _take(self, term: int, leader_id: int, source: int) -> bool:
        """Whether anything has changed."""
        if term < self.term:
            return False
        if term == self.term and leader_id == self.leader_id:
            return False
        if term == self.term and leader_id == NO_LEADER and source != self.leader_id:
            return False
        self.term, self.leader_id = term, leader_id
        return True

    def _changed(self) -> None:
        for callback in self._callbacks:
            callback(self.leader_id)


class Links:
    """See the module."""

    def __init__(
        self,
        runtime: Runtime,
        identity: Identity,
        *,
        secret: bytes | None = None,
        tls: ssl.SSLContext | None = None,
        login: NewLinkSasl | None = None,
        settings: LinkSettings | None = None,
    ) -> None:
        """`tls`, `login`: for the calls of this node."""
        self.runtime = runtime
        self.identity = identity  # applies to links that are opened later
        self.secret = secret
        self.tls = tls
        self.login = login
        self.settings = settings or LinkSettings()
        self.traffic = LinkTraffic()
        self.leader = LeaderHints(identity, self.peers)
        self.voter_ids: frozenset[int] = (
            frozenset()
        )  # where the quorum's log names them; empty before they are known
        self._own_address: Address | None = None
        self._connected: list[Callable[[Peer], object]] = []
        self._disconnected: list[Callable[[Peer], object]] = []
        self._address_known: list[Callable[[], object]] = []
        self._peers: dict[int, Peer] = {}
        self._dialers: dict[Address, Dialer] = {}
        self._accepted: dict[Handshake, None] = {}  # handshakes on accepted connections
        self._accepted_open = 0
        self._number = 0
        self._servers: list[Server] = []
        self._closed = False
        self._refusals = RepeatedWarnings(runtime, log)
        self._probes = Probes(runtime, self.settings.probe_s)
        self._handlers: dict[int, Handler] = {
            **dict.fromkeys([messages.RAFT, *messages.IGNORED], _ignore),
            messages.LEADER: self.leader.receive,
            messages.PING: Peer.take_ping,
            messages.PONG: self._probes.take_pong,
            messages.REFUSED: Peer.take_refusal,
            messages.RESPONSE: Peer.take_response,
            messages.NO_RESPONSE: Peer.take_no_response,
            messages.SASL: Peer.take_sasl,
            messages.VOTERS: _ignore,
            messages.LOAD: _ignore,
        }
        self.serve(lambda _node_id, _payload, reply: reply(None))
        self._liveness = Liveness(runtime, self.settings, self._peers)

    # -- life

    def listen(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        authentication: NewLinkSasl | None = None,
    ) -> int:
        """Accept calls, at one more address; returns the port. `authentication`: of callers by SASL. OSError."""
        server = self.runtime.listen(host, port, partial(self._accept, authentication), tls=tls)
        self._servers.append(server)
        if self.secret is None and tls is None and authentication is None:
            log.warning(
                "the controller listener at %s:%d does not authenticate its callers; keep it private, or give all nodes a "
                "barnabas.controller.secret.file",
                host,
                server.port,
            )
        return server.port

    def call(self, targets: Sequence[tuple[str, int, int | None]]) -> None:
        """Keep a link to each (host, port, node id or None for any node), and call no others."""
        wanted = {(host, port): node_id for host, port, node_id in targets}
        for address in [address for address in self._dialers if address not in wanted]:
            self._dialers.pop(address).stop()
        for address, node_id in wanted.items():
            if node_id == self.identity.node_id:
                self._own_address = address
                continue
            if address not in self._dialers:
                self._dialers[address] = Dialer(self, address, node_id)
            self._dialers[address].start()

    def join_cluster(self, cluster_id: str, voters: Sequence[Voter] = (), *, dynamic: bool = False) -> None:
        """The cluster that links opened from now on are for. `voters`: of the quorum that this node is a member of; `dynamic`: its
        log names them."""
        self.identity = msgspec.structs.replace(
            self.identity, cluster_id=cluster_id, journalled=list(voters), dynamic=dynamic
        )

    def set_join_id(self, join_id: bytes) -> None:
        """With what this node has joined its quorum (raft/voters.py), for links that are opened from now on."""
        self.identity = msgspec.structs.replace(self.identity, join_id=join_id)

    def close(self) -> None:
        self._closed = True
        for server in self._servers:
            server.close()
        for dialer in self._dialers.values():
            dialer.stop()
        for handshake in list(self._accepted):
            handshake.abandon()
        self._accepted.clear()
        for peer in list(self._peers.values()):
            peer.connection.close()
        self._liveness.stop()

    # -- for other parts

    @property
    def is_closed(self) -> bool:
        return self._closed

    def add_listener(
        self, connected: Callable[[Peer], object], disconnected: Callable[[Peer], object]
    ) -> None:
        """Call `connected` for each link that opens, `disconnected`, in the reverse order of adding, for each that has closed. A
        replaced link closes first."""
        self._connected.append(connected)
        self._disconnected.append(disconnected)

    def on_address_known(self, callback: Callable[[], object]) -> None:
        """Call back when a node has answered a call and refused the link: its id may be known now."""
        self._address_known.append(callback)

    def handle(self, kind: int, handler: Handler) -> None:
        """`handler(peer, payload)` for every frame of a kind. MalformedMessage from it closes the link."""
        self._handlers[kind] = handler

    def serve(self, serve: Serve) -> None:
        """`serve(node_id, request, reply)` for every request of another node. Until this is called they get no answer."""
        self.handle(messages.REQUEST, lambda peer, payload: peer.take_request(payload, serve))

    def attach_raft(self, raft: RaftReceiver) -> None:
        """Hand Raft's messages to `raft`, and report to it which controllers are linked, now and later. Until this is called
        the messages are dropped."""

        def connected(peer: Peer) -> None:
            if peer.identity.is_controller and peer.is_open:
                identity = peer.identity
                raft.peer_connected(
                    peer.node_id, peer.number, Directory(identity.directory_id, identity.join_id)
                )

        def disconnected(peer: Peer) -> None:
            if peer.identity.is_controller:
                raft.peer_disconnected(peer.node_id)

        def received(peer: Peer, payload: bytes) -> None:
            if peer.identity.is_controller:
                raft.received(peer.node_id, peer.number, payload)

        self.handle(messages.RAFT, received)
        self.add_listener(connected, disconnected)
        for peer in self.peers():
            connected(peer)

    def peer(self, node_id: int) -> Peer | None:
        return self._peers.get(node_id)

    def peers(self) -> list[Peer]:
        """By node id."""
        return [self._peers[node_id] for node_id in sorted(self._peers)]

    def is_linked(self, node_id: int) -> bool:
        return node_id in self._peers

    def addresses(self) -> list[tuple[Address, int | None, bool]]:
        """The addresses of `call`: (address, id of the node that last answered there, whether that is this node)."""
        found = [(address, dialer.node_id, dialer.is_self) for address, dialer in self._dialers.items()]
        own = self._own_address
        return found if own is None else [(own, self.identity.node_id, True), *found]

    def dialers(self) -> list[Dialer]:
        """Of the addresses of `call`, without this node's own."""
        return list(self._dialers.values())

    def send(self, node_id: int, message: bytes) -> bool:
        """RaftPeers: a message of Raft. False when there is no link, or its queue is full."""
        peer = self._peers.get(node_id)
        return peer is not None and peer.connection.send(messages.RAFT, message)

    def request(self, node_id: int, payload: bytes, done: Done) -> None:
        """`done(answer)`, once; None when there is no link to the node, it closes, or the node does not answer."""
        peer = self._peers.get(node_id)
        if peer is None:
            done(None)
        else:
            peer.request(payload, done)

    def active_controller(self) -> int:
        """Node id of the active controller that this node knows, -1 for none."""
        return self.leader.leader_id

    # -- connections

    def _accept(self, authentication: NewLinkSasl | None) -> Any:
        handshake = Handshake(self, dialed=False, sasl=authentication)
        settings = self.settings
        if (
            self._closed
            or len(self._accepted) >= settings.handshakes_max
            or len(self._accepted) + self._accepted_open >= settings.connections_max
        ):
            self._warn("controller listener", "too many connections; refused one more")
            handshake.connection.abort(None)
            return handshake.connection
        self._accepted[handshake] = None
        return handshake.connection

    def admit(self, handshake: Handshake, then: Callable[[LinkRefused | None], object]) -> None:
        identity = handshake.peer
        assert identity is not None
        node_id = identity.node_id
        linked = self._peers.get(node_id)
        if linked is None:
            then(None)
        elif linked.identity.incarnation_id == identity.incarnation_id:
            both_dialed = handshake.dialed and linked.dialed
            then(busy("this node is linked by another address") if both_dialed else None)
        else:
            self._probes.begin(linked, handshake, then)

    def opened(self, handshake: Handshake) -> None:
        identity, connection = handshake.peer, handshake.connection
        assert identity is not None
        dialer = self._dialer_of(handshake)
        replaced = self._peers.get(identity.node_id)
        if replaced is not None:
            replaced.connection.abort(ConnectionResetError("a newer link has taken its place"))
        if handshake in self._accepted:
            del self._accepted[handshake]
            self._accepted_open += 1
        self._number += 1
        peer = Peer(
            identity,
            connection,
            self._number,
            self._handlers,
            self._link_closed,
            dialed=handshake.dialed,
            requests_max=self.settings.requests_max,
            version=handshake.version,
        )
        connection.user = peer
        self._peers[peer.node_id] = peer
        if dialer is not None:
            dialer.handshake_opened(peer.node_id)
        if handshake.we_decide:
            self._cancel_calls(peer.node_id)
        log.info(
            "linked with node %d (%s) at %s", peer.node_id, ",".join(identity.roles), connection.peer_name
        )
        for text in other_addresses(self.identity, identity):
            self._warn(f"node {peer.node_id}", text)
        self._liveness.start()
        self.leader.send_to(peer)
        for connected in self._connected:
            connected(peer)

    def _cancel_calls(self, node_id: int) -> None:
        """Cancel the calls to a node that is linked now. (Where the other side decides, it may still choose one of them.)"""
        for dialer in self._dialers.values():
            if dialer.node_id == node_id:
                dialer.hang_up()

    def ended(self, handshake: Handshake, error: Exception) -> None:
        self._accepted.pop(handshake, None)
        self._probes.forget(handshake)
        dialer = self._dialer_of(handshake)
        if isinstance(error, LinkRefused) and not error.passing and error.code != RefusalCode.SELF:
            self._report_refusal(handshake, dialer, error)
        if dialer is not None:
            dialer.handshake_ended(error)
        elif isinstance(error, TimeoutError) and not handshake.dialed:
            self._warn(handshake.connection.peer_host, f"a caller opened no link: {error}")

    def _report_refusal(self, handshake: Handshake, dialer: Dialer | None, refused: LinkRefused) -> None:
        where = dialer.name if dialer is not None else handshake.connection.peer_host
        known = "the node" if handshake.dialed else "a caller"
        self.report_refusal(
            where, f"node {handshake.peer.node_id}" if handshake.peer is not None else known, refused
        )

    def report_refusal(self, where: str, node: str, refused: LinkRefused) -> None:
        """Warns that a peer, or this node at a peer, is refused for a reason that an operator has to resolve."""
        if refused.by_peer:
            self._warn(where, f"{node} there refuses a link with this one: {refused.reason}")
        else:
            self._warn(where, f"refused a link with {node} there: {refused.reason}")

    def unreachable(self, dialer: Dialer, error: Exception) -> None:
        if dialer.failures == 1 and not isinstance(error, LinkRefused):
            log.info("no link to %s yet: %s", dialer.name, str(error) or type(error).__name__)
        if isinstance(error, HungUp) and dialer.failures >= HANG_UPS_LOGGED:
            self._warn(dialer.name, f"{error} Or a proxy answers for a node that is not running.")
        if isinstance(error, LinkRefused):
            for callback in self._address_known:
                callback()

    def _warn(self, where: str, text: str) -> None:
        """`where`: the peer's host without the port, which changes with each connection."""
        self._refusals.warn(where, text, f"{where}: {text}")

    def _dialer_of(self, handshake: Handshake) -> Dialer | None:
        if not handshake.dialed:
            return None
        return next((dialer for dialer in self._dialers.values() if dialer.handshake is handshake), None)

    def _link_closed(self, peer: Peer, error: Exception | None) -> None:
        if not peer.dialed:
            self._accepted_open -= 1
        if self._peers.get(peer.node_id) is peer:
            del self._peers[peer.node_id]
        if not self._closed:
            log.info("the link with node %d is closed%s", peer.node_id, f": {error}" if error else "")
            if isinstance(error, MalformedMessage):
                self._warn(
                    peer.connection.peer_host, f"node {peer.node_id} sends what can't be read: {error}"
                )
            elif isinstance(error, LinkRefused) and not error.passing:
                self.report_refusal(peer.connection.peer_host, f"node {peer.node_id}", error)
        for disconnected in reversed(self._disconnected):
            disconnected(peer)
        peer.fail_requests()
        for dialer in list(self._dialers.values()):
            if dialer.node_id == peer.node_id and not self._closed:
                dialer.link_lost()


def _ignore(_peer: Peer, _payload: bytes) -> None:
    """Drops a frame."""
