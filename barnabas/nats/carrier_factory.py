"""The carriers that a binding needs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from barnabas.nats.binding.binding import CORE, JETSTREAM, KV
from barnabas.nats.binding.checks import AT_LEAST_ONCE
from barnabas.nats.carrier import CarrierStats
from barnabas.nats.client.errors import NatsError
from barnabas.nats.dead_letters import DeadLetterTopic
from barnabas.nats.egress.topic_publisher import TopicPublisher
from barnabas.nats.ingress.core_binding import CoreBinding
from barnabas.nats.jetstream.appender import StreamAppender
from barnabas.nats.jetstream.at_least_once import AtLeastOnce
from barnabas.nats.jetstream.checkpoint import Checkpoints
from barnabas.nats.jetstream.durable import durable_name
from barnabas.nats.jetstream.exactly_once import ExactlyOnce
from barnabas.nats.kv.bucket import bucket_key, stream_of, subject_prefix, value_of
from barnabas.nats.kv.recreated_bucket import write_tombstones
from barnabas.nats.kv.synced import BucketMessages
from barnabas.nats.remote_producer import RemoteProducer

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import Carrier
    from barnabas.nats.cluster.positions import Positions
    from barnabas.nats.connections import NatsConnections
    from barnabas.nats.ingress.gap_tracker import GapLog
    from barnabas.nats.jetstream.api import JetStreamApi
    from barnabas.nats.jetstream.appender import ValueOf
    from barnabas.nats.jetstream.consumer import StreamConsumer
    from barnabas.nats.jetstream.exactly_once import OnRecreated
    from barnabas.nats.jetstream.stream import Stream
    from barnabas.nats.records.keys import KeyFunction
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.nats")


class _TombstoneWriter:
    """Writes the tombstones of a bucket that was deleted and created again. `outlet` publishes to the bucket, if anything
    does."""

    def __init__(self, runtime: Runtime, bucket: str, outlet: TopicPublisher | None) -> None:
        self._runtime = runtime
        self._bucket = bucket
        self._outlet = outlet

    async def __call__(self, api: JetStreamApi, stream: Stream, partition: Partition) -> None:
        await write_tombstones(
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
                f"the bucket {self._bucket} was created again, and what was published before is not known yet"
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


class CarrierFactory:
    """Makes the carriers that a binding needs, not started yet."""

    def __init__(self, host: ExtensionHost, connections: NatsConnections, positions: Positions) -> None:
        self._host = host
        self._connections = connections
        self._positions = positions  # of what is published

    def core(
        self,
        binding: Binding,
        partition_count: int,
        stats: CarrierStats,
        gaps: GapLog,
        missed: str,
        since_ms: int,
    ) -> CoreBinding | None:
        """The carrier of a core binding's messages; None where it takes none, or has no such connection. `stats` and `gaps`
        outlive it. `missed` and `since_ms` are those of CoreBinding."""
        if not binding.ingests or binding.mode != CORE or binding.connection not in self._connections:
            return None
        intake = self._connections.intake(binding.connection)
        return CoreBinding(self._host, intake, binding, partition_count, stats, gaps, missed, since_ms)

    def others(self, binding: Binding) -> list[Carrier]:
        """The carriers of a stream or bucket, and of records that are published."""
        host, connections, name = self._host, self._connections, binding.connection
        if name not in connections:
            servers = f"nats.connection.{name}.servers" if name else "nats.servers"
            why = f"this broker has no such connection; start it with {servers}=nats://HOST:4222"
            return [Blocked(binding.topic, why)]
        publisher = None
        if binding.publishes:
            client = connections.outlet(name)
            outgoing = BucketMessages(binding, host, client) if binding.mode == KV else None
            publisher = TopicPublisher(binding, host, client, self._positions, outgoing)
        carriers: list[Carrier] = []
        if binding.ingests and binding.mode == JETSTREAM:
            carriers.append(self._stream_consumer(binding))
        if binding.ingests and binding.mode == KV:
            bucket = msgspec.structs.replace(
                binding, stream=stream_of(binding.bucket), delivery="exactly-once"
            )
            on_recreated = _TombstoneWriter(host.runtime, binding.bucket, publisher)
            carriers.append(
                self._stream_consumer(
                    bucket, key_of=bucket_key(), value_of=value_of, on_recreated=on_recreated
                )
            )
        if publisher is not None:
            carriers.append(publisher)
        return carriers

    def _stream_consumer(
        self,
        binding: Binding,
        *,
        key_of: KeyFunction | None = None,
        value_of: ValueOf | None = None,
        on_recreated: OnRecreated | None = None,
    ) -> StreamConsumer:
        host, topic = self._host, binding.topic
        source = self._connections.streams(binding.connection)
        controller = host.controller
        topic_id = controller.image.topics[topic].topic_id

        def partition_count() -> int:
            known = controller.image.topics.get(topic)
            return max(1, len(known.partitions)) if known is not None else 1

        appender = StreamAppender(binding, host.cluster_id, partition_count, key_of=key_of, value_of=value_of)
        dead_letters = DeadLetterTopic(host, binding.dead_letter_topic) if binding.dead_letter_topic else None
        if binding.delivery == AT_LEAST_ONCE:
            return AtLeastOnce(
                host.runtime,
                source,
                binding,
                appender,
                durable=durable_name(binding, host.cluster_id),
                producer=RemoteProducer(host),
                dead_letters=dead_letters,
            )
        return ExactlyOnce(
            host.runtime,
            source,
            binding,
            appender,
            checkpoints=Checkpoints(host.runtime, self._positions, topic, topic_id),
            dead_letters=dead_letters,
            on_recreated=on_recreated,
        )
