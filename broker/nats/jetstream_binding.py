"""Which carrier reads a stream into a topic: exactly once, or at least once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.broker.nats.jetstream_checkpoint import Checkpoints
from barnabas.broker.nats.jetstream_exact import ExactlyOnce

if TYPE_CHECKING:
    from barnabas.broker.nats.connections import Intake as Source
    from barnabas.broker.nats.jetstream_carrier import StreamCarrier
    from barnabas.broker.nats.jetstream_intake import ValueOf
    from barnabas.broker.nats.keys import KeyFunction
    from barnabas.broker.nats.positions import Positions
    from barnabas.broker.services import Services
    from barnabas.controller.nats.bound import Binding

AT_LEAST_ONCE: Final = "at-least-once"


def make_stream_carrier(
    services: Services,
    source: Source,
    positions: Positions,
    binding: Binding,
    *,
    key_of: KeyFunction | None = None,
    value_of: ValueOf | None = None,
) -> StreamCarrier:
    """The carrier of a binding with nats.mode=jetstream, not started yet. `key_of` and `value_of`: see `ExactlyOnce`."""
    topic, runtime = binding.topic, services.runtime
    topics = services.controller
    topic_id = topics.image.topics[topic].topic_id

    def partition_count() -> int:
        known = topics.image.topics.get(topic)
        return len(known.partitions) if known is not None else 1

    return ExactlyOnce(
        runtime,
        source,
        binding,
        partition_count=partition_count,
        cluster_id=services.cluster_id,
        checkpoints=Checkpoints(runtime, positions, topic, topic_id),
        key_of=key_of,
        value_of=value_of,
    )
