"""Messages that a server takes and a topic does not: its max_payload against max.message.bytes.

The defaults of both sides overlap: NATS takes payloads of 1,048,576 bytes, a topic batches of 1,048,588 bytes, in which the
batch's header, the key and the headers have to have room as well.
"""

from __future__ import annotations

import logging
from operator import is_
from typing import TYPE_CHECKING, Final

from barnabas.nats.binding.binding import CORE
from barnabas.nats.jetstream.intake import RECORD_OVERHEAD_BYTES, batch_bytes_max
from barnabas.nats.records.parts import (
    SEQUENCE_HEADER,
    STREAM_HEADER,
    SUBJECT_HEADER,
    TIMESTAMP_HEADER,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.bound_topic import BoundTopic
    from barnabas.nats.connections import NatsConnections

log = logging.getLogger("barnabas.nats")

TOPICS_SHOWN: Final = 5
_LENGTHS: Final = 8  # varints of a key, a value, the number of headers
_NUMBER_DIGITS: Final = 20
_HEADER_LENGTHS: Final = 4


def overhead_of(binding: Binding) -> int:
    """What a batch of one message takes beside its payload and its own headers, for a subject as long as the patterns are."""
    subject = max((len(pattern) for pattern in binding.patterns), default=0)
    headers = [len(SUBJECT_HEADER) + subject]
    if binding.mode != CORE:
        headers += [
            len(STREAM_HEADER) + len(binding.stream or binding.bucket),
            len(SEQUENCE_HEADER) + _NUMBER_DIGITS,
            len(TIMESTAMP_HEADER) + _NUMBER_DIGITS,
        ]
    return RECORD_OVERHEAD_BYTES + _LENGTHS + subject + sum(headers) + _HEADER_LENGTHS * len(headers)


def size_warning_of(bound: BoundTopic, connections: NatsConnections) -> str:
    """What is to be done, as far as it is known here: there is a connection, and a partition that is led."""
    max_payload = connections.max_payload(bound.binding.connection)
    partition = next(iter(bound.leading.values()), None)
    return (
        size_warning(bound.binding, partition, max_payload) if max_payload and partition is not None else ""
    )


def log_size_warnings(topics: Mapping[str, BoundTopic], connections: NatsConnections) -> None:
    """Those that are new since the last call, a line for all topics that are alike."""
    alike: dict[str, list[str]] = {}
    payloads = {name: connections.max_payload(name) for name in connections.names()}
    for name, bound in topics.items():
        partition = next(iter(bound.leading.values()), None)
        max_payload = payloads.get(bound.binding.connection, 0)
        if partition is None or not max_payload:
            continue
        seen = bound.binding, partition.log.config, max_payload
        if bound.sizes_seen is not None and all(map(is_, bound.sizes_seen, seen)):
            continue  # as nearly always
        bound.sizes_seen = seen
        warning = size_warning(bound.binding, partition, max_payload)
        if warning and warning != bound.size_warning:
            alike.setdefault(warning, []).append(name)
        bound.size_warning = warning
    for warning, names in alike.items():
        shown = ", ".join(sorted(names)[:TOPICS_SHOWN])
        more = f" and {len(names) - TOPICS_SHOWN} more" if len(names) > TOPICS_SHOWN else ""
        log.warning("topic %s%s: %s", shown, more, warning)


def size_warning(binding: Binding, partition: Partition, max_payload: int) -> str:
    """What is to be done where the server takes messages that become no records; "" where it takes none."""
    taken, overhead = batch_bytes_max(partition), overhead_of(binding)
    if not binding.ingests or taken - overhead >= max_payload:
        return ""
    return (
        f"messages of more than about {taken - overhead} bytes are refused, and the server takes {max_payload} (max_payload):"
        f" raise max.message.bytes of the topic to {max_payload + overhead} or more, or lower max_payload"
    )
