"""What handlers work with: the nouns of the broker, put together once by node.py."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec

from barnabas.broker.cluster.controller_channel import ToController
from barnabas.broker.cluster.metadata_view import MetadataView
from barnabas.broker.requests.context import RequestContext
from barnabas.broker.requests.large_requests import LargeRequests
from barnabas.broker.requests.refused_transactions import RefusedTransactions
from barnabas.runtime.repeated_warnings import RepeatedWarnings
from barnabas.runtime.slices import StepQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.cluster.inter_broker_authentication import InterBrokerAuthentication
    from barnabas.broker.cluster.producer_ids import ProducerIdAllocator
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.fetch.purgatory import FetchPurgatory
    from barnabas.broker.fetch.sessions import FetchSessionCache
    from barnabas.broker.groups.coordinator import GroupCoordinator
    from barnabas.broker.partitions.partition_manager import PartitionManager
    from barnabas.broker.partitions.replication_quota import ReplicationQuota
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.quorum_info import QuorumInfo
    from barnabas.controller.sessions.broker_sessions import BrokerSessions
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.manager.manager import LogManager


LOOKUPS_AT_ONCE = 2  # of ListOffsets by time; each may hold one batch unpacked


class Endpoint(msgspec.Struct):
    """Where clients of one listener reach this broker."""

    listener: str
    security_protocol: str
    host: str
    port: int


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
    producer_ids: ProducerIdAllocator
    cluster_id: str
    node_id: int
    refused_transactions: RefusedTransactions = msgspec.field(default_factory=RefusedTransactions)
    leader_quota: ReplicationQuota | None = None  # leader.replication.throttled.rate; None: no followers here
    inter_broker_authentication: InterBrokerAuthentication | None = None  # None: there are no other brokers
    replica_warnings: RepeatedWarnings = cast("RepeatedWarnings", None)  # replica_authorization.py
    endpoints: dict[str, Endpoint] = {}  # advertised, by listener name
    to_controller: ToController = cast("ToController", None)  # made below, of the rest
    quorum: Callable[[], QuorumInfo] | None = None  # tells of the metadata quorum; None: this node is alone
    broker_sessions: BrokerSessions | None = (
        None  # where the controller may become the active one of a cluster
    )
    # What unpacks batches of clients, so few at a time that their memory is bounded: one that is about to be appended
    inspections: StepQueue = cast("StepQueue", None)
    medium_inspections: StepQueue = cast(
        "StepQueue", None
    )  # of batches that take a few slices, not behind the others
    lookups: StepQueue = cast("StepQueue", None)

    waiting_produce_bytes: int = 0  # batches of requests that are served in several turns (api/produce.py)
    large_requests: LargeRequests = cast("LargeRequests", None)

    def __post_init__(self) -> None:
        self.replica_warnings = RepeatedWarnings(self.runtime, logging.getLogger("barnabas.replication"))
        self.to_controller = ToController(self)
        self.inspections = StepQueue(self.runtime)
        self.medium_inspections = StepQueue(self.runtime)
        self.large_requests = LargeRequests(self.runtime)
        self.lookups = StepQueue(self.runtime, LOOKUPS_AT_ONCE)

    def metadata_view(self, listener: str) -> MetadataView:
        """The metadata as clients of this listener see it."""
        return MetadataView(self.controller.image, listener, self.node_id, self.advertised(listener))

    def advertised(self, listener: str) -> tuple[str, int]:
        """(host, port) that clients of this listener shall connect to (advertised.listeners)."""
        endpoint = self.endpoints[listener]
        return endpoint.host, endpoint.port


HandlerContext: TypeAlias = RequestContext[Services]  # as handlers and the fast path get it
