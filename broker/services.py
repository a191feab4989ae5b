"""The parts of the broker that handlers use, put together by node.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from barnabas.broker.cluster.metadata_view import MetadataView
from barnabas.broker.requests.context import PENDING, Outcome, RequestContext
from barnabas.controller.metadata.decision import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barnabas.broker.cluster.controller_channel import ControllerChannel
    from barnabas.broker.cluster.inter_broker_authentication import InterBrokerAuthentication
    from barnabas.broker.cluster.producer_ids import ProducerIdAllocator
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.config.listeners import Endpoint
    from barnabas.broker.fetch.purgatory import FetchPurgatory
    from barnabas.broker.fetch.sessions import FetchSessionCache
    from barnabas.broker.groups.coordinator import GroupCoordinator
    from barnabas.broker.partitions.partition_manager import PartitionManager
    from barnabas.broker.partitions.replication_quota import ReplicationQuota
    from barnabas.broker.quotas.client_quotas import ClientQuotas
    from barnabas.broker.requests.large_requests import LargeRequests
    from barnabas.broker.requests.registry import Handler, RawHandler
    from barnabas.broker.security.authorizer import Authorizer
    from barnabas.broker.security.delegation_tokens import DelegationTokens
    from barnabas.broker.security.listener_tls import TlsListeners
    from barnabas.broker.share_coordinator.coordinator import ShareCoordinator
    from barnabas.broker.share_partitions.manager import SharePartitionManager
    from barnabas.broker.telemetry.client_metrics import ClientMetrics
    from barnabas.broker.transactions.coordinator import TransactionCoordinator
    from barnabas.broker.transactions.verification import AddPartitionsToTxnManager
    from barnabas.controller.metadata.controller import Controller, Operation
    from barnabas.controller.metadata.quorum_info import QuorumInfo
    from barnabas.controller.operations.features import ControllerFeatures
    from barnabas.controller.raft.voter_changes import VoterChanges
    from barnabas.controller.sessions.broker_sessions import BrokerSessions
    from barnabas.runtime.interface import Runtime
    from barnabas.runtime.repeated_warnings import RepeatedWarnings
    from barnabas.runtime.slices import StepQueue, TurnQueue
    from barnabas.storage.manager.manager import LogManager
    from barnabas.wire.errors import ErrorCode


R = TypeVar("R")
LOOKUPS_AT_ONCE = 2  # of ListOffsets by time; each may hold one decompressed batch


class Services(msgspec.Struct, eq=False):
    """The broker, as handlers see it."""

    runtime: Runtime
    config: BrokerConfig
    controller: Controller
    log_manager: LogManager
    partitions: PartitionManager
    purgatory: FetchPurgatory
    fetch_sessions: FetchSessionCache
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    add_partitions_to_txn: AddPartitionsToTxnManager
    share_coordinator: ShareCoordinator
    share_partitions: SharePartitionManager
    producer_ids: ProducerIdAllocator
    client_metrics: ClientMetrics
    controller_channel: ControllerChannel
    large_requests: LargeRequests
    # Queues of work that decompresses batches, few at a time, so that its memory is bounded: of batches to be appended, of
    # smaller ones, which do not wait behind large ones, and of ListOffsets by time.
    inspections: StepQueue
    medium_inspections: StepQueue
    lookups: StepQueue
    # Produce requests whose transactions a coordinator has verified, often several at once.
    verified_produces: TurnQueue
    replica_warnings: RepeatedWarnings  # replica_authorization.py
    cluster_id: str
    node_id: int
    leader_quota: ReplicationQuota | None  # leader.replication.throttled.rate; None: no followers here
    inter_broker_authentication: InterBrokerAuthentication | None  # None: there are no other brokers
    quorum: Callable[[], QuorumInfo] | None  # describes the metadata quorum; None: this node is alone
    voter_changes: VoterChanges  # adds and removes voters of the metadata quorum
    controller_features: Callable[[], ControllerFeatures]  # of the other controllers
    broker_sessions: (
        BrokerSessions | None
    )  # None: this node's controller is never the active one of a cluster
    # Of brokers, for the placement of new partitions; empty unless this node's balancer is on
    leader_loads: Callable[[], Mapping[int, float]]
    authorizer: Authorizer | None = None  # None: everything is allowed
    delegation_tokens: DelegationTokens | None = None  # None: delegation.token.secret.key is not set
    tls: TlsListeners | None = None  # None: no listener uses TLS
    client_quotas: ClientQuotas | None = None  # None: no client has a quota
    endpoints: dict[str, Endpoint] = {}  # advertised, by listener name; filled as the listeners open
    waiting_produce_bytes: int = 0  # batches of requests that are served in several turns (api/produce.py)

    @property
    def forward(self) -> RawHandler:
        """See DispatchServices (requests/dispatch.py)."""
        return self.controller_channel.forward

    @property
    def authenticate(self) -> Handler | None:
        """See DispatchServices (requests/dispatch.py)."""
        found = self.inter_broker_authentication
        return None if found is None else found.serve

    def metadata_view(self, listener: str) -> MetadataView:
        """The metadata as clients of this listener see it."""
        return MetadataView(self.controller.image, listener, self.node_id, self.advertised(listener))

    def advertised(self, listener: str) -> tuple[str, int]:
        """(host, port) that clients of this listener shall connect to (advertised.listeners)."""
        endpoint = self.endpoints[listener]
        return endpoint.host, endpoint.port


HandlerContext: TypeAlias = RequestContext[Services]  # as handlers and the fast path get it


def decide(
    context: HandlerContext,
    operation: Operation[R | ApiError],
    respond: Callable[[R], msgspec.Struct] | None,
    refuse: Callable[[ErrorCode, str | None], msgspec.Struct],
) -> Outcome:
    """Have this node's controller carry out an operation, and complete the request: with `respond(result)`, where `respond` is
    None with the result itself, and with `refuse(error, message)` when there is none. Returns PENDING."""

    def done(result: Any) -> None:
        if isinstance(result, ApiError):
            context.complete(refuse(result.error, result.message))
        else:
            context.complete(result if respond is None else respond(result))

    context.services.controller.run(
        operation, done, lambda error, message: context.complete(refuse(error, message))
    )
    return PENDING
