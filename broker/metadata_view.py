"""The metadata image as a client of one listener is told it: whose addresses, which partitions, what errors.

Authorized operations are answered as a broker without an authorizer does: everything is allowed. The bit
fields number Kafka's AclOperation (KIP-430).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from barnabas.controller.operations.directories import is_online
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.context import RequestContext
    from barnabas.controller.image import BrokerRegistration, MetadataImage, PartitionState

# READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS
TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
# CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE
CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
OPERATIONS_NOT_ASKED: Final = -(1 << 31)


class BrokerAddress(msgspec.Struct, frozen=True):
    """A broker as clients of one listener reach it."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


def broker_addresses(context: RequestContext) -> list[BrokerAddress]:
    """Every registered broker that has the request's listener, fenced ones included."""
    services = context.services
    found = []
    for broker in services.controller.image.brokers.values():
        if broker.broker_id == services.node_id:
            # The port may have been picked when the listener opened, after the registration was written.
            address: tuple[str, int] | None = services.advertised(context.listener)
        else:
            address = _registered_address(broker, context.listener)
        if address is not None:
            found.append(BrokerAddress(broker.broker_id, *address, broker.rack, broker.fenced))
    return found


def _registered_address(broker: BrokerRegistration, listener: str) -> tuple[str, int] | None:
    return next(((point.host, point.port) for point in broker.endpoints if point.name == listener), None)


def partition_error(image: MetadataImage, state: PartitionState) -> ErrorCode:
    """LEADER_NOT_AVAILABLE while nobody can lead the partition."""
    leader = image.brokers.get(state.leader)
    return ErrorCode.LEADER_NOT_AVAILABLE if leader is None or leader.fenced else ErrorCode.NONE


def offline_replicas(image: MetadataImage, state: PartitionState) -> list[int]:
    """Replicas on brokers that are not there, or in log directories that have failed."""
    return [replica for replica in state.replicas if not is_online(image.brokers, state, replica)]
