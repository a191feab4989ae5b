"""The metadata image as clients of one listener see it: addresses of brokers, leaders, errors of partitions.

A broker that is fenced or has not caught up answers from its present image, as in Kafka; it is not in that answer then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.controller.metadata.image import NO_LEADER
from barnabas.controller.operations.directories import is_online
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 - the type only

    from barnabas.controller.metadata.image import BrokerRegistration, MetadataImage, PartitionState

OPERATIONS_NOT_ASKED: Final = -(1 << 31)  # of fields with authorized operations (KIP-430)


class BrokerAddress(msgspec.Struct, frozen=True):
    """A broker's address on one listener."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


LISTENER_NOT_FOUND_FROM: Final = 6  # the first version of Metadata whose clients know it
ALL_REPLICAS_FROM: Final = 1  # before, replicas on brokers that are not alive were left out, with an error


class MetadataView:
    """The view of one answer: the image now, and the brokers that the listener reaches."""

    def __init__(self, image: MetadataImage, listener: str, node_id: int, own: tuple[str, int]) -> None:
        """`own`: (host, port) of this node, `node_id`, on the listener."""
        self.image = image
        self.brokers: list[BrokerAddress] = []  # those that have the listener, fenced ones included, by id
        for broker_id in sorted(image.brokers):
            broker = image.brokers[broker_id]
            if broker_id == node_id:
                # The port may have been picked when the listener opened, after the registration was written.
                address: tuple[str, int] | None = own
            else:
                address = _registered_address(broker, listener)
            if address is not None:
                self.brokers.append(BrokerAddress(broker_id, *address, broker.rack, broker.fenced))
        self._by_id = {broker.broker_id: broker for broker in self.brokers}

    def alive(self, broker_id: int) -> BrokerAddress | None:
        """The broker, when it has the listener and is not fenced."""
        broker = self._by_id.get(broker_id)
        return None if broker is None or broker.fenced else broker

    def leader(self, state: PartitionState) -> int:
        """The leader's id; -1 when there is none or this listener does not reach it."""
        return state.leader if state.leader in self._by_id else NO_LEADER

    def partition_error(self, state: PartitionState, version: int) -> ErrorCode:
        """The error of a partition's entry in this version of Metadata."""
        if state.leader not in self._by_id:
            if state.leader in self.image.brokers and version >= LISTENER_NOT_FOUND_FROM:
                return ErrorCode.LISTENER_NOT_FOUND
            return ErrorCode.LEADER_NOT_AVAILABLE
        if version < ALL_REPLICAS_FROM and not all(
            self.alive(replica) for replica in (*state.replicas, *state.isr)
        ):
            return ErrorCode.REPLICA_NOT_AVAILABLE
        return ErrorCode.NONE

    def listed(self, brokers: list[int], version: int) -> list[int]:
        """The replicas or ISR as this version of Metadata lists them."""
        if version >= ALL_REPLICAS_FROM:
            return brokers
        return [broker for broker in brokers if self.alive(broker)]

    def offline_replicas(self, state: PartitionState) -> list[int]:
        """Replicas on brokers that the listener does not reach, or in log directories that have failed."""
        return [
            replica
            for replica in state.replicas
            if replica not in self._by_id or not is_online(self.image.brokers, state, replica)
        ]

    def controller_id(self, random: Random) -> int:
        """The id of any live broker, as all forward requests to the controller; a random one, so that they share the work. -1
        when none is alive."""
        alive = self.image.usable_brokers()
        if len(alive) < 2:
            return alive[0] if alive else -1
        return random.choice(alive)


def _registered_address(broker: BrokerRegistration, listener: str) -> tuple[str, int] | None:
    return next(((point.host, point.port) for point in broker.endpoints if point.name == listener), None)
