"""One node's view of the cluster: brokers, partitions with leader and ISR, the Raft leader.

Encodes Metadata v7 and DescribeQuorum v0 itself and sends them to the given node: a client library chooses the node,
and tests need the view of a particular one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from compat_tests.harness import raw
from compat_tests.harness.raw import RawConnection

_METADATA, _DESCRIBE_QUORUM = 3, 55


@dataclass(frozen=True)
class PartitionView:
    """One partition; `leader` is -1 when there is none."""

    error: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """Led, and every replica in sync."""
        return self.error == 0 and self.leader >= 0 and sorted(self.isr) == sorted(self.replicas)


@dataclass(frozen=True)
class MetadataView:
    """Metadata from one node: node id -> host:port, (topic, partition) -> its state."""

    brokers: dict[int, str]
    cluster_id: str
    partitions: dict[tuple[str, int], PartitionView]


@dataclass(frozen=True)
class QuorumView:
    """The metadata quorum from DescribeQuorum; voters and observers with their log end offsets."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: dict[int, int]
    observers: dict[int, int]


class _Reader:
    """Reads fields from the front of a response."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, form: str) -> int:
        (value,) = struct.unpack_from(">" + form, self.data, self.position)
        self.position += struct.calcsize(">" + form)
        return int(value)

    def string(self) -> str:
        size = self.take("h")
        self.position += max(size, 0)
        return self.data[self.position - max(size, 0) : self.position].decode()

    def ids(self) -> tuple[int, ...]:
        return tuple(self.take("i") for _ in range(self.take("i")))

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take("B")
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def compact_string(self) -> str:
        size = max(self.uvarint() - 1, 0)
        self.position += size
        return self.data[self.position - size : self.position].decode()

    def no_tags(self) -> None:
        assert self.uvarint() == 0, "tagged fields where none are known"


def metadata(address: str, timeout: float = 30) -> MetadataView:
    """All topics, as the node at host:port sees them; OSError or EOFError when it does not answer."""
    with RawConnection(address, timeout) as connection:
        answer = _Reader(connection.ask(raw.request(_METADATA, 7, struct.pack(">i?", -1, False))))
    answer.take("i")  # throttle time
    brokers = {}
    for _ in range(answer.take("i")):
        node = answer.take("i")
        host = answer.string()
        brokers[node] = f"{host}:{answer.take('i')}"
        answer.string()  # rack
    cluster_id = answer.string()
    answer.take("i")  # Kafka names any broker as the controller to clients
    partitions = {}
    for _ in range(answer.take("i")):
        answer.take("h")
        topic = answer.string()
        answer.take("?")
        for _ in range(answer.take("i")):
            error, number = answer.take("h"), answer.take("i")
            leader, epoch = answer.take("i"), answer.take("i")
            replicas, isr = answer.ids(), answer.ids()
            answer.ids()  # offline replicas
            partitions[topic, number] = PartitionView(error, leader, epoch, replicas, isr)
    return MetadataView(brokers, cluster_id, partitions)


def quorum(address: str, timeout: float = 5) -> QuorumView | None:
    """The metadata quorum; None while it has no leader or the node cannot answer."""
    topic = raw.varint(len("__cluster_metadata") + 1) + b"__cluster_metadata"
    body = b"\x02" + topic + b"\x02" + struct.pack(">i", 0) + b"\0\0\0"
    with RawConnection(address, timeout) as connection:
        answer = _Reader(connection.ask(raw.request(_DESCRIBE_QUORUM, 0, body, flexible=True)))
    answer.no_tags()
    if answer.take("h") != 0 or answer.uvarint() != 2:
        return None
    answer.compact_string()
    if answer.uvarint() != 2:
        return None
    answer.take("i")
    error = answer.take("h")
    leader_id, leader_epoch, high_watermark = answer.take("i"), answer.take("i"), answer.take("q")
    states: list[dict[int, int]] = []
    for _ in range(2):
        found = {}
        for _ in range(max(answer.uvarint() - 1, 0)):
            node = answer.take("i")
            found[node] = answer.take("q")
            answer.no_tags()
        states.append(found)
    if error or leader_id < 0:
        return None
    return QuorumView(leader_id, leader_epoch, high_watermark, *states)
