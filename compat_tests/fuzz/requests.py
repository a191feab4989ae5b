"""Cases for a client listener: valid requests of every API and version that the broker serves, and mutations of them.

Requests name the topics of `TOPICS`, a few groups, and things that do not exist. No request names the probe's topic,
and none changes the broker's configuration: a valid change by an administrator is no defect.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import barnabas.wire
from barnabas.wire.schema_parser import Field, Message, Struct, parse_file
from barnabas.wire.tests.lying_batches import NOW_MS, batch, lying_batch, record
from barnabas.wire.tests.message_tokens import (
    Array,
    Node,
    Sized,
    TaggedFields,
    Token,
    build,
    encode,
    walk,
)
from barnabas.wire.tests.mutations import damage, mutate, repeat
from compat_tests.fuzz.case import Case, Pace, framed
from compat_tests.harness import raw

# configs that make a broker decode records, one per topic
TOPICS: Mapping[str, Mapping[str, str]] = {
    "fuzz-plain": {},
    "fuzz-compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
    "fuzz-validated": {"barnabas.validate.records": "true"},
    "fuzz-packed": {"compression.type": "gzip"},
    "fuzz-bounded": {"message.timestamp.before.max.ms": str(10 * 365 * 86_400_000)},
    "fuzz-stamped": {"message.timestamp.type": "LogAppendTime"},
}
PARTITIONS = 2
GROUPS = ("group-0", "group-1", "no-such-group", "")
PIPELINED_BYTES, PIPELINED_MAX = 1_000_000, 20_000
MUTATION_ROOM = 1_000_000  # bytes that one mutation may add

_CONFIGS = ("retention.ms", "cleanup.policy", "max.message.bytes", "no.such.config", "")
_TEXTS = ("", "m", "range", "consumer", "User:a", "*", "x" * 127, "x" * 300)
_OF_FOLLOWERS = (1, 2, 23)  # Fetch, ListOffsets, OffsetForLeaderEpoch
_EXCLUDED = {"SaslHandshake", "SaslAuthenticate"}  # not served; left out if they ever are


@dataclass
class Served:
    """An API that the broker serves, by its ApiVersions answer."""

    message: Message
    first: int
    last: int


@dataclass
class World:
    """Names and ids for cases."""

    apis: list[Served]
    topic_ids: dict[str, bytes]
    replica_ids: tuple[int, ...] = (-1,)  # replica ids of Fetch requests


def served_apis(ranges: Mapping[int, tuple[int, int]]) -> list[Served]:
    """The schema's requests, in the versions of an ApiVersions answer."""
    folder = Path(next(iter(barnabas.wire.__path__))) / "schema"
    found: list[Served] = []
    for path in sorted(folder.glob("*.txt")):
        for message in parse_file(path).messages:
            if message.kind == "request" and message.api_key in ranges and message.name not in _EXCLUDED:
                first, last = ranges[message.api_key]
                first, last = max(first, message.versions.first), min(last, message.versions.last)
                found.append(Served(message, first, last))
    return found


def mutated(seed: int, world: World) -> Case:
    """One to five requests with up to three mutations each."""
    rng = random.Random(f"requests {seed}")
    case = Case([], rng.choice((Pace.ONE_WRITE, Pace.ONE_WRITE, Pace.ONE_BY_ONE)))
    for _ in range(rng.choice((1, 1, 2, 5))):
        served = rng.choice(world.apis)
        version = rng.randint(served.first, served.last)
        nodes = _request(served.message, version, world, rng)
        what = [f"{served.message.name} {version}"]
        for _ in range(rng.choice((0, 0, 1, 1, 1, 2))):
            what.append(mutate(nodes, rng, MUTATION_ROOM))
        data = encode(nodes)
        if rng.random() < 0.1:
            data, how = damage(data, rng)
            what.append(how)
        frame = framed(data)
        if rng.random() < 0.04:
            size = rng.choice((-1, 0, 1, len(data) - 1, len(data) + 1, len(data) + 100_000, 2**31 - 1))
            frame = struct.pack(">i", size) + data
            what.append(f"frame size {size} of {len(data)}")
        case.pieces.append(frame)
        case.story.append(", ".join(what))
    if rng.random() < 0.1:
        last = case.pieces[-1]
        case.pieces[-1] = last[: rng.randrange(1, max(2, len(last)))]
        case.pace = Pace.SILENT
        case.story.append("the last one cut, then silence")
    return case


def follower(seed: int, world: World) -> Case:
    """Like `mutated`, with the APIs of followers."""
    apis = [served for served in world.apis if served.message.api_key in _OF_FOLLOWERS]
    return mutated(seed, replace(world, apis=apis))


def request_body(world: World, rng: random.Random) -> tuple[Served, int, bytes]:
    """A request without its header, with up to two mutations: API, version, bytes."""
    served = rng.choice(world.apis)
    version = rng.randint(served.first, served.last)
    nodes = build(served.message, version, _values(served.message, world, rng), rng)
    for _ in range(rng.choice((0, 1, 2))):
        mutate(nodes, rng, MUTATION_ROOM)
    return served, version, encode(nodes)


def repetitions(world: World, times: int = 10_000, room: int = MUTATION_ROOM) -> list[Case]:
    """Each array of each API, with one element repeated, in the last version that is served."""
    cases: list[Case] = []
    for served in world.apis:
        name = served.message.name.removesuffix("Request")
        for number in itertools.count():
            rng = random.Random(f"repetitions {name}")  # makes the request the same each time
            nodes = _full_request(served, world, rng)
            arrays = _arrays(nodes)
            if number >= len(arrays):
                break
            what = repeat(arrays[number], rng, times, room)
            cases.append(Case([framed(encode(nodes))], story=[f"{name}: {what}"]))
    return cases


def pipelined(world: World) -> list[Case]:
    """A valid request of each API, repeated up to a megabyte, in one write."""
    cases: list[Case] = []
    for served in world.apis:
        name = served.message.name.removesuffix("Request")
        frame = framed(encode(_full_request(served, world, random.Random(f"pipelined {name}"))))
        times = min(PIPELINED_MAX, max(1, PIPELINED_BYTES // len(frame)))
        cases.append(Case([frame] * times, story=[f"{name}, {times} times in one write"]))
    return cases


def _arrays(nodes: list[Node]) -> list[Array]:
    return [node for node in walk(nodes) if isinstance(node, Array) and node.elements]


def _full_request(served: Served, world: World, rng: random.Random) -> list[Node]:
    """A request whose arrays are not empty, as far as ten attempts produce one."""
    tries = [_request(served.message, served.last, world, rng) for _ in range(10)]
    return max(tries, key=lambda nodes: len(_arrays(nodes)))


def _request(message: Message, version: int, world: World, rng: random.Random) -> list[Node]:
    """Header and body."""
    flexible = message.flexible_since is not None and version >= message.flexible_since
    header: list[Node] = [
        Token("int16", struct.pack(">h", message.api_key)),
        Token("int16", struct.pack(">h", version)),
        Token("int32", struct.pack(">i", rng.getrandbits(31))),
        Sized("string", rng.choice((None, b"", b"fuzz")), compact=False),
    ]
    if flexible:
        header.append(TaggedFields([]))
    return header + build(message, version, _values(message, world, rng), rng)


def _values(message: Message, world: World, rng: random.Random) -> Any:
    topics = list(TOPICS)

    def text(field: Field, owner: Struct) -> Any:
        name = field.name
        if name in ("TransactionalId", "GroupInstanceId", "RackId", "ClusterId", "ProtocolName"):
            return rng.choice((None, None, "", "range"))
        if "Topic" in name or ("Topic" in owner.name and name == "Name") or name == "ResourceName":
            if message.name in ("CreateTopicsRequest", "DeleteTopicsRequest"):
                return f"made-{rng.randrange(5)}"
            return rng.choice((*topics, *topics, "no-such-topic"))
        if "Group" in name or "Key" in name:
            return rng.choice(GROUPS if "Config" not in name else _CONFIGS)
        if name in ("Name", "ConfigName", "Value"):
            return rng.choice((*_CONFIGS, "1", "compact", "-1"))
        return rng.choice(_TEXTS)

    def integer(field: Field, owner: Struct) -> int:
        name = field.name
        if "Partition" in name or name == "Index":
            return rng.choice((0, 0, 1, 1, 2, -1)) if "Num" not in name else rng.choice((-1, 1, 2))
        if "SessionTimeout" in name or "RebalanceTimeout" in name:
            return 6000
        if "Timeout" in name or "MaxWait" in name or "Ms" in name:
            return rng.choice((0, 1, 50))
        if "Broker" in name or "Replicas" in name:
            return 77 if name == "BrokerId" else 1
        if "Replica" in name or "LeaderEpoch" in name:
            if name == "ReplicationFactor":
                return rng.choice((-1, 1))
            return rng.choice(world.replica_ids) if name == "ReplicaId" else -1
        if name == "Timestamp":
            return rng.choice((-1, -2, -3, -4, -5, NOW_MS - 1, NOW_MS, NOW_MS + 1))
        if "Bytes" in name:
            return rng.choice((0, 1, 1 << 20))
        if name == "ResourceType":
            return rng.choice((2, 2, 2, 8, 32))
        return rng.choice((-1, -1, 0, 0, 1, 2, 3))

    def value(field: Field, owner: Struct) -> Any:
        match field.type:
            case "string":
                return text(field, owner)
            case "records":
                return _records(rng)
            case "bytes":
                return rng.randbytes(rng.randrange(50))
            case "uuid":
                return rng.choice((*world.topic_ids.values(), bytes(16)))
            case "bool":
                return rng.random() < 0.5
            case "float64":
                return 1.0
            case "uint16":
                return rng.choice((0, 9092))
            case _:
                return integer(field, owner)

    return value


def _records(rng: random.Random) -> bytes | None:
    if rng.random() < 0.3:
        return batch(record(0, key=b"k"), 1)
    return None if rng.random() < 0.05 else lying_batch(rng)[0]


def topic_ids(bootstrap: str) -> dict[str, bytes]:
    """The ids of `TOPICS`, from Metadata 12."""
    names = list(TOPICS)
    ids: dict[str, bytes] = {}
    with raw.RawConnection(bootstrap) as connection:
        for name in names:
            entry = bytes(16) + raw.varint(len(name) + 1) + name.encode() + b"\0"
            answer = connection.ask(raw.request(3, 12, b"\x02" + entry + b"\0\0\0", flexible=True))
            at = answer.index(name.encode()) + len(name)
            ids[name] = answer[at : at + 16]
    return ids


def served_ranges(bootstrap: str) -> dict[int, tuple[int, int]]:
    """API keys and versions, from ApiVersions 0."""
    with raw.RawConnection(bootstrap) as connection:
        answer = connection.ask(raw.request(18, 0, b""))
    _, count = struct.unpack_from(">hi", answer)
    entries = [struct.unpack_from(">hhh", answer, 6 + 6 * number) for number in range(count)]
    return {key: (first, last) for key, first, last in entries}
