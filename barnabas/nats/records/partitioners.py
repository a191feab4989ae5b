"""The partition of a message: a pure function of the message, the same on every broker.

    murmur2   as Java's producers: murmur2 of the key, made positive, modulo partitions
    fnv1a     as `partition(n, ...)` in nats-server's subject mappings: FNV-1a 32 modulo partitions
    token:N   the decimal number in the subject's N-th token, modulo partitions; murmur2 if there is none

With a null key the subject is hashed instead, so each subject keeps its order. With `tokens:...` keys fnv1a hashes the tokens
without the dots between them, as nats-server does.

A header `Kafka-Partition` overrides all of these: see `requested_partition`.

Sources: org.apache.kafka.common.utils.Utils.murmur2 and toPositive; nats-server's documentation of subject mapping and
partitioning; the FNV page of its authors (offset basis and prime of 32 bits). Hashing takes microseconds in Python, so
records/routes.py keeps the results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Final, TypeAlias

from barnabas.nats.binding.keys import KeySpec, PartitionerSpec, parse_key, parse_partitioner

# (subject, key or None for null) -> partition
PartitionOf: TypeAlias = Callable[[bytes, bytes | None], int]
HashFunction: TypeAlias = Callable[[bytes], int]

PARTITION_HEADER: Final = b"Kafka-Partition"

_WORD: Final = 0xFFFFFFFF
_MURMUR_SEED: Final = 0x9747B28C
_MURMUR_FACTOR: Final = 0x5BD1E995
_FNV_BASIS: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193
_NUMBER_DIGITS_MAX: Final = 64


@lru_cache(maxsize=1024)
def _words(count: int) -> Struct:
    return Struct(f"<{count}I")


def murmur2(data: bytes) -> int:
    """Kafka's murmur2, unsigned."""
    factor = _MURMUR_FACTOR
    size = len(data)
    value = _MURMUR_SEED ^ size
    # Products are cut to 32 bits only before a shift to the right: higher bits do not change lower ones.
    for word in _words(size >> 2).unpack_from(data):
        mixed = word * factor & _WORD
        value = (value * factor ^ (mixed ^ mixed >> 24) * factor) & _WORD
    rest = size & 3
    if rest:
        value = (value ^ int.from_bytes(data[size - rest :], "little")) * factor & _WORD
    value = (value ^ value >> 13) * factor & _WORD
    return value ^ value >> 15


def positive_murmur2(data: bytes) -> int:
    """murmur2 without the sign bit, as in Kafka's default partitioner."""
    return murmur2(data) & 0x7FFFFFFF


def fnv1a(data: bytes) -> int:
    """FNV-1a with 32 bits."""
    value = _FNV_BASIS
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & _WORD
    return value


class Partitioner:
    """A function (subject, key or None for null) -> partition. `follows_key`: a key that is not null alone decides."""

    __slots__ = ("_partition_of", "follows_key")

    def __init__(self, partition_of: PartitionOf, follows_key: bool) -> None:
        self._partition_of = partition_of
        self.follows_key = follows_key

    def __call__(self, subject: bytes, key: bytes | None) -> int:
        return self._partition_of(subject, key)


def compile_partitioner(
    spec: PartitionerSpec | str, partition_count: int, key: KeySpec | str = "subject"
) -> Partitioner:
    """The function for a value of `nats.partitioner`, with this value of `nats.key`. ConfigError."""
    if isinstance(spec, str):
        spec = parse_partitioner(spec)
    if isinstance(key, str):
        key = parse_key(key)
    if spec.kind == "token":
        return Partitioner(_by_number(spec.token, partition_count), follows_key=False)
    if spec.kind == "murmur2":
        return Partitioner(_by_hash(positive_murmur2, positive_murmur2, partition_count), follows_key=True)
    of_key = _fnv1a_undotted if key.kind == "tokens" else fnv1a
    return Partitioner(_by_hash(of_key, fnv1a, partition_count), follows_key=True)


def _by_hash(of_key: HashFunction, of_subject: HashFunction, partition_count: int) -> PartitionOf:
    def partition_of(subject: bytes, key: bytes | None) -> int:
        return (of_subject(subject) if key is None else of_key(key)) % partition_count

    return partition_of


def _fnv1a_undotted(key: bytes) -> int:
    return fnv1a(key.replace(b".", b""))


def _by_number(token: int, partition_count: int) -> PartitionOf:
    by_hash = _by_hash(positive_murmur2, positive_murmur2, partition_count)

    def partition_of(subject: bytes, key: bytes | None) -> int:
        tokens = subject.split(b".", token)
        number = read_number(tokens[token - 1]) if len(tokens) >= token else None
        return by_hash(subject, key) if number is None else number % partition_count

    return partition_of


def read_number(text: bytes) -> int | None:
    """The value of at most 64 decimal digits (ASCII, no sign); None for anything else."""
    return int(text) if text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX else None


class BadPartition(ValueError):
    """A Kafka-Partition header that is malformed, or names a partition that the topic does not have. `partition` is the
    message's partition without the header."""

    partition: int = -1


def requested_partition(value: bytes, partition_count: int) -> int:
    """The partition that a `Kafka-Partition` header names: decimal digits, perhaps between blanks. Raises BadPartition."""
    number = read_number(value.strip(b" "))
    if number is None:
        raise BadPartition(f"Kafka-Partition is not a number: {value[:80]!r}")
    if number >= partition_count:
        raise BadPartition(f"Kafka-Partition is {number}, the topic has {partition_count} partitions")
    return number
