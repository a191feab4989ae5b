"""What a broker is sent for a tool, and has after the tool: values and codecs of topics, committed offsets of groups."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.company.read import read_all
from compat_tests.harness.broker import Broker
from compat_tests.harness.committed import committed
from compat_tests.harness.confluent_admin import OffsetSpec

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_ATTRIBUTES = struct.Struct(
    ">8xi4xb4xh"
)  # the base offset, the length, the leader epoch, the magic, the CRC, the attributes
_LENGTH_ENDS = 12
_BY_KEY = -1


def send(broker: Broker, topic: str, records: Iterable[tuple[str, str]], partitions: int = 0) -> None:
    """Keys and values, acknowledged; in turn to so many partitions, or by their keys."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 3})
    for number, (key, value) in enumerate(records):
        producer.produce(topic, value, key=key, partition=number % partitions if partitions else _BY_KEY)
    assert producer.flush(30) == 0


def values(broker: Broker, topic: str, *, committed: bool = True) -> list[str]:
    """The values of a topic, partition by partition."""
    found = read_all(broker.bootstrap, topic, committed=committed)
    return [(value or b"").decode() for _, value in found]


def codecs(broker: Broker, topic: str) -> list[str]:
    """The codec of each batch in the first segment of partition 0, as it is on disk."""
    data = (broker.log_dir / f"{topic}-0" / f"{0:020}.log").read_bytes()
    found, position = [], 0
    while position + _ATTRIBUTES.size <= len(data):
        length, magic, attributes = _ATTRIBUTES.unpack_from(data, position)
        if not length:  # allocated beforehand
            break
        assert magic == 2
        found.append(_CODECS[attributes & 7])
        position += _LENGTH_ENDS + length
    return found


def ends(broker: Broker, topic: str) -> dict[int, int]:
    """The end offset of each partition."""
    admin = _admin(broker.bootstrap)
    partitions = admin.list_topics(topic, 30).topics[topic].partitions
    asked = {TopicPartition(topic, each): OffsetSpec.latest() for each in partitions}
    return {place.partition: result.result(30).offset for place, result in admin.list_offsets(asked).items()}


def offsets(broker: Broker, group: str, topic: str) -> dict[int, int]:
    """The committed offset of each partition of a topic."""
    admin = _admin(broker.bootstrap)
    return {each.partition: each.offset for each in committed(admin, group) if each.topic == topic}


def lag(broker: Broker, group: str, topic: str) -> int:
    """Records of a topic after the group's committed offsets; a partition without one counts whole."""
    positions = offsets(broker, group, topic)
    return sum(end - positions.get(partition, 0) for partition, end in ends(broker, topic).items())


@functools.lru_cache(maxsize=1)
def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})  # the broker ends before it
