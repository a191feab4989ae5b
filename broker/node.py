"""The composition root: one node, put together from its parts, started and stopped in order.

Start: lock and recover the log directories, replay the metadata, open the partitions, load the groups, listen. A node that
cannot start raises before it has opened a port. In a cluster the metadata is available once the quorum has formed, and the
partitions are opened when the broker is registered and has caught up. Stop is the reverse: no new connections, no more
requests, then the logs are closed and marked clean.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from barnabas.broker.cluster.brokers import Brokers
from barnabas.broker.cluster.controller_channel import ControllerChannel
from barnabas.broker.cluster.controller_server import ControllerRequests
from barnabas.broker.cluster.kafka_metadata import KafkaMetadata, metadata_directory, why_it_ends
from barnabas.broker.cluster.latest_offsets import LatestOffsets
from barnabas.broker.cluster.node_security import NodeSecurity
from barnabas.broker.cluster.producer_ids import ProducerIdAllocator, request_block
from barnabas.broker.cluster.topic_creation import create_topic
from barnabas.broker.config.listeners import format_address
from barnabas.broker.coordinator.log import CoordinatorLog
from barnabas.broker.extension import Extensions, host_of
from barnabas.broker.fetch.purgatory import FetchPurgatory
from barnabas.broker.fetch.sessions import FetchSessionCache
from barnabas.broker.groups.coordinator import GroupCoordinator
from barnabas.broker.network.connection import Connections
from barnabas.broker.network.listeners import Listeners
from barnabas.broker.partitions.alter_partition import AlterPartitionManager
from barnabas.broker.partitions.isr_hedge import IsrHedge
from barnabas.broker.partitions.isr_rules import IsrRules
from barnabas.broker.partitions.log_directories import LogDirectories, log_manager_settings, move_rate
from barnabas.broker.partitions.partition_manager import PartitionManager
from barnabas.broker.requests.context import RequestContext
from barnabas.broker.requests.dispatch import Dispatcher
from barnabas.broker.requests.large_requests import LargeRequests
from barnabas.broker.services import LOOKUPS_AT_ONCE, Services
from barnabas.broker.share_coordinator.coordinator import ShareCoordinator
from barnabas.broker.share_coordinator.persister import Persister
from barnabas.broker.share_partitions.manager import SharePartitionManager
from barnabas.broker.telemetry.client_metrics import ClientMetrics
from barnabas.broker.telemetry.receiver import ClientMetricsReceiver
from barnabas.broker.transactions.coordinator import TransactionCoordinator
from barnabas.broker.transactions.verification import AddPartitionsToTxnManager
from barnabas.controller.config.validators import ConfigError
from barnabas.controller.metadata.controller import Controller
from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.image import MetadataImage
from barnabas.controller.metadata.local_log import LocalMetadataLog
from barnabas.controller.operations.internal_topics import (
    GROUP_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from barnabas.controller.raft.voter_changes import VoterChanges
from barnabas.controller.sessions.single_node import start_alone
from barnabas.runtime.repeated_warnings import RepeatedWarnings
from barnabas.runtime.slices import StepQueue, TurnQueue
from barnabas.storage.compaction.cleaner import CleanerSettings, LogCleaner
from barnabas.storage.disk.disk import Disk, RealDisk
from barnabas.storage.errors import is_transient
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.manager.manager import LogManager
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    import msgspec

    from barnabas.broker.cluster.broker_lifecycle import BrokerLifecycle
    from barnabas.broker.cluster.inter_broker_authentication import InterBrokerAuthentication
    from barnabas.broker.cluster.quorum_member import QuorumMember
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.config.listeners import Endpoint
    from barnabas.broker.extension import Extension, ExtensionHost
    from barnabas.broker.metrics.families import Source
    from barnabas.broker.metrics.health import Health
    from barnabas.broker.metrics.node import NodeMetrics
    from barnabas.broker.metrics.process import EventLoopLag
    from barnabas.broker.metrics.requests import RequestWindow
    from barnabas.broker.partitions.load_reporter import LoadReporter
    from barnabas.broker.partitions.replication_quota import ReplicationQuota
    from barnabas.broker.quotas.client_quotas import ClientQuotas
    from barnabas.broker.quotas.connection_rates import ConnectionRates
    from barnabas.broker.replica_fetcher.manager import ReplicaFetcherManager
    from barnabas.broker.requests.context import Reply
    from barnabas.broker.security.caller import Caller
    from barnabas.broker.security.delegation_tokens import DelegationTokens
    from barnabas.broker.services import HandlerContext
    from barnabas.broker.tier.tiering import Tiering
    from barnabas.controller.metadata.metadata_log import MetadataLog
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.log.log import Log

log = logging.getLogger("barnabas.node")

QUORUM_STATE = "quorum.state"  # controller/link/quorum_state.py, which a node that is alone need not load
LEAVE_S = 30.0  # of a controlled shutdown: for other brokers to become leaders in place of this one
# Of requests about transactions to other brokers: one that could not be sent fails, and is sent to the leader of that time. An
# answer may take request.timeout.ms, and this long to arrive.
PEER_CONNECT_S = 2.0
PEER_ANSWER_S = 5.0
EXTENSION_FETCH_BYTES_MAX = 32 * 1024 * 1024  # one batch may be larger than what a request asks for
BROKER_RESOURCE = 4  # ConfigResource.Type of a broker; the name "" means all brokers


def _ignore(*_: object) -> None:
    """The default of callbacks."""


class Node:
    """One node: a broker, a controller, or both."""

    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        disk: Disk | None = None,
        extensions: Sequence[Extension] = (),
        *,
        on_ready: Callable[[], object] = _ignore,
        on_fatal: Callable[[str], object] = _ignore,
        make_dispatcher: Callable[[Services], Dispatcher] = Dispatcher,
        secret: bytes | None = None,
        election_delay_s: float | None = None,
    ) -> None:
        """`on_ready()`: the node serves clients. `on_fatal(why)`: it cannot go on and must be stopped. `secret`: the secret of the
        cluster's nodes, where no file has it. `election_delay_s`: before this voter's first election; None for a random delay."""
        self._disk = disk if disk is not None else RealDisk()
        self._config = config
        self._runtime = runtime
        self._log_manager = LogManager(
            self._disk,
            config.log_dirs,
            runtime,
            node_id=config.node_id,
            new_cluster_id=config.new_cluster_id,
            config=LogConfig.from_properties(config.topic_properties({})),
            settings=log_manager_settings(config),
            metadata_dir=metadata_directory(config),
            begins_cluster=config.quorum.is_alone,
            is_led=self._is_led,
        )
        self._partitions: PartitionManager | None = None
        self._cleaner = LogCleaner(self._log_manager, self._disk, runtime, _cleaner_settings(config))
        self._kafka_metadata = KafkaMetadata(self._disk, config, self._log_manager, runtime)
        self._on_ready = on_ready
        self._on_fatal = on_fatal
        self._make_dispatcher = make_dispatcher
        self._secret = secret
        self._election_delay_s = election_delay_s
        self.services: Services
        self._security: NodeSecurity
        self._metadata: tuple[MetadataLog, Controller] | None = None  # once started
        self._member: QuorumMember | None = None
        self._lifecycle: BrokerLifecycle | None = None
        self._fetchers: ReplicaFetcherManager | None = None
        self._extensions = Extensions(extensions)
        self.extension_host: ExtensionHost | None = None  # once the partitions are open
        self._metrics: NodeMetrics | None = None
        self._quotas: tuple[ClientQuotas, ConnectionRates] | None = None  # once there has been one
        self._is_ready = False
        self._has_loaded = False
        self._brokers: Sequence[Brokers] = ()
        self._for_extensions: Brokers
        self._tiering: Tiering | None = None
        self._load_reporter: LoadReporter | None = None
        self._directories: LogDirectories
        self._connections: Connections
        self._listeners: Listeners

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """The addresses on which clients are served; none before the listeners are open."""
        return () if self._partitions is None else self._listeners.endpoints

    @property
    def cluster_id(self) -> str:
        return self._log_manager.directories.cluster_id

    def start(self) -> None:
        """Recover and replay; blocking. The loop need not run yet. `on_ready` is called on the loop: at once where this node is
        alone, otherwise when the cluster has unfenced it. OSError, ConfigError, LogDirectoryError or MetadataError when the
        node cannot start; nothing listens then."""
        self._security = NodeSecurity(
            self._config, self._runtime, self._secret, self._image, self._delegation_tokens, self._knows_users
        )
        self._log_manager.open()
        try:
            self._listen_for_metrics()
            self._kafka_metadata.enter()
            if self._config.quorum.is_alone:
                self._start_alone()
            else:
                self._start_member()
        except BaseException:
            if self._metrics is not None:
                self._metrics.close()
            self._close_metadata()
            self._log_manager.close()
            raise

    def _image(self) -> MetadataImage:
        """An empty one before the metadata is found."""
        return MetadataImage() if self._metadata is None else self._metadata[1].image

    def _delegation_tokens(self) -> DelegationTokens | None:
        return None if self._partitions is None else self.services.delegation_tokens

    def _knows_users(self) -> bool:
        return self._member is not None and self._member.knows_active()

    # -- alone

    def _start_alone(self) -> None:
        config, runtime = self._config, self._runtime
        self._refuse_voters_directory()
        metadata_log = LocalMetadataLog(
            self._disk, self._kafka_metadata.journal_directory, runtime, on_error=self._metadata_failed
        )
        controller = Controller(metadata_log, self._when_settled)
        if config.is_broker:
            start_alone(controller, config, runtime, self._log_manager.directories.online_ids())
        else:
            controller.open()
            controller.serve()
        self._metadata = metadata_log, controller
        if config.controller_listeners:
            self._member = self._make_member()
            self._member.start_alone()
        self._compose(controller)
        if config.is_broker:
            self._log_manager.registered(controller.image.brokers[config.node_id].broker_epoch)
            self._open_partitions()
            self._listeners.open()
        if self._member is not None:
            self._member.serve_alone(metadata_log)
            self._attach(self._member)
        runtime.call_soon(self._on_ready)

    def _refuse_voters_directory(self) -> None:
        """MetadataError where a quorum's metadata lies: this node's own metadata, from before it joined the quorum, is old."""
        path = f"{self._kafka_metadata.journal_directory}/{QUORUM_STATE}"
        if self._disk.exists(path):
            raise MetadataError(
                f"{path} says that this node is one of several voters. Start it with the controller.quorum.voters (or "
                f"controller.quorum.bootstrap.servers) that it had"
            )

    # -- in a cluster

    def _start_member(self) -> None:
        self._member = self._make_member()
        self._member.start(self._metadata_found)

    def _make_member(self) -> QuorumMember:
        from barnabas.broker.cluster.quorum_member import QuorumMember

        return QuorumMember(
            self._disk,
            self._config,
            self._runtime,
            self._log_manager,
            self._kafka_metadata,
            secret=self._security.secret,
            sasl=self._security.controller_sasl,
            election_delay_s=self._election_delay_s,
            on_fatal=self._on_fatal,
        )

    def _metadata_found(self, metadata_log: MetadataLog) -> None:
        """The quorum has formed, or an observer can follow it."""
        from barnabas.broker.cluster.broker_lifecycle import BrokerLifecycle

        member = self._member
        assert member is not None
        controller = Controller(metadata_log, self._when_settled)
        self._metadata = metadata_log, controller
        try:
            controller.open()
        except (MetadataError, OSError) as error:
            self._on_fatal(str(error))
            return
        controller.serve()
        self._compose(controller)
        self._attach(member)
        if not self._config.is_broker:
            member.when_active_known(self._on_ready)
            return
        if self._listeners.have_ports:
            self._listeners.advertise()
        elif not self._listen_or_end():  # the registration names the ports
            return
        lifecycle = self._lifecycle = BrokerLifecycle(
            self._runtime,
            self._config,
            controller,
            self.services.controller_channel,
            self._log_manager,
            self.cluster_id,
            self.services.endpoints.values(),
            previous_broker_epoch=self._log_manager.directories.previous_broker_epoch,
            when_roles_taken=self.services.partitions.when_roles_taken,
            open_partitions=self._caught_up,
            on_serving=self._serving,
            has_quorum_ended=member.has_quorum_ended,
            on_fatal=self._on_fatal,
        )
        member.on_controller_change(lifecycle.heartbeat_now)
        lifecycle.start()

    def _caught_up(self, opened: Callable[[], object]) -> None:
        """The metadata of this broker's partitions is known: open them, then the listeners."""
        try:
            self._open_partitions()
        except ConfigError as error:  # of an extension
            self._on_fatal(str(error))
            return
        if self._listeners.are_open or self._listen_or_end():
            opened()

    def _serving(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            self.services.partitions.when_settled(self._on_ready)

    def _listen_or_end(self) -> bool:
        """Whether the listeners are open; if not, the node ends."""
        try:
            self._listeners.open()
            return True
        except OSError as error:
            addresses = ", ".join(format_address(each.host, each.port) for each in self._config.listeners)
            self._on_fatal(
                f"cannot listen on {addresses}: {error.strerror or error}; free it or choose another in `listeners`"
            )
            return False

    # -- both

    def _compose(self, controller: Controller) -> None:
        """Put the parts together; nothing is opened yet."""
        config, runtime, member = self._config, self._runtime, self._member
        authentication = self._security.inter_broker_authentication(
            controller, self.cluster_id, lambda: self._log_manager.broker_epoch
        )
        fetchers = self._fetchers = self._make_fetchers(controller, authentication)
        tiering = self._tiering = self._make_tiering()
        partitions = PartitionManager(
            self._log_manager,
            IsrRules(
                config.node_id,
                runtime.monotonic,
                lambda: controller.image,
                IsrHedge(runtime),
                lag_time_max_s=config.replica_lag_time_max_ms / 1000,
                may_take_over=self._extensions.may_take_over,
                on_append_failed=self._hand_over,
            ),
            AlterPartitionManager(
                runtime,
                config.node_id,
                lambda key, request, done: channel.send(key, request, done),
                lambda: self._log_manager.broker_epoch,
            ),
            self._topic_properties,
            runtime,
            on_following=_ignore if fetchers is None else fetchers.on_following,
            on_not_following=_ignore if fetchers is None else fetchers.on_not_following,
            on_opened=lambda partition, state: self._directories.opened(partition, state),
            on_changed=_ignore if tiering is None else tiering.partition_changed,
            on_removed=_ignore if tiering is None else tiering.partition_removed,
            may_lead=(lambda *_: True) if tiering is None else tiering.restores.may_lead,
            has_session=lambda: self._lifecycle is None or self._lifecycle.has_session(),
        )
        self._configs_changed(controller.image, {(BROKER_RESOURCE, "")})
        self._security.begin()
        channel = ControllerChannel(
            runtime,
            controller,
            config.node_id,
            None if member is None else member.links,
            self._new_context,
            partitions.when_settled,
        )
        producer_ids = ProducerIdAllocator(
            lambda done: request_block(channel, config.node_id, controller.image, done)
        )
        # Of their own, so that a request that waits for replicas does not hold up others.
        for_markers = self._make_brokers(controller, authentication, "markers")
        for_verification = self._make_brokers(controller, authentication, "add-partitions-to-txn")
        for_share_states = self._make_brokers(controller, authentication, "share-state")
        self._for_extensions = self._make_brokers(
            controller, authentication, "extension", EXTENSION_FETCH_BYTES_MAX
        )
        self._brokers = (for_markers, for_verification, for_share_states, self._for_extensions)
        share_coordinator = ShareCoordinator(
            CoordinatorLog(SHARE_GROUP_STATE_TOPIC, partitions, runtime),
            config,
            runtime,
            controller,
            partial(create_topic, channel),
            partitions.has_session,
        )
        persister = Persister(runtime, for_share_states.ask, share_coordinator.topic.find)
        groups = GroupCoordinator(
            CoordinatorLog(GROUP_METADATA_TOPIC, partitions, runtime, config.request_timeout_ms),
            config,
            runtime,
            controller,
            self._log_manager.wall_clock,
            partial(create_topic, channel),
            persister,
            LatestOffsets(lambda: controller.image, for_share_states.ask),
        )
        transactions = TransactionCoordinator(
            CoordinatorLog(TRANSACTION_STATE_TOPIC, partitions, runtime),
            config,
            runtime,
            controller,
            self._log_manager.wall_clock,
            partial(create_topic, channel),
            producer_ids,
            for_markers.ask,
        )
        client_metrics = ClientMetrics(
            runtime,
            config.telemetry_max_bytes,
            None if config.metrics_address is None else ClientMetricsReceiver(runtime),
        )
        self.services = Services(
            runtime=runtime,
            config=config,
            controller=controller,
            log_manager=self._log_manager,
            partitions=partitions,
            purgatory=FetchPurgatory(runtime),
            fetch_sessions=FetchSessionCache(runtime, config.max_incremental_fetch_session_cache_slots),
            groups=groups,
            transactions=transactions,
            add_partitions_to_txn=AddPartitionsToTxnManager(
                runtime, for_verification.ask, transactions.topic.node_of
            ),
            share_coordinator=share_coordinator,
            share_partitions=SharePartitionManager(
                runtime,
                config,
                controller,
                persister,
            ),
            producer_ids=producer_ids,
            client_metrics=client_metrics,
            controller_channel=channel,
            large_requests=LargeRequests(runtime),
            inspections=StepQueue(runtime),
            medium_inspections=StepQueue(runtime),
            # Of tiered topics they wait for the object store.
            lookups=StepQueue(runtime, LOOKUPS_AT_ONCE, remote=True),
            verified_produces=TurnQueue(runtime),
            replica_warnings=RepeatedWarnings(runtime, logging.getLogger("barnabas.replication")),
            cluster_id=self.cluster_id,
            node_id=config.node_id,
            leader_quota=self._leader_quota(controller),
            inter_broker_authentication=authentication,
            quorum=None if member is None else member.quorum,
            voter_changes=VoterChanges(
                None if member is None else member.raft, self.cluster_id, config.controller_listener
            ),
            controller_features=dict if member is None else member.controller_features,
            broker_sessions=None if member is None else member.make_sessions(controller),
            leader_loads=dict if member is None else member.leader_loads,
            authorizer=self._security.authorizer(controller, lambda: self._has_loaded),
            delegation_tokens=self._security.delegation_tokens(controller),
            tls=self._security.tls,
        )
        controller.add_config_listener(self._configs_changed)
        client_metrics.load(controller.image)
        controller.add_config_listener(client_metrics.configs_changed)
        controller.add_quota_listener(self._client_quotas_changed)
        self._partitions = partitions
        self._directories = LogDirectories(
            self._log_manager,
            partitions,
            controller,
            channel,
            runtime,
            config,
            on_failed=None if config.quorum.is_alone else self._heartbeat_now,
            on_fatal=self._on_fatal,
        )
        self._dispatcher = self._make_dispatcher(self.services)
        self._connections = Connections(runtime, self._dispatcher, config)
        self._client_quotas_changed(controller.image)
        self._listeners = Listeners(
            runtime,
            config,
            self._connections,
            self.services.endpoints,
            self._security.tls,
            self._security.authenticators,
        )

    def _is_led(self, log: Log) -> bool:
        return self._partitions is not None and self._partitions.is_led(log)

    def _leader_quota(self, controller: Controller) -> ReplicationQuota | None:
        if not self._config.may_have_followers:
            return None
        from barnabas.broker.partitions.replication_quota import LEADER, replication_quota

        return replication_quota(self._runtime, self._config, LEADER, lambda: controller.image)

    def _new_context(
        self,
        reply: Reply,
        api_key: int,
        api_version: int,
        client_id: str | None,
        caller: Caller,
    ) -> HandlerContext:
        return RequestContext(self.services, reply, api_key, api_version, 0, client_id, caller)

    def _attach(self, member: QuorumMember) -> None:
        services = self.services
        requests = ControllerRequests(services.controller, services.large_requests, self._new_context)
        member.attach(services.controller, services.controller_channel, requests)

    def _make_brokers(
        self,
        controller: Controller,
        authentication: InterBrokerAuthentication | None,
        purpose: str,
        fetch_max_bytes: int = 0,
    ) -> Brokers:
        """`fetch_max_bytes`: of an answer with records; 0 where none is asked for."""
        config, runtime = self._config, self._runtime
        answer_timeout_s = config.request_timeout_ms / 1000 + PEER_ANSWER_S
        peers = None
        if self._config.may_have_followers:
            from barnabas.broker.cluster.peer_client import inter_broker_address
            from barnabas.broker.cluster.peers import Peers, PeerTerms

            terms = PeerTerms(
                purpose,
                request_timeout_s=PEER_CONNECT_S,
                connection_timeout_s=answer_timeout_s,
                timeout_error=ErrorCode.NETWORK_EXCEPTION,
                disconnect_error=ErrorCode.NETWORK_EXCEPTION,
                gives_up_sent=False,
                fetch_max_bytes=fetch_max_bytes,
            )
            peers = Peers(
                runtime,
                config.node_id,
                lambda node_id: inter_broker_address(controller.image, node_id, config.inter_broker_listener),
                authentication,
                terms,
                self._security.client_tls,
            )
        return Brokers(
            runtime, config.node_id, purpose, self._new_context, self._call, peers, answer_timeout_s
        )

    def _call(self, context: HandlerContext, request: msgspec.Struct) -> None:
        self._dispatcher.call(context, request)

    def _heartbeat_now(self) -> None:
        if self._lifecycle is not None:
            self._lifecycle.heartbeat_now()

    def _hand_over(self) -> None:
        if self._lifecycle is not None:
            self._lifecycle.hand_over()

    def _make_tiering(self) -> Tiering | None:
        """ConfigError where the object store is wrongly configured."""
        if not self._config.remote_log_storage_system_enable or not self._config.is_broker:
            return None
        from barnabas.broker.tier.tiering import Tiering

        self._runtime.limit_remote_threads(self._config.remote_log_reader_threads)
        return Tiering(
            self._config,
            self._runtime,
            self._disk,
            self._log_manager,
            lambda: self.cluster_id,
        )

    def _make_fetchers(
        self, controller: Controller, authentication: InterBrokerAuthentication | None
    ) -> ReplicaFetcherManager | None:
        if not self._config.may_have_followers:
            return None
        from barnabas.broker.cluster.peer_client import inter_broker_address
        from barnabas.broker.partitions.replication_quota import (
            FOLLOWER,
            reassignment_quota,
            replication_quota,
        )
        from barnabas.broker.replica_fetcher.fetcher import FetcherSettings
        from barnabas.broker.replica_fetcher.manager import ReplicaFetcherManager

        config = self._config
        fetchers = ReplicaFetcherManager(
            self._runtime,
            FetcherSettings(
                config.node_id,
                broker_epoch=lambda: self._log_manager.broker_epoch,
                authentication=authentication,
                num_fetchers=config.num_replica_fetchers,
                max_bytes=config.replica_fetch_max_bytes,
                response_max_bytes=config.replica_fetch_response_max_bytes,
                min_bytes=config.replica_fetch_min_bytes,
                wait_max_ms=config.replica_fetch_wait_max_ms,
                backoff_ms=config.replica_fetch_backoff_ms,
                socket_timeout_ms=config.replica_socket_timeout_ms,
                may_skip_tiered=lambda: config.follower_fetch_last_tiered_offset_enable,
                tier_interval_ms=config.remote_log_manager_task_interval_ms
                if config.remote_log_storage_system_enable
                else 0,
                quotas=(
                    replication_quota(self._runtime, config, FOLLOWER, lambda: controller.image),
                    reassignment_quota(self._runtime, config),
                ),
                tls=self._security.client_tls,
            ),
            self._log_manager,
            lambda node_id: inter_broker_address(controller.image, node_id, config.inter_broker_listener),
        )
        controller.add_broker_listener(lambda _image, broker_ids: fetchers.brokers_changed(broker_ids))
        return fetchers

    def _open_partitions(self) -> None:
        """ConfigError where topics are tiered and this broker is not set up for it: it would take what is in the store for removed."""
        controller, partitions = self.services.controller, self.services.partitions
        if self._tiering is None:
            tiered = sorted(
                name
                for name in controller.image.topics
                if controller.image.topic_configs(name).get("remote.storage.enable", "").lower() == "true"
            )
            if tiered:
                raise ConfigError(
                    f"remote.log.storage.system.enable is off, and these topics are tiered: {', '.join(tiered[:10])}. Switch it on, or "
                    f"end their tiering before"
                )
        partitions.start()
        partitions.load(controller.image)
        self._has_loaded = True
        controller.add_listener(partitions.metadata_changed)
        if self._tiering is not None:
            self._tiering.begin(controller)
        self._directories.start()
        self.services.groups.start()
        self.services.transactions.start()
        self.services.share_coordinator.start()
        controller.add_listener(self.services.share_partitions.metadata_changed)
        controller.add_image_listener(self.services.share_partitions.image_changed)
        if self._config.log_cleaner_enable:
            self._cleaner.start()
        self._report_load()
        directory = metadata_directory(self._config)
        self.extension_host = host_of(
            self.services, self._disk, directory, self._for_extensions.ask, self._extensions.reports
        )
        self._extensions.start(self.extension_host)

    def _report_load(self) -> None:
        """Begin to report this broker's load, where there are others."""
        if self._member is None:
            return
        from barnabas.broker.partitions.load_reporter import LoadReporter

        partitions = self.services.partitions
        self._load_reporter = LoadReporter(
            self._runtime,
            self._config,
            partitions,
            self._log_manager.directories,
            partitions.rules.hedge.hedges,
            self._member.send_load,
        )
        self._load_reporter.start()

    def _when_settled(self, answer: Callable[[], object]) -> None:
        """Call back when the partitions and the extensions have applied the metadata; at once before any is loaded."""
        if not self._has_loaded:
            answer()
            return
        self.services.partitions.when_settled(lambda: self._extensions.when_settled(answer))

    def _metadata_failed(self, error: OSError) -> None:
        """As in Kafka, a broker ends without its metadata log; on a full disk it waits."""
        if not is_transient(error):
            self._on_fatal(why_it_ends(error, self._kafka_metadata.journal_directory))

    def _configs_changed(self, image: MetadataImage, resources: set[tuple[int, str]]) -> None:
        """Apply the dynamic broker configs: the cluster's, then this node's own."""
        if any(kind == BROKER_RESOURCE for kind, _ in resources):
            defaults = self._config.topic_defaults()
            self._config.apply_dynamic(
                image.configs.get((BROKER_RESOURCE, ""), {}),
                image.configs.get((BROKER_RESOURCE, str(self._config.node_id)), {}),
            )
            self._cleaner.reconfigure(_cleaner_settings(self._config))
            if self._partitions is not None and self._config.topic_defaults() != defaults:
                self._partitions.defaults_changed(image)
            was_cordoned = list(self._log_manager.directories.cordoned)
            self._log_manager.reconfigure(
                producer_id_expiration_ms=self._config.producer_id_expiration_ms,
                cordoned=self._config.cordoned_directories(),
                move_bytes_per_second=move_rate(self._config),
            )
            if self._lifecycle is not None and was_cordoned != self._log_manager.directories.cordoned:
                self._lifecycle.heartbeat_now()
            if self._fetchers is not None and self._partitions is not None:
                self._fetchers.resize(self._config.num_replica_fetchers, self._partitions.all())
            if self._tiering is not None:
                self._runtime.limit_remote_threads(self._config.remote_log_reader_threads)
            if self._load_reporter is not None:
                self._load_reporter.configs_changed()
            if self._partitions is not None:
                self._security.reload()

    def _client_quotas_changed(self, image: MetadataImage) -> None:
        if self._quotas is None:
            if not image.client_quotas:
                return
            from barnabas.broker.quotas.client_quotas import ClientQuotas
            from barnabas.broker.quotas.connection_rates import ConnectionRates

            self._quotas = (
                ClientQuotas(self._runtime, self._config),
                ConnectionRates(self._runtime, self._config),
            )
        of_clients, of_addresses = self._quotas
        self.services.client_quotas = of_clients if of_clients.load(image) else None
        self._connections.limits.rates = of_addresses if of_addresses.load(image) else None

    def begin_stop(self, stopped: Callable[[], object]) -> None:
        """Controlled shutdown of the broker, then of its controller; then call `stopped()`. Other nodes are leaders by then, so that
        `stop` interrupts no client."""
        member = self._member

        def handed_over() -> None:
            metadata_log = None if self._metadata is None else self._metadata[0]
            if isinstance(metadata_log, LocalMetadataLog):
                metadata_log.finish(stopped)  # with a change in flight Kafka could not start here afterwards
            else:
                stopped()

        def left() -> None:
            if member is None:
                handed_over()
            else:
                member.hand_over(handed_over)

        def leave() -> None:
            if self._lifecycle is None or not self._config.controlled_shutdown_enable:
                left()
            else:
                self._lifecycle.leave(left, LEAVE_S)

        self._extensions.leave(leave)

    def stop(self) -> None:
        """Stop serving and close everything cleanly; blocking. To be called when the loop has stopped or is about to."""
        if self._partitions is not None:  # put together: not where the metadata could not be read
            self._listeners.close()
            self._security.stop()
        if self._metrics is not None:
            self._metrics.close()
        if self._lifecycle is not None:
            self._lifecycle.stop()
        if self._load_reporter is not None:
            self._load_reporter.stop()
        if self._partitions is not None:
            self._connections.close_all()
            self._extensions.stop()
            if self._has_loaded:
                self.services.groups.stop()
                self.services.transactions.stop()
                self.services.share_partitions.stop()
                self.services.share_coordinator.stop()
            self.services.client_metrics.stop()
            for brokers in self._brokers:
                brokers.close()
        self._close_metadata()
        if self._member is not None:
            self._member.stop()
        if self._fetchers is not None:
            self._fetchers.stop()
        if self._tiering is not None:
            self._tiering.stop()
        if self._has_loaded:
            self.services.partitions.stop()
            self._cleaner.stop()
        self._log_manager.close()

    def _listen_for_metrics(self) -> None:
        address = self._config.metrics_address
        if address is not None:
            from barnabas.broker.metrics.node import NodeMetrics

            self._metrics = NodeMetrics(
                self._runtime,
                *address,
                self._metric_sources,
                lambda: () if self._partitions is None else self._dispatcher.metrics(),
                self.health,
            )

    def health(self) -> Health:
        """For probes."""
        from barnabas.broker.metrics.health import NO_METADATA, Health, broker_health, controller_health

        if self._partitions is None:
            return Health(False, [NO_METADATA])
        if self._config.is_broker:
            return broker_health(None if self._lifecycle is None else self._lifecycle.state)
        quorum = self.services.quorum
        return controller_health(
            is_active=self.services.controller.is_active, quorum=None if quorum is None else quorum()
        )

    def _metric_sources(self, lag: EventLoopLag, window: RequestWindow) -> list[Source] | None:
        """The sources of metrics; None before the metadata is known."""
        from barnabas.broker.metrics.controller import balancer_metrics
        from barnabas.broker.metrics.health import broker_state
        from barnabas.broker.metrics.node import node_sources
        from barnabas.controller.link.traffic import LinkTraffic

        if self._partitions is None:
            return None
        for_controllers = self._security.controller_sasl
        of_links = {} if for_controllers is None else for_controllers.authentications
        state = None if self._lifecycle is None else self._lifecycle.state
        balancer = None if self._member is None else self._member.balancer
        return [
            *node_sources(
                self.services,
                self._dispatcher,
                self._connections,
                self._cleaner,
                self._quotas,
                {**self._connections.authentications, **of_links},
                broker_state(state, was_ready=self._is_ready),
                lambda: 0 if self._fetchers is None else self._fetchers.max_lag(),
                LinkTraffic() if self._member is None else self._member.links.traffic,
                lag,
                window,
            ),
            *(() if balancer is None else (partial(balancer_metrics, balancer),)),
            *(() if self._tiering is None else (self._tiering.metrics,)),
            *self._extensions.metrics(),
        ]

    def _close_metadata(self) -> None:
        """Close the metadata log, also after a failed start. Kafka may start on it afterwards."""
        if self._metadata is not None:
            metadata_log, controller = self._metadata
            at_rest = isinstance(metadata_log, LocalMetadataLog) and metadata_log.at_rest
            controller.close()
            if at_rest:
                self._kafka_metadata.leave(controller.image)
        self._kafka_metadata.unlock()

    def _topic_properties(self, image: MetadataImage, topic: str) -> Mapping[str, str]:
        return self._config.topic_properties(image.topic_configs(topic))


def _cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    return CleanerSettings(
        threads=config.log_cleaner_threads,
        backoff_ms=config.log_cleaner_backoff_ms,
        dedupe_buffer_size=config.log_cleaner_dedupe_buffer_size,
        io_buffer_load_factor=config.log_cleaner_io_buffer_load_factor,
        io_max_bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
    )
