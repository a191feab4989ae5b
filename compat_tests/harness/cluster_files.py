"""Compares the replicas of a partition byte by byte, in the nodes' files.

Below the high watermark replicas have the same batches at the same offsets. Segment boundaries and the log start may
differ.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from compat_tests.harness.cluster import Cluster

_HEADER = 12  # base offset and the length of what follows


def batches(partition: Path) -> Iterator[tuple[int, bytes]]:
    """(base offset, batch) of every segment, in order; an incomplete last batch is left out."""
    for log in sorted(partition.glob("*.log")):
        content, position = log.read_bytes(), 0
        while position + _HEADER <= len(content):
            offset, length = struct.unpack_from(">qi", content, position)
            end = position + _HEADER + length
            if length <= 0 or end > len(content):
                break
            yield offset, content[position:end]
            position = end


def high_watermarks(bootstrap: str, topic: str) -> dict[int, int]:
    """High watermark by partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "log_level": 0})
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        return {
            one: consumer.get_watermark_offsets(TopicPartition(topic, one), timeout=30)[1]
            for one in partitions
        }
    finally:
        consumer.close()


def compare_replicas(cluster: Cluster, topic: str) -> int:
    """Assert that all replicas agree below the high watermark; return the number of compared batches.

    Every replica must be in sync (Cluster.wait_until_whole), and no client may write.
    """
    compared = 0
    states = cluster.metadata().partitions
    for partition, end in high_watermarks(cluster.bootstrap, topic).items():
        held: dict[int, dict[int, bytes]] = {}
        for node in states[topic, partition].replicas:
            folder = cluster.nodes[node].log_dir / f"{topic}-{partition}"
            held[node] = {offset: data for offset, data in batches(folder) if offset < end}
        start = max(min(one, default=end) for one in held.values())
        first, *others = held
        wanted = {offset: data for offset, data in held[first].items() if offset >= start}
        for other in others:
            found = {offset: data for offset, data in held[other].items() if offset >= start}
            assert list(found) == list(wanted), (
                f"{topic}-{partition}: nodes {first} and {other} hold different batches below {end}: "
                f"{sorted(set(found) ^ set(wanted))[:5]}"
            )
            for offset, data in found.items():
                assert data == wanted[offset], f"{topic}-{partition}: {first} and {other} differ at {offset}"
        compared += len(wanted)
    return compared
