"""A member of the metadata quorum: this node's links, the quorum that it votes in or follows, and the sessions of brokers while its
controller is the active one.

A voter waits until the quorum has formed, and has its metadata in Raft's log. A broker that is no voter gets the cluster id over
its links, and follows the metadata that the voters commit. A single controller has no quorum; it opens its listener to brokers
that follow it.

Where the metadata log names the voters (kraft.version 1) they can be added and removed while the cluster runs (controller/raft/voter_changes.py). A
controller that is no voter follows Raft's log, and becomes one when it is added.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from barnabas.broker.cluster.controller_security import controller_tls
from barnabas.broker.cluster.controller_server import ControllerRequests
from barnabas.broker.cluster.kafka_metadata import why_it_ends
from barnabas.broker.config.listeners import SASL_PROTOCOLS, TLS_PROTOCOLS
from barnabas.controller.balancer.balancer import Balancer
from barnabas.controller.balancer.load_reports import LoadReport
from barnabas.controller.link import messages
from barnabas.controller.link.clocks import Clocks
from barnabas.controller.link.followed_log import Discovery, FollowedMetadataLog, VoterUpdates, targets_with
from barnabas.controller.link.links import Links
from barnabas.controller.link.messages import BROKER, CONTROLLER, LOADS_SINCE, Identity, decode, encode
from barnabas.controller.link.metadata_feed import MetadataFeed
from barnabas.controller.link.quorum_bootstrap import QuorumBootstrap
from barnabas.controller.link.quorum_state import (
    QuorumState,
    check_configuration,
    read_quorum_state,
    write_quorum_state,
)
from barnabas.controller.link.reachability import ControllerWatch, has_lost_majority
from barnabas.controller.metadata.quorum_info import QuorumInfo, QuorumListener, QuorumReplica
from barnabas.controller.operations.features import (
    KRAFT_VERSION,
    SUPPORTED_FEATURES,
    ControllerFeatures,
    begin_cluster,
)
from barnabas.controller.raft.raft_log import RaftMetadataLog
from barnabas.controller.raft.voters import Directory, Voter, ids_of
from barnabas.controller.sessions.broker_sessions import BrokerSessions
from barnabas.controller.sessions.leader_balancer import LeaderBalancer
from barnabas.controller.sessions.leadership_transfer import LeadershipTransfer
from barnabas.storage.errors import LogDirectoryError

if TYPE_CHECKING:
    import ssl

    from barnabas.broker.cluster.controller_channel import ControllerChannel
    from barnabas.broker.cluster.controller_server import ControllerRequests
    from barnabas.broker.cluster.kafka_metadata import KafkaMetadata
    from barnabas.broker.cluster.link_sasl import ControllerSasl
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.controller.link.peer import Peer
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.local_log import LocalMetadataLog
    from barnabas.controller.metadata.metadata_log import MetadataLog
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.disk.disk import Disk
    from barnabas.storage.manager.manager import LogManager

log = logging.getLogger("barnabas.member")


class QuorumMember:
    """See the module. All calls on the loop's thread, `start`, `start_alone` and `serve_alone` before it runs."""

    def __init__(
        self,
        disk: Disk,
        config: BrokerConfig,
        runtime: Runtime,
        log_manager: LogManager,
        kafka_metadata: KafkaMetadata,
        *,
        secret: bytes | None,
        sasl: ControllerSasl | None,
        election_delay_s: float | None,
        on_fatal: Callable[[str], object],
    ) -> None:
        """`secret`: of the cluster, None without one. `sasl`: None where no controller listener uses it.
        `election_delay_s`: before this voter's first candidacy; None for a random delay. `on_fatal(why)`: this node can't be a
        member and must be stopped."""
        self._disk = disk
        self._config = config
        self._runtime = runtime
        self._log_manager = log_manager
        self._kafka_metadata = kafka_metadata
        self._directory = kafka_metadata.journal_directory
        self._directory_id = kafka_metadata.directory_id
        self._links: Links | None = None
        self._server_tls: dict[str, ssl.SSLContext | None] = {}  # by controller listener
        self._sessions: BrokerSessions | None = None
        self._leader_balancer: LeaderBalancer | None = None
        self.balancer: Balancer | None = None  # where this node's controller can be the active one
        self._raft: RaftMetadataLog | None = None
        self._feed: MetadataFeed | None = None
        self._state: QuorumState | None = None  # of the quorum that has formed, as it is on disk
        self._state_is_written = True
        self._updates: VoterUpdates | None = None
        self._secret = secret
        self._sasl = sasl
        self._election_delay_s = election_delay_s
        self._on_fatal = on_fatal

    # -- joining

    def start(self, found: Callable[[MetadataLog], object]) -> None:
        """`found(metadata_log)` when the quorum has formed, or can be followed. ConfigError, MetadataError, OSError."""
        if self._config.is_controller:
            self._vote(found)
        else:
            self._follow(found)

    def _vote(self, found: Callable[[MetadataLog], object]) -> None:
        config = self._config
        state = read_quorum_state(self._disk, self._directory)
        check_configuration(state, config.node_id, sorted(config.quorum.voters), self._directory)
        is_formed = state is not None and state.is_formed
        links = self._make_links(
            state.voters if state is not None and is_formed else [],
            dynamic=state is not None and is_formed and state.dynamic,
        )
        self._updates = VoterUpdates(links, self._targets())
        self._listen(links)
        formation = QuorumBootstrap(
            self._runtime, self._disk, self._directory, links, partial(self._formed, found), self._on_fatal
        )
        formation.start()
        dynamic = state is not None and state.is_formed and state.dynamic
        links.call(targets_with(self._targets(), state.voters) if state and dynamic else self._targets())

    def _formed(self, found: Callable[[MetadataLog], object], state: QuorumState) -> None:
        if not self._belong_to(state.cluster_id):
            return
        raft = RaftMetadataLog(
            self._disk,
            self._directory,
            self._runtime,
            self._config.node_id,
            [] if state.joins else state.voters,
            self.links,
            joins=state.joins,
            election_delay_s=self._election_delay_s,
            own_directory=Directory(self._directory_id, state.join_id),
            on_error=lambda error: self._on_fatal(why_it_ends(error, self._directory)),
        )
        self._raft = raft
        ControllerWatch(self._runtime, self.links)
        self._state = state
        if state.dynamic:
            self.links.call(targets_with(self._targets(), state.voters))
        found(raft)

    def _follow(self, found: Callable[[MetadataLog], object]) -> None:
        links = self._make_links([])
        targets = self._targets()
        self._updates = VoterUpdates(links, targets)

        def discovered(cluster_id: str) -> None:
            if self._belong_to(cluster_id):
                found(self._followed(links))

        Discovery(links, targets, discovered)
        ControllerWatch(self._runtime, links)
        links.call(targets)

    def _followed(self, links: Links) -> FollowedMetadataLog:
        return FollowedMetadataLog(links, lambda error: self._on_fatal(str(error)))

    def _belong_to(self, cluster_id: str) -> bool:
        try:
            self._log_manager.directories.join_cluster(cluster_id)
            self._kafka_metadata.join_cluster(cluster_id)
        except (LogDirectoryError, OSError) as error:
            self._on_fatal(str(error))
            return False
        return True

    def start_alone(self) -> None:
        """Prepare the links of a single controller. ConfigError."""
        listener = self._config.controller_listeners[0]
        own = Voter(self._config.node_id, listener.advertised_host, listener.port, self._directory_id)
        self._make_links([own])

    def serve_alone(self, metadata_log: LocalMetadataLog) -> None:
        """Open the listener of a single controller to brokers. OSError."""
        links = self.links
        self._listen(links)
        links.leader.announce(metadata_log.term, self._config.node_id)
        self._feed = MetadataFeed(links, metadata_log, lambda: metadata_log.end_offset)

    # -- links

    def _make_links(self, journalled: list[Voter], *, dynamic: bool = False) -> Links:
        config = self._config
        identity = Identity(
            self._log_manager.directories.cluster_id,
            config.node_id,
            [role for role in (BROKER, CONTROLLER) if role in config.process_roles],
            self._directory_id,
            self._runtime.random_bytes(16),
            sorted(config.quorum.voters),
            journalled,
            bool(config.quorum.bootstrap),
            configured=[
                Voter(node_id, host, port) for node_id, (host, port) in sorted(config.quorum.voters.items())
            ],
            dynamic=dynamic,
            features=dict(SUPPORTED_FEATURES),
        )
        links = Links(
            self._runtime,
            identity,
            secret=self._secret,
            tls=self._make_tls(),
            login=None if self._sasl is None else self._sasl.login,
        )
        links.add_listener(self._connected, self._disconnected)
        Clocks(links, self._log_manager.wall_clock)
        self._links = links
        return links

    def _make_tls(self) -> ssl.SSLContext | None:
        """Make the contexts of the controller listeners, and return that of calls, which go to the first of
        controller.listener.names. ConfigError."""
        config = self._config
        protocols = {each.name: each.security_protocol for each in config.controller_listeners}
        protocols.setdefault(config.controller_listener, config.controller_protocol)
        found = {
            name: controller_tls(config, name, protocol)
            for name, protocol in protocols.items()
            if protocol in TLS_PROTOCOLS
        }
        self._server_tls = {name: tls.server for name, tls in found.items()}
        for_calls = found.get(config.controller_listener)
        return None if for_calls is None else for_calls.client

    def _listen(self, links: Links) -> None:
        """On all controller listeners: there are two while a cluster goes from one protocol to another. OSError: on none."""
        try:
            for listener in self._config.controller_listeners:
                authentication = None
                if listener.security_protocol in SASL_PROTOCOLS:
                    assert self._sasl is not None
                    authentication = self._sasl.listeners[listener.name]
                tls = self._server_tls.get(listener.name)
                links.listen(listener.host, listener.port, tls, authentication)
        except OSError:
            links.close()
            raise

    def _targets(self) -> list[tuple[str, int, int | None]]:
        quorum = self._config.quorum
        named: list[tuple[str, int, int | None]] = [
            (host, port, node_id) for node_id, (host, port) in sorted(quorum.voters.items())
        ]
        return named or [(host, port, None) for host, port in quorum.bootstrap]

    def _connected(self, peer: Peer) -> None:
        if self._sessions is not None:
            self._sessions.link_opened(peer.node_id, peer.number)

    def _disconnected(self, peer: Peer) -> None:
        if self._sessions is not None:
            self._sessions.link_closed(peer.node_id, peer.number)

    # -- the controller

    @property
    def links(self) -> Links:
        """The links to the other nodes; once started."""
        assert self._links is not None, "not started"
        return self._links

    @property
    def quorum(self) -> Callable[[], QuorumInfo] | None:
        """Describes the quorum; None where this node does not vote in one."""
        return None if self._raft is None else partial(self._quorum, self._raft)

    @property
    def raft(self) -> RaftMetadataLog | None:
        """The log of the quorum; None where this node's controller is in none."""
        return self._raft

    def make_sessions(self, controller: Controller) -> BrokerSessions | None:
        """The sessions of brokers; None where this node's controller can't be the active one."""
        if self._config.is_controller:
            self._sessions = BrokerSessions(
                controller,
                self._config,
                self._runtime,
                self._log_manager.directories.cluster_id,
                self._probe,
                is_alone=self._raft is None,
            )
        return self._sessions

    def attach(
        self, controller: Controller, channel: ControllerChannel, requests: ControllerRequests
    ) -> None:
        """All parts of the node exist: start Raft, serve requests of other nodes, and on a controller the sessions of brokers."""
        links = self.links
        links.leader.on_change(lambda _: channel.controller_changed())
        if self._sessions is None:
            return
        links.serve(requests.serve)
        for peer in links.peers():
            self._sessions.link_opened(peer.node_id, peer.number)
        self._leader_balancer = LeaderBalancer(controller, self._config, self._runtime)
        self.balancer = balancer = Balancer(controller, self._config, self._runtime)
        links.handle(
            messages.LOAD,
            lambda peer, payload: balancer.receive(peer.node_id, decode(payload, LoadReport)),
        )
        self._sessions.start()
        self._leader_balancer.start()
        balancer.start()
        raft = self._raft
        if raft is None:
            return
        self._feed = MetadataFeed(
            links, raft, lambda: controller.image.offset + 1, lambda: controller.image.offset >= 0
        )
        controller.on_activity(partial(self._activity_changed, controller, raft))
        raft.on_voters(partial(self._voters_changed, raft))
        raft.on_commit(partial(self._record_voters, controller, raft))
        self._voters_changed(raft)
        links.attach_raft(raft)

    # -- voters

    def controller_features(self) -> ControllerFeatures:
        """Of the other controllers: those that are linked, and the voters that are not."""
        voters = [] if self._raft is None else ids_of(self._raft.voters)
        found: ControllerFeatures = {each: None for each in voters if each != self._config.node_id}
        for peer in self.links.peers():
            if peer.identity.is_controller:
                found[peer.node_id] = peer.identity.features
        return found

    def _record_voters(self, controller: Controller, raft: RaftMetadataLog) -> None:
        """With kraft.version 1 the log begins to name the voters: those of now."""
        if controller.image.features.get(KRAFT_VERSION, 0) == 0 or raft.are_voters_recorded:
            return
        if raft.is_leader and not raft.is_voter_change_open:
            addresses = self._config.quorum.voters  # they may be newer than those of the formation
            voters = []
            for each in raft.voters:
                host, port = addresses.get(each.node_id, (each.host, each.port))
                voters.append(replace(each, host=host, port=port))
            raft.change_voters(voters, lambda _: None)  # if it fails, the next leader tries

    def _voters_changed(self, raft: RaftMetadataLog) -> None:
        index, voters = raft.committed_voters
        if index == 0 or self._updates is None:
            return
        self._updates.announce(index, voters)
        state = self._state
        assert state is not None
        own_directory = Directory(self._directory_id, state.join_id)
        is_voter = any(voter.is_node(self._config.node_id, own_directory) for voter in voters)
        self._state = replace(state, voters=list(voters), dynamic=True, joins=state.joins and not is_voter)
        if self._state_is_written:
            self._write_state()

    def _write_state(self) -> None:
        """Keep the voters, for the next start to find the others with. The log itself decides who votes."""
        state = self._state
        assert state is not None
        self._state_is_written = False

        def written(_: object, error: BaseException | None) -> None:
            self._state_is_written = True
            if error is not None:
                log.warning("the voters can't be written to %s: %s", self._directory, error)
            elif self._state is not state:
                self._write_state()

        self._runtime.run_in_thread(lambda: write_quorum_state(self._disk, self._directory, state), written)

    def _quorum(self, raft: RaftMetadataLog) -> QuorumInfo:
        found = raft.describe()
        listener = self._config.controller_listeners[0].name
        addresses = {voter.node_id: (voter.host, voter.port) for voter in raft.voters}
        if not raft.are_voters_recorded:
            configured = self._config.quorum.voters  # may be newer than those of the formation
            addresses |= {node_id: configured[node_id] for node_id in addresses.keys() & configured.keys()}
        return replace(
            found,
            observers=sorted(
                [*found.observers, *self._observers(found.high_watermark)], key=lambda each: each.node_id
            ),
            listeners={
                node_id: [QuorumListener(listener, *address)] for node_id, address in addresses.items()
            },
        )

    def _observers(self, high_watermark: int) -> list[QuorumReplica]:
        now = self._runtime.time_ms()
        offsets = {} if self._feed is None else self._feed.offsets()
        return [
            QuorumReplica(
                node_id,
                offset + 1,
                last_fetch_ms=now,
                last_caught_up_ms=now if offset + 1 >= high_watermark else -1,
            )
            for node_id, offset in sorted(offsets.items())
        ]

    def _activity_changed(self, controller: Controller, raft: RaftMetadataLog, is_active: bool) -> None:
        if is_active:
            is_dynamic = not self._config.quorum.voters
            controller.run(
                lambda image: begin_cluster(image, self._config, dynamic=is_dynamic), lambda _: None
            )
            self._record_voters(controller, raft)
        self.links.leader.announce(raft.term, self._config.node_id if is_active else -1)

    def leader_loads(self) -> Mapping[int, float]:
        """For the placement of new partitions (Balancer.leader_loads)."""
        return {} if self.balancer is None else self.balancer.leader_loads()

    def send_load(self, report: LoadReport) -> None:
        """To the active controller. A report that is lost is not sent again: the next one follows."""
        active = self.links.active_controller()
        if active == self._config.node_id:
            if self.balancer is not None:
                self.balancer.receive(active, report)
            return
        peer = self.links.peer(active)
        if peer is not None and peer.version >= LOADS_SINCE:
            peer.send(messages.LOAD, encode(report))

    def on_controller_change(self, call: Callable[[], object]) -> None:
        """Call whenever another controller becomes the active one."""
        self.links.leader.on_change(lambda _: call())

    def when_active_known(self, call: Callable[[], object]) -> None:
        """Call once, as soon as this node knows an active controller."""
        links = self.links
        is_called = False

        def look(_: int) -> None:
            nonlocal is_called
            if links.active_controller() >= 0 and not is_called:
                is_called = True
                call()

        links.leader.on_change(look)
        look(-1)

    def knows_active(self) -> bool:
        """Whether this node knows an active controller."""
        return self._links is not None and self._links.active_controller() >= 0

    def has_quorum_ended(self) -> bool:
        """Whether most voters have ended: there is no active controller until one of them is started again."""
        return self._links is not None and has_lost_majority(self._links)

    def _probe(self, host: str, port: int, result: Callable[[bool], object]) -> None:
        """`result(True)` when no process listens at the address."""
        self._runtime.connect(
            host,
            port,
            lambda: _Probe(result),
            lambda error: result(isinstance(error, ConnectionRefusedError)),
        )

    def hand_over(self, done: Callable[[], object]) -> None:
        """Transfer the active controller to another node if it is this one, then call `done()`; soon, even when that fails."""
        if self._raft is None or self._links is None:
            done()
        else:
            LeadershipTransfer(self._raft, self._links, self._runtime, done).begin()

    def stop(self) -> None:
        """Close the links and what depends on them."""
        if self._leader_balancer is not None:
            self._leader_balancer.close()
        if self.balancer is not None:
            self.balancer.close()
        if self._sessions is not None:
            self._sessions.close()
        if self._links is not None:
            self._links.close()


class _Probe:
    """A connection that shows that a process listens."""

    def __init__(self, result: Callable[[bool], object]) -> None:
        self._result = result

    def connection_made(self, transport: Any) -> None:
        transport.abort()
        self._result(False)

    def data_received(self, data: bytes) -> None:
        """Ignored: nothing was sent."""

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Expected."""
