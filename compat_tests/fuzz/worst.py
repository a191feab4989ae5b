"""The worst known requests: small to send, expensive to serve. Each has a name, for the fuzzer and for `make
bench`."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

from barnabas.broker.telemetry.subscriptions import INTERVAL_MS, subscription_id
from barnabas.broker.telemetry.tests.otlp_payload import attribute, double, gauge, text
from barnabas.broker.telemetry.tests.otlp_payload import payload as otlp_payload
from barnabas.wire.compression import Codec
from barnabas.wire.tests.lying_batches import NOW_MS, batch, bomb, many_records, wide_batch, zstd_bomb
from compat_tests.fuzz.case import Case, Pace, framed
from compat_tests.harness.raw import array, request, string, varint

FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, JOIN_GROUP, DESCRIBE_CONFIGS = 1, 2, 3, 8, 11, 32
CREATE_TOPICS, INCREMENTAL_ALTER_CONFIGS, API_VERSIONS = 19, 44, 18
PUSH_TELEMETRY = 72
WIDE = 300_000  # records of a batch
BOMB_MB = 1000
_BOMB_MB = {Codec.GZIP: 500, Codec.LZ4: 200, Codec.SNAPPY: 15}


def produce(topic: str, records: bytes, acks: int = 1) -> bytes:
    """A Produce request, version 7, for partition 0."""
    partition = struct.pack(">ii", 0, len(records)) + records
    body = string(None) + struct.pack(">hi", acks, 30_000)
    return framed(request(0, 7, body + array([string(topic) + array([partition])])))


def list_offsets(topic: str, timestamp: int, version: int = 1) -> bytes:
    """A ListOffsets request for partition 0."""
    partitions = array([struct.pack(">iq", 0, timestamp)])
    return framed(request(LIST_OFFSETS, version, struct.pack(">i", -1) + array([string(topic) + partitions])))


def fetch(replica_id: int, topics: list[bytes]) -> bytes:
    """Fetch, version 4."""
    head = struct.pack(">iiiib", replica_id, 0, 0, 1 << 20, 0)
    return framed(request(FETCH, 4, head + array(topics)))


def metadata(names: list[str], *, create: bool = False) -> bytes:
    """Metadata, version 4."""
    return framed(
        request(METADATA, 4, array([string(name) for name in names]) + (b"\1" if create else b"\0"))
    )


def describe_configs(resource_type: int, name: str, times: int) -> bytes:
    """DescribeConfigs, version 1, naming one resource several times."""
    resource = struct.pack(">b", resource_type) + string(name) + b"\xff\xff\xff\xff"
    return framed(request(DESCRIBE_CONFIGS, 1, array([resource] * times) + b"\1"))


def _bomb_batch(codec: Codec) -> bytes:
    """A batch that decompresses to as much as max.message.bytes allows."""
    data = zstd_bomb(BOMB_MB) if codec == Codec.ZSTD else bomb(codec, _BOMB_MB[codec])
    return batch(data, 1, attributes=int(codec), max_timestamp=NOW_MS + 1000)


def _looked_up(codec: Codec) -> Callable[[], Case]:
    def make() -> Case:
        """A batch that decompresses to far more than its size, and lookups that fall into it, from sixteen
        connections."""
        return Case(
            [list_offsets("fuzz-plain", NOW_MS + 1)],
            prepared=[produce("fuzz-plain", _bomb_batch(codec))],
            connections=16,
        )

    return make


def _produced(topic: str, records: Callable[[], bytes]) -> Callable[[], Case]:
    return lambda: Case([produce(topic, records())])


def _join(group: str, number: int) -> bytes:
    protocols = array([string("range") + struct.pack(">i", 4) + b"abcd"])
    body = string(group) + struct.pack(">ii", 6000, 6000) + string("") + string("consumer") + protocols
    return framed(request(JOIN_GROUP, 4, body, number))


def _long_names() -> Case:
    """Names and values of 32,767 bytes, which the error messages of the answers would repeat."""
    name = "x" * 32767
    create = string(name) + struct.pack(">ih", 1, 1) + array([]) + array([])
    config = string(name) + b"\0" + string(name)
    alter = b"\2" + string("fuzz-plain") + array([config])
    value = b"\2" + string("fuzz-plain") + array([string("cleanup.policy") + b"\0" + string(name)])
    return Case(
        [
            framed(request(CREATE_TOPICS, 2, array([create]) + struct.pack(">ib", 1000, 0))),
            framed(request(INCREMENTAL_ALTER_CONFIGS, 0, array([alter]) + b"\0")),
            framed(request(INCREMENTAL_ALTER_CONFIGS, 0, array([value]) + b"\0")),
            metadata([name]),
            describe_configs(2, name, 1),
        ],
        Pace.ONE_BY_ONE,
    )


def _commit() -> Case:
    """Offsets of 50,000 partitions, each with metadata."""
    partitions = array([struct.pack(">iq", number, 5) + string("m" * 30) for number in range(50_000)])
    body = string("group-0") + struct.pack(">i", -1) + string("") + struct.pack(">q", -1)
    return Case([framed(request(OFFSET_COMMIT, 2, body + array([string("fuzz-plain") + partitions])))])


def _early_tags() -> Case:
    """Flexible headers whose tagged fields end early."""
    head = struct.pack(">hhi", METADATA, 12, 1) + string("raw")
    return Case([framed(head + tags) for tags in (b"\x01", b"\x01\x80", b"\x02\x00", b"\x01\x00\x05ab", b"")])


def _pushes(payload: bytes, codec: Codec = Codec.NONE) -> Case:
    """Twenty clients push the same metrics, for the subscription id of a broker without subscriptions."""
    frames = []
    for number in range(20):
        instance_id = struct.pack(">QII", 7, zlib.crc32(payload), number)
        head = struct.pack(">hhi", PUSH_TELEMETRY, 0, number) + string("raw") + b"\0"
        fields = instance_id + struct.pack(
            ">i?b", subscription_id((), INTERVAL_MS, instance_id), False, int(codec)
        )
        frames.append(framed(head + fields + varint(len(payload) + 1) + payload + b"\0"))
    return Case(frames)


def _wide_points() -> bytes:
    """A resource with many attributes, and points that each get a copy of them."""
    attributes = b"".join(attribute(1, f"key-{number}", text("v" * 300)) for number in range(24))
    points = [double(4, number) + attribute(7, "n", text(str(number))) for number in range(10_000)]
    return otlp_payload(gauge("m", *points), resource=attributes)


WORST: dict[str, Callable[[], Case]] = {
    "wide batch far ahead": _produced("fuzz-plain", lambda: wide_batch(WIDE, far_ahead=True)),
    "wide batch far ahead, not compressed": _produced(
        "fuzz-plain", lambda: wide_batch(100_000, Codec.NONE, far_ahead=True)
    ),
    "wide batch, compacted": _produced("fuzz-compacted", lambda: wide_batch(WIDE)),
    "wide batch, validated": _produced("fuzz-validated", lambda: wide_batch(WIDE)),
    "wide batch, recompressed": _produced("fuzz-packed", lambda: wide_batch(WIDE)),
    "wide batch, bounded times": _produced("fuzz-bounded", lambda: wide_batch(WIDE)),
    "bomb recompressed": _produced("fuzz-packed", lambda: _bomb_batch(Codec.ZSTD)),
    "bomb compacted": _produced("fuzz-compacted", lambda: _bomb_batch(Codec.ZSTD)),
    "bomb looked up, zstd": _looked_up(Codec.ZSTD),
    "bomb looked up, gzip": _looked_up(Codec.GZIP),
    "bomb looked up, lz4": _looked_up(Codec.LZ4),
    "bomb looked up, snappy": _looked_up(Codec.SNAPPY),
    "wide batch looked up": lambda: Case(
        [list_offsets("fuzz-plain", NOW_MS + 1)] * 20,
        prepared=[produce("fuzz-plain", batch(many_records(WIDE), WIDE, max_timestamp=NOW_MS + 1000))],
    ),
    "topic described 10,000 times": lambda: Case([describe_configs(2, "fuzz-plain", 10_000)]),
    "broker described 10,000 times": lambda: Case([describe_configs(4, "1", 10_000)]),
    "metadata of 50,000 unknown names": lambda: Case(
        [metadata([f"no-such-{number}" for number in range(50_000)])]
    ),
    "metadata of one name 50,000 times": lambda: Case([metadata(["fuzz-plain"] * 50_000)]),
    "2,000 group members": lambda: Case([_join("group-0", number) for number in range(2000)]),
    "names of 32,767 bytes": _long_names,
    "50,000 offsets committed": _commit,
    "fetch of 300,000 partitions as a broker": lambda: Case(
        [fetch(2, [string("fuzz-plain") + array([struct.pack(">iqi", 0, 0, 1)] * 300_000)])]
    ),
    "fetch of 500,000 topics without partitions": lambda: Case(
        [fetch(-1, [string(f"{number}") + array([]) for number in range(500_000)])]
    ),
    "20,000 requests in one write": lambda: Case(
        [framed(request(API_VERSIONS, 0, b"", number)) for number in range(20_000)]
    ),
    "header's tagged fields end early": _early_tags,
    "half requests of 64 clients": lambda: Case(
        [struct.pack(">i", 1 << 20) + bytes(500_000)], Pace.SILENT, connections=64
    ),
    "pushed metrics of 290,000 empty points": lambda: _pushes(otlp_payload(gauge("m", *[b""] * 145_000))),
    "pushed metrics of 1,000,000 fields": lambda: _pushes(b"\x48\x00" * 500_000),
    "pushed metrics of wide points": lambda: _pushes(_wide_points()),
    "pushed metrics that are a bomb, zstd": lambda: _pushes(zstd_bomb(BOMB_MB), Codec.ZSTD),
    "pushed metrics that are a bomb, gzip": lambda: _pushes(bomb(Codec.GZIP, 500), Codec.GZIP),
    "tagged fields of a header, 10,000": lambda: Case(
        [
            framed(
                struct.pack(">hhi", METADATA, 12, 1)
                + string("raw")
                + varint(10_000)
                + b"".join(varint(tag) + b"\0" for tag in range(10_000))
                + b"\0\0\0"
            )
        ],
    ),
}


def worst_cases() -> list[Case]:
    """All cases, in order."""
    cases: list[Case] = []
    for name, make in WORST.items():
        case = make()
        case.story.append(name)
        cases.append(case)
    return cases
