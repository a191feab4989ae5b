"""From a message to the tail of its record, given to whoever collects those of its partition: the ingest path's core.

`Encoder.take` is a sink for the protocol's parser. What a plain message costs is one look-up of its subject and one join
(see routes.py, record_parts.py, batch_builder.py). Beside the plain way there are three:

- A message whose partition is not served here, or whose subject is not wanted, is dropped without being encoded.
- A message that asks for something (a special header, or a reply where those count) goes to `special`, encoded; that
  decides whether it is taken.
- A message that asks for a partition which does not exist goes to `refused`.

The functions are closures because their variables are then one instruction away; nothing here waits or reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias

from barnabas.broker.nats.headers import Pairs
from barnabas.broker.nats.keys import KeyFunction
from barnabas.broker.nats.partitioners import (
    PARTITION_HEADER,
    BadPartition,
    PartitionOf,
    requested_partition,
)
from barnabas.broker.nats.record_parts import (
    NOTHING_SPECIAL,
    NULL_PART,
    REPLY_HEADER,
    VARINT_COUNT,
    VARINTS,
    IsSpecial,
    make_header_adder,
    sized,
)
from barnabas.broker.nats.routes import FROM_MESSAGE, Route, Routes, Take, Wanted
from barnabas.wire.primitives import varint

Sink: TypeAlias = Callable[[bytes, bytes, bytes, bytes], object]
# (partition, subject, reply, special headers, tail, payload); called for partitions served here only
Special: TypeAlias = Callable[[int, bytes, bytes, Pairs, bytes, bytes], object]
# (subject, reply, header block, payload, what is wrong); called where the message would otherwise be served
Refused: TypeAlias = Callable[[bytes, bytes, bytes, bytes, BadPartition], object]
# (partition, special headers other than Kafka-Partition, tail)
Encoded: TypeAlias = "tuple[int, Pairs | None, bytes]"


class Encode(Protocol):
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
_PARTS_BESIDE: Final = 2  # so many parts do not divide by three


class Encoder:
    """Encodes the messages of one subscription.

    `takes` says who takes the tails of which partition; partitions that are not in it are not served here. `wanted` is
    asked once a subject, `is_special` once a header's name. `reply_is_special` makes every message with a reply special.

    `take(subject, reply, header_block, payload)` is the sink. `encode` takes the same (a payload None is Kafka's null) and
    parts of headers to add behind nats.reply (three a header, see `header_parts`), and returns what it made, wherever
    that partition is served; None for a subject that is not wanted. It raises BadPartition.
    """

    __slots__ = ("encode", "routes", "take")

    def __init__(
        self,
        key_of: KeyFunction,
        partition_of: PartitionOf,
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
        self.encode = _make_encode(self.routes, key_of, partition_of, partition_count, is_special)
        self.take = _make_take(self.routes, self.encode, special, refused, reply_is_special)

    def serve(self, takes: Mapping[int, Take]) -> None:
        """From now on these partitions are served here, and no others."""
        self.routes.serve(takes)


def _make_encode(
    routes: Routes,
    key_of: KeyFunction,
    partition_of: PartitionOf,
    partition_count: int,
    is_special: IsSpecial,
) -> Encode:
    find_route = routes.by_subject.get
    learn = routes.learn
    add_headers = make_header_adder(lambda name: name == PARTITION_HEADER or is_special(name))
    part = key_of.part
    of_part = key_of.of_part
    reply_name = sized(REPLY_HEADER)

    def encode(
        subject: bytes,
        reply: bytes,
        header_block: bytes,
        payload: bytes | None,
        extra: tuple[bytes, ...] = (),
    ) -> Encoded | None:
        route = find_route(subject) or learn(subject)
        partition = route.partition
        key_part = route.key_part
        if partition == FROM_MESSAGE:
            if not route.is_wanted:
                return None
            key = of_part((subject, reply, header_block, payload or b"")[part])
            partition = partition_of(subject, key)
            key_part = sized(key)
        if payload is None:
            parts = [key_part, NULL_PART, b"", b"", route.subject_part]
        else:
            size = len(payload)
            parts = [
                key_part,
                VARINTS[size] if size < VARINT_COUNT else varint(size),
                payload,
                b"",
                route.subject_part,
            ]
        if reply:
            size = len(reply)
            parts += reply_name, VARINTS[size] if size < VARINT_COUNT else varint(size), reply
        if extra:
            parts += extra
        found = add_headers(header_block, parts) if header_block else None
        count = (len(parts) - _PARTS_BESIDE) // 3
        parts[_COUNT_PLACE] = VARINTS[count] if count < VARINT_COUNT else varint(count)
        tail = b"".join(parts)
        if found is None:
            return partition, None, tail
        return _as_requested(partition, found, tail, partition_count)

    return encode


def _as_requested(partition: int, found: Pairs, tail: bytes, partition_count: int) -> Encoded:
    """What `encode` returns of a message with special headers: the first Kafka-Partition goes before its partition."""
    others = [pair for pair in found if pair[0] != PARTITION_HEADER]
    if len(others) < len(found):
        value = next(value for name, value in found if name == PARTITION_HEADER)
        try:
            partition = requested_partition(value, partition_count)
        except BadPartition as error:
            error.partition = partition
            raise
    return partition, others or None, tail


def _make_take(
    routes: Routes, encode: Encode, special: Special, refused: Refused, reply_is_special: bool
) -> Sink:
    by_subject = routes.by_subject
    learn = routes.learn
    takes = routes.takes

    def take(subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
        try:
            route = by_subject[subject]
        except KeyError:
            route = learn(subject)
        take_tail = route.take
        if header_block or reply or take_tail is None:
            if take_tail is not None or may_be_served(route, header_block):
                take_other(subject, reply, header_block, payload)
            return
        size = len(payload)
        take_tail(
            b"".join(
                (
                    route.key_part,
                    VARINTS[size] if size < VARINT_COUNT else varint(size),
                    payload,
                    route.header_part,
                )
            )
        )

    def may_be_served(route: Route, header_block: bytes) -> bool:
        """Of a message whose subject alone brings it to no partition that is served here."""
        if route.partition == FROM_MESSAGE:
            return route.is_wanted
        return PARTITION_HEADER in header_block

    def take_other(subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
        try:
            encoded = encode(subject, reply, header_block, payload)
        except BadPartition as error:
            if error.partition in takes:
                refused(subject, reply, header_block, payload, error)
            return
        if encoded is None:
            return
        partition, found, tail = encoded
        take_tail = takes.get(partition)
        if take_tail is None:
            return
        if found is not None or (reply_is_special and reply):
            special(partition, subject, reply, found or [], tail, payload)
        else:
            take_tail(tail)

    return take
