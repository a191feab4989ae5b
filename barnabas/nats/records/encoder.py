"""Encodes messages as tails of records (records/parts.py), the core of the ingress path.

`Encoder.take` is a sink of the protocol's parser. A plain message costs one look-up of its subject and one join. Other
messages:

- One whose partition is not served here, or whose subject is not bound, is dropped without being encoded.
- One with a special header, or a reply subject where those are special, goes encoded to `special`, which decides.
- One that names a partition that does not exist goes to `refused`.

The functions are closures, because access to their variables is fastest. Nothing here waits or reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias

from barnabas.nats.client.headers import Pairs
from barnabas.nats.records.keys import PAYLOAD, KeyFunction
from barnabas.nats.records.partitioners import (
    PARTITION_HEADER,
    BadPartition,
    Partitioner,
    requested_partition,
)
from barnabas.nats.records.parts import (
    NOTHING_SPECIAL,
    NULL_PART,
    REPLY_HEADER,
    VARINT_COUNT,
    VARINTS,
    AddHeaders,
    IsSpecial,
    make_header_adder,
    sized,
)
from barnabas.nats.records.routes import FROM_MESSAGE, NOWHERE, KeyRoutes, Route, Routes, Take, Wanted
from barnabas.wire.primitives import varint

Sink: TypeAlias = Callable[[bytes, bytes, bytes, bytes], object]
# (partition, reply, header block, special headers, tail), for partitions served here
Special: TypeAlias = Callable[[int, bytes, bytes, Pairs, bytes], object]
# (subject, reply, header block, payload, error), for messages that would otherwise be served here
Refused: TypeAlias = Callable[[bytes, bytes, bytes, bytes, BadPartition], object]
# (partition, special headers other than Kafka-Partition, tail)
Encoded: TypeAlias = "tuple[int, Pairs | None, bytes]"


# (partition, key's part, subject's part, reply, header block, payload or None for null, parts of further headers)
EncodeParts: TypeAlias = Callable[
    [int, bytes, bytes, bytes, bytes, "bytes | None", tuple[bytes, ...]], Encoded
]
# (route, subject, reply, header block, payload) -> partition and key's part, for keys that are not made of the subject
Locate: TypeAlias = Callable[[Route, bytes, bytes, bytes, bytes], "tuple[int, bytes]"]


class EncodeMessage(Protocol):
    """The type of `Encoder.encode`."""

    def __call__(
        self,
        subject: bytes,
        reply: bytes,
        header_block: bytes,
        payload: bytes | None,
        extra: tuple[bytes, ...] = (),
    ) -> Encoded | None: ...


# A record's parts begin with the key, the value's size, the value, the number of headers and the first header, one part
# each; all other headers are three parts.
_COUNT_PLACE: Final = 3
_PARTS_BESIDE: Final = 2  # parts that are not of headers, modulo three


class Encoder:
    """Encodes the messages of one subscription.

    `takes` has the receiver of the tails of each partition that is served here. `wanted` is called once a subject,
    `is_special` once a header name. `reply_is_special` makes every message with a reply special.

    `take(subject, reply, header_block, payload)` is the sink.

    `encode(subject, reply, header_block, payload, extra=())` returns the encoded message, whether its partition is served
    here or not; None for a subject that is not wanted. Payload None is Kafka's null. `extra` are parts of headers to add
    behind nats.reply (see `header_parts`). Raises BadPartition.
    """

    __slots__ = ("encode", "routes", "take")

    def __init__(
        self,
        key_of: KeyFunction,
        partition_of: Partitioner,
        partition_count: int,
        takes: Mapping[int, Take],
        *,
        special: Special,
        refused: Refused,
        wanted: Wanted | None = None,
        is_special: IsSpecial = NOTHING_SPECIAL,
        reply_is_special: bool = False,
    ) -> None:
        self.routes = Routes(key_of, partition_of, takes, wanted)
        locate = _make_locate(key_of, partition_of)
        add_headers = make_header_adder(lambda name: name == PARTITION_HEADER or is_special(name))
        encode = _make_encode(partition_count, add_headers)
        self.take: Sink = _make_take(
            self.routes, locate, add_headers, partition_count, special, refused, reply_is_special
        )
        self.encode: EncodeMessage = _make_encode_message(self.routes, locate, encode)

    def serve(self, takes: Mapping[int, Take]) -> None:
        """Serves these partitions from now on, and no others."""
        self.routes.serve(takes)


def _make_locate(key_of: KeyFunction, partition_of: Partitioner) -> Locate:
    part = key_of.part
    is_of_payload = part == PAYLOAD
    of_part = key_of.of_part
    follows_key = partition_of.follows_key
    by_key: Mapping[bytes, tuple[int, bytes]] = KeyRoutes(partition_of) if follows_key else {}

    def locate(
        route: Route, subject: bytes, reply: bytes, header_block: bytes, payload: bytes
    ) -> tuple[int, bytes]:
        key = of_part(payload if is_of_payload else (subject, reply, header_block, payload)[part])
        if key is None:
            return route.null_partition, NULL_PART
        if follows_key:
            return by_key[key]
        return partition_of(subject, key), sized(key)

    return locate


def _make_encode(partition_count: int, add_headers: AddHeaders) -> EncodeParts:
    reply_name = sized(REPLY_HEADER)

    def encode(
        partition: int,
        key_part: bytes,
        subject_part: bytes,
        reply: bytes,
        header_block: bytes,
        payload: bytes | None,
        extra: tuple[bytes, ...],
    ) -> Encoded:
        if payload is None:
            parts = [key_part, NULL_PART, b"", b"", subject_part]
        else:
            size = len(payload)
            value_size = VARINTS[size] if size < VARINT_COUNT else varint(size)
            parts = [key_part, value_size, payload, b"", subject_part]
        if reply:
            parts += reply_name, varint(len(reply)), reply
        if extra:
            parts += extra
        found = add_headers(header_block, parts) if header_block else None
        count = (len(parts) - _PARTS_BESIDE) // 3
        parts[_COUNT_PLACE] = VARINTS[count] if count < VARINT_COUNT else varint(count)
        if found is None:
            return partition, None, b"".join(parts)
        return _as_requested(partition, found, b"".join(parts), partition_count)

    return encode


def _as_requested(partition: int, found: Pairs, tail: bytes, partition_count: int) -> Encoded:
    """The encoded message, in the partition that the first Kafka-Partition header names, if there is one."""
    for pair in found:
        if pair[0] == PARTITION_HEADER:
            try:
                requested = requested_partition(pair[1], partition_count)
            except BadPartition as error:
                error.partition = partition
                raise
            return requested, [pair for pair in found if pair[0] != PARTITION_HEADER] or None, tail
    return partition, found, tail


def _make_encode_message(routes: Routes, locate: Locate, encode: EncodeParts) -> EncodeMessage:
    route_of = routes.by_subject.get
    learn = routes.learn
    join = b"".join

    def encode_message(
        subject: bytes,
        reply: bytes,
        header_block: bytes,
        payload: bytes | None,
        extra: tuple[bytes, ...] = (),
    ) -> Encoded | None:
        route = route_of(subject) or learn(subject)
        partition = route.partition
        key_part = route.key_part
        if partition < 0:
            if partition == NOWHERE:
                return None
            partition, key_part = locate(route, subject, reply, header_block, payload or b"")
        if header_block or reply or payload is None:
            return encode(partition, key_part, route.subject_part, reply, header_block, payload, extra)
        size = len(payload)
        value_size = VARINTS[size] if size < VARINT_COUNT else varint(size)
        count = VARINTS[1 + len(extra) // 3]
        return partition, None, join((key_part, value_size, payload, count, route.subject_part, *extra))

    return encode_message


def _make_take(
    routes: Routes,
    locate: Locate,
    add_headers: AddHeaders,
    partition_count: int,
    special: Special,
    refused: Refused,
    reply_is_special: bool,
) -> Sink:
    by_subject = routes.by_subject
    learn = routes.learn
    takes = routes.takes
    taker_of = takes.get
    join = b"".join
    reply_name = sized(REPLY_HEADER)

    # With headers or a reply it does the same as `encode`, without the calls.
    def take(subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
        try:
            route = by_subject[subject]
        except KeyError:
            route = learn(subject)
        take_tail = route.take
        partition = route.partition
        key_part = route.key_part
        if partition == FROM_MESSAGE:
            partition, key_part = locate(route, subject, reply, header_block, payload)
            take_tail = taker_of(partition)
        size = len(payload)
        value_size = VARINTS[size] if size < VARINT_COUNT else varint(size)
        if take_tail is None:  # not served here, unless a header names another partition
            if partition == NOWHERE or PARTITION_HEADER not in header_block:
                return
        elif not (header_block or reply):
            take_tail(join((key_part, value_size, payload, route.header_part)))
            return
        parts = [key_part, value_size, payload, b"", route.subject_part]
        if reply:
            parts += reply_name, varint(len(reply)), reply
        found = add_headers(header_block, parts) if header_block else None
        count = (len(parts) - _PARTS_BESIDE) // 3
        parts[_COUNT_PLACE] = VARINTS[count] if count < VARINT_COUNT else varint(count)
        tail = join(parts)
        if found is not None:
            try:
                partition, found, tail = _as_requested(partition, found, tail, partition_count)
            except BadPartition as error:
                if error.partition in takes:
                    refused(subject, reply, header_block, payload, error)
                return
            take_tail = taker_of(partition)
        if take_tail is not None:
            if found is not None or (reply and reply_is_special):
                special(partition, reply, header_block, found or [], tail)
            else:
                take_tail(tail)

    return take
