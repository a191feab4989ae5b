"""Warnings about messages that a server accepts and a topic refuses: max_payload is larger than max.message.bytes allows.

This is so by default: NATS accepts payloads of 1,048,576 bytes, a topic batches of 1,048,588 bytes, which have to hold the
batch's header, the key and the headers as well.
"""

from __future__ import annotations

import logging
from operator import is_
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.nats.binding.binding import CORE
from barnabas.nats.jetstream.appender import RECORD_OVERHEAD_BYTES, batch_bytes_max
from barnabas.nats.records.parts import (
    SEQUENCE_HEADER,
    STREAM_HEADER,
    SUBJECT_HEADER,
    TIMESTAMP_HEADER,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.connections import NatsConnections

log = logging.getLogger("barnabas.nats")

TOPICS_SHOWN: Final = 5
_LENGTHS: Final = 8  # varints of a key, a value, the number of headers
_NUMBER_DIGITS: Final = 20
_HEADER_LENGTHS: Final = 4


class _Logged(NamedTuple):
    warning: str
    sizes: tuple[Binding, object, int]  # that it followed from


def overhead_of(binding: Binding) -> int:
    """The size of a batch of one message beside its payload and own headers, with a subject as long as the longest pattern."""
    subject = max((len(pattern) for pattern in binding.patterns), default=0)
    headers = [len(SUBJECT_HEADER) + subject]
    if binding.mode != CORE:
        headers += [
            len(STREAM_HEADER) + len(binding.stream or binding.bucket),
            len(SEQUENCE_HEADER) + _NUMBER_DIGITS,
            len(TIMESTAMP_HEADER) + _NUMBER_DIGITS,
        ]
    return RECORD_OVERHEAD_BYTES + _LENGTHS + subject + sum(headers) + _HEADER_LENGTHS * len(headers)


class SizeWarnings:
    """Warnings about the bindings of a broker, as far as it knows the sizes: it has a connection, and leads a partition."""

    def __init__(self, connections: NatsConnections) -> None:
        self._connections = connections
        self._logged: dict[str, _Logged] = {}  # by topic

    def of(self, binding: Binding, leading: Mapping[int, Partition]) -> str:
        """The warning about one binding, or ""."""
        max_payload = self._connections.max_payload(binding.connection)
        partition = next(iter(leading.values()), None)
        return size_warning(binding, partition, max_payload) if max_payload and partition is not None else ""

    def log(self, topics: Iterable[tuple[Binding, Mapping[int, Partition]]]) -> None:
        """Logs those that are new since the last call, one line for all topics that are alike."""
        payloads: dict[str, int] = {}  # by connection
        before, self._logged = self._logged, {}
        alike: dict[str, list[str]] = {}
        for binding, leading in topics:
            known = before.get(binding.topic)
            if known is not None:
                self._logged[binding.topic] = known
            if binding.connection not in payloads:
                payloads[binding.connection] = self._connections.max_payload(binding.connection)
            max_payload = payloads[binding.connection]
            partition = next(iter(leading.values()), None)
            if partition is None or not max_payload:
                continue
            sizes = binding, partition.log.config, max_payload
            if known is not None and all(map(is_, known.sizes, sizes)):
                continue  # as nearly always
            warning = size_warning(binding, partition, max_payload)
            self._logged[binding.topic] = _Logged(warning, sizes)
            if warning and (known is None or warning != known.warning):
                alike.setdefault(warning, []).append(binding.topic)
        for warning, names in alike.items():
            shown = ", ".join(sorted(names)[:TOPICS_SHOWN])
            more = f" and {len(names) - TOPICS_SHOWN} more" if len(names) > TOPICS_SHOWN else ""
            log.warning("topic %s%s: %s", shown, more, warning)


def size_warning(binding: Binding, partition: Partition, max_payload: int) -> str:
    """Which messages of the server the topic refuses, and what to do; "" when there are none."""
    taken, overhead = batch_bytes_max(partition), overhead_of(binding)
    if not binding.ingests or taken - overhead >= max_payload:
        return ""
    return (
        f"messages of more than about {taken - overhead} bytes are refused, and the server takes {max_payload} (max_payload):"
        f" raise max.message.bytes of the topic to {max_payload + overhead} or more, or lower max_payload"
    )
