"""Which carriers a binding needs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from barnabas.nats.binding.binding import CORE, JETSTREAM, KV
from barnabas.nats.carrier import CarrierStats
from barnabas.nats.client.errors import NatsError
from barnabas.nats.ingress.core_binding import CoreBinding
from barnabas.nats.jetstream.binding import make_stream_consumer
from barnabas.nats.kv.bucket import bucket_key, stream_of, subject_prefix, value_of
from barnabas.nats.kv.made_anew import bury_old_keys
from barnabas.nats.reverse.carrier import ReverseBinding

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import Carrier
    from barnabas.nats.cluster.positions import Positions
    from barnabas.nats.connections import NatsConnections
    from barnabas.nats.ingress.gap_tracker import GapLog
    from barnabas.nats.jetstream.api import JetStreamApi
    from barnabas.nats.jetstream.origin import Stream
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.nats")


class _MadeAnew:
    """What becomes of a partition when the binding's bucket was made anew. `outlet` publishes to the bucket, if anything does."""

    def __init__(self, runtime: Runtime, bucket: str, outlet: ReverseBinding | None) -> None:
        self._runtime = runtime
        self._bucket = bucket
        self._outlet = outlet

    async def __call__(self, api: JetStreamApi, stream: Stream, partition: Partition) -> None:
        await bury_old_keys(
            self._runtime,
            api,
            partition,
            subject_prefix(self._bucket),
            stream.info.config.name,
            stream.created_ns,
            self._published_to(partition.partition),
        )

    def _published_to(self, index: int) -> int:
        if self._outlet is None:
            return 0
        publisher = self._outlet.publishers.get(index)
        if publisher is None or not publisher.has_position:
            raise NatsError(
                f"the bucket {self._bucket} was made anew, and what was published before is not known yet"
            )
        return publisher.confirmed


class Blocked:
    """The Carrier of a binding that can't be carried out here."""

    def __init__(self, topic: str, why: str) -> None:
        self._topic = topic
        self.stats = CarrierStats()
        self.state = f"blocked: {why}"

    def start(self, leading: Mapping[int, Partition]) -> None:  # noqa: ARG002 - a Carrier's
        log.warning("topic %s: %s", self._topic, self.state)

    def roles_changed(self, leading: Mapping[int, Partition]) -> None:
        pass

    def stop(self) -> None:
        pass


def make_core(
    host: ExtensionHost, connections: NatsConnections, binding: Binding, stats: CarrierStats, gaps: GapLog
) -> CoreBinding | None:
    """What takes the messages of a core binding; None where there is none, or no such connection. Counters and gaps are
    those of the binding, whatever took its messages before."""
    intake = connections.intake(binding.connection) if binding.ingests and binding.mode == CORE else None
    if intake is None:
        return None
    partition_count = len(host.controller.image.topics[binding.topic].partitions)
    return CoreBinding(host, intake, binding, partition_count, stats, gaps)


def make_carriers(
    host: ExtensionHost, connections: NatsConnections, positions: Positions, binding: Binding
) -> list[Carrier]:
    """What else there is to do, not started yet."""
    if binding.connection not in connections.names():
        name = f"nats.connection.{binding.connection}.servers" if binding.connection else "nats.servers"
        return [
            Blocked(
                binding.topic, f"this broker has no such connection; start it with {name}=nats://HOST:4222"
            )
        ]
    carriers: list[Carrier] = []
    reverse = None
    if binding.publishes:
        outlet = connections.outlet(binding.connection)
        assert outlet is not None
        reverse = ReverseBinding(binding, host, outlet, positions)
    if binding.ingests and binding.mode == JETSTREAM:
        source = connections.streams(binding.connection)
        assert source is not None
        carriers.append(make_stream_consumer(host, source, positions, binding))
    if binding.ingests and binding.mode == KV:
        source = connections.streams(binding.connection)
        assert source is not None
        bucket = msgspec.structs.replace(binding, stream=stream_of(binding.bucket), delivery="exactly-once")
        carriers.append(
            make_stream_consumer(
                host,
                source,
                positions,
                bucket,
                key_of=bucket_key(),
                value_of=value_of,
                made_anew=_MadeAnew(host.runtime, binding.bucket, reverse),
            )
        )
    if reverse is not None:
        carriers.append(reverse)
    return carriers
