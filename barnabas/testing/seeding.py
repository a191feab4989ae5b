"""Records for a topic from what a test has at hand: values, (key, value) pairs, mappings, or a file of JSON lines.

A record without a partition goes where Kafka's default partitioner would have it: by the murmur2 hash of its key, or in turn
where it has none. The records of a partition share batches, up to BATCH_RECORDS and about BATCH_BYTES.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from barnabas.testing.contents import leader_of, partition_indexes
from barnabas.wire.records import Record, build_batch

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.testing.broker_node import BrokerNode

BATCH_RECORDS = 500
BATCH_BYTES = 256 * 1024  # a topic takes batches of 1 MB by default
_FIELDS = frozenset({"key", "value", "headers", "timestamp", "partition"})


class Seed(msgspec.Struct):
    """A record to be: `timestamp` in ms since the epoch, None for now; `partition` None for where its key belongs."""

    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] = []
    timestamp: int | None = None
    partition: int | None = None


def read_seeds(source: object) -> list[Seed]:
    """From an iterable of records, or from the path of a file of JSON lines: each line a record, either an object with
    `value` and perhaps `key`, `headers`, `timestamp`, `partition`, or any other JSON, which is the value as it stands.
    ValueError names the line."""
    if isinstance(source, (str, os.PathLike)):
        return list(_lines(source))
    if isinstance(source, Iterable) and not isinstance(source, (bytes, Mapping)):
        return [seed_of(each) for each in source]
    raise TypeError(
        f"records are an iterable or the path of a file of JSON lines, not {type(source).__name__}"
    )


def _lines(path: str | os.PathLike[str]) -> Iterator[Seed]:
    import json

    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            text = line.strip()
            if not text:
                continue
            try:
                parsed = json.loads(text)
            except ValueError as error:
                raise ValueError(f"{os.fspath(path)}, line {number}: it is no JSON: {error}") from None
            yield seed_of(parsed) if _is_record(parsed) else Seed(text)


def _is_record(parsed: object) -> bool:
    return isinstance(parsed, dict) and "value" in parsed and _FIELDS.issuperset(parsed)


def seed_of(given: object) -> Seed:
    """A value (bytes, str; None is a tombstone), a pair of key and value, or a mapping with `value`, `key`, `headers` (pairs or
    a mapping), `timestamp`, `partition`. What is no text and no bytes is written as JSON."""
    if isinstance(given, Seed):
        return given
    if isinstance(given, tuple):
        if len(given) != 2:
            raise ValueError(f"a pair of key and value, not {len(given)} things: {given!r}")
        return Seed(_bytes(given[1]), _bytes(given[0]))
    if isinstance(given, Mapping) and "value" in given and _FIELDS.issuperset(given):
        return Seed(
            _bytes(given["value"]),
            _bytes(given.get("key")),
            _headers(given.get("headers") or ()),
            given.get("timestamp"),
            given.get("partition"),
        )
    return Seed(_bytes(given))


def single(value: object, key: object, fields: Mapping[str, object]) -> Seed:
    """One record, whose other fields have names. TypeError for one that there is not."""
    unknown = sorted(fields.keys() - _FIELDS)
    if unknown:
        raise TypeError(f"a record has no {unknown[0]!r}; it has {', '.join(sorted(_FIELDS))}")
    return seed_of({"value": value, "key": key, **fields})


def _headers(given: Any) -> list[tuple[str, bytes | None]]:
    pairs = given.items() if isinstance(given, Mapping) else given
    return [(str(name), _bytes(value)) for name, value in pairs]


def _bytes(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def append(nodes: Sequence[BrokerNode], topic: str, seeds: Sequence[Seed]) -> list[tuple[Partition, int]]:
    """Append them at the leaders, on the loop. Partitions that took some, with the offset behind the last one."""
    count = len(partition_indexes(nodes, topic))
    leaders = {index: leader_of(nodes, topic, index) for index in range(count)}
    by_partition: dict[int, list[Seed]] = {}
    for seed, index in zip(seeds, choose_partitions(topic, count, seeds), strict=True):
        by_partition.setdefault(index, []).append(seed)
    now = nodes[0].runtime.time_ms()
    ends = []
    for index, mine in sorted(by_partition.items()):
        partition = leaders[index]
        for batch in _batches(mine):
            result = partition.append(_batch(batch, now))
        ends.append((partition, result.last_offset + 1))
    return ends


def _batches(seeds: Sequence[Seed]) -> Iterator[list[Seed]]:
    batch: list[Seed] = []
    size = 0
    for seed in seeds:
        if batch and (len(batch) == BATCH_RECORDS or size >= BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(seed)
        size += len(seed.value or b"") + len(seed.key or b"")
    yield batch


def _batch(seeds: Sequence[Seed], now: int) -> bytes:
    return build_batch(
        Record(
            number, seed.timestamp if seed.timestamp is not None else now, seed.key, seed.value, seed.headers
        )
        for number, seed in enumerate(seeds)
    )


def choose_partitions(topic: str, count: int, seeds: Sequence[Seed]) -> Iterator[int]:
    """The partition of each. ValueError for one that the topic does not have."""
    turn = 0
    for seed in seeds:
        if seed.partition is not None:
            if not 0 <= seed.partition < count:
                raise ValueError(f"{topic} has {count} partitions, and no partition {seed.partition}")
            yield seed.partition
        elif seed.key is not None:
            yield partition_for_key(seed.key, count)
        else:
            yield turn % count
            turn += 1


def partition_for_key(key: bytes, partition_count: int) -> int:
    """As Kafka's producers choose: the positive part of murmur2, modulo."""
    return (_murmur2(key) & 0x7FFFFFFF) % partition_count


def _murmur2(data: bytes) -> int:
    """Austin Appleby's MurmurHash2 with Kafka's seed, 32 bits."""
    factor, mask = 0x5BD1E995, 0xFFFFFFFF
    value = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for position in range(0, whole, 4):
        block = int.from_bytes(data[position : position + 4], "little") * factor & mask
        block = (block ^ block >> 24) * factor & mask
        value = (value * factor & mask) ^ block
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * factor & mask
    value = (value ^ value >> 13) * factor & mask
    return value ^ value >> 15
