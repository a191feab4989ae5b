"""Which carrier reads a stream into a topic: exactly once, or at least once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.nats.dead_letters import DeadLetterTopic
from barnabas.nats.jetstream.at_least_once import AtLeastOnce
from barnabas.nats.jetstream.checkpoint import Checkpoints
from barnabas.nats.jetstream.exactly_once import ExactlyOnce
from barnabas.nats.remote_producer import RemoteProducer

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.cluster.positions import Positions
    from barnabas.nats.jetstream.consumer import Source, StreamConsumer
    from barnabas.nats.jetstream.exactly_once import MadeAnew
    from barnabas.nats.jetstream.intake import ValueOf
    from barnabas.nats.records.keys import KeyFunction

AT_LEAST_ONCE: Final = "at-least-once"


def make_stream_consumer(
    host: ExtensionHost,
    source: Source,
    positions: Positions,
    binding: Binding,
    *,
    key_of: KeyFunction | None = None,
    value_of: ValueOf | None = None,
    made_anew: MadeAnew | None = None,
) -> StreamConsumer:
    """The carrier of a binding with nats.mode=jetstream, not started yet. The last three: see `ExactlyOnce`."""
    topic, runtime = binding.topic, host.runtime
    controller = host.controller
    topic_id = controller.image.topics[topic].topic_id

    def partitions_of(name: str) -> int:
        known = controller.image.topics.get(name)
        return len(known.partitions) if known is not None else 0

    dead_letters = None
    if binding.dead_letter_topic:
        dead_letters = DeadLetterTopic(host, binding.dead_letter_topic)
    if binding.delivery == AT_LEAST_ONCE:
        return AtLeastOnce(
            runtime,
            source,
            binding,
            partition_count=lambda: max(1, partitions_of(topic)),
            cluster_id=host.cluster_id,
            producer=RemoteProducer(host),
            dead_letters=dead_letters,
        )
    return ExactlyOnce(
        runtime,
        source,
        binding,
        partition_count=lambda: max(1, partitions_of(topic)),
        cluster_id=host.cluster_id,
        checkpoints=Checkpoints(runtime, positions, topic, topic_id),
        key_of=key_of,
        value_of=value_of,
        dead_letters=dead_letters,
        made_anew=made_anew,
    )
