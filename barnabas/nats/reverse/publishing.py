"""What the publisher of one partition (reverse/partition.py) asks of its binding (reverse/carrier.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.reverse.partition import PartitionPublisher
    from barnabas.runtime.interface import Runtime


class Publishing(Protocol):
    """The binding, as one of its partitions sees it."""

    runtime: Runtime
    client: NatsClient
    stats: CarrierStats
    inbox: bytes  # where PubAcks come, with the last dot; b"" in core NATS
    messages_max: int  # of one partition under way
    bytes_max: int

    def ask_position(self, publisher: PartitionPublisher) -> None:
        """Have `moved_to` called with where the group stands now."""
        ...

    def has_confirmed(self, publisher: PartitionPublisher) -> None:
        """Its position has moved."""
        ...

    def how_to_move(self, partition: Partition, offset: int) -> str:
        """What to type to move the group's position there."""
        ...
