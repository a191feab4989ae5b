"""Cases for the controller listener and for authentication at the inter-broker listener: bytes of an unauthenticated
client, and messages of a node that has the secret.

Nodes trust valid messages of a node with the secret, so its messages here are malformed, or request what does not
exist: none claims leadership, and none carries votes or entries of Raft.
"""

from __future__ import annotations

import os
import random
import socket
import struct
from typing import Any

import msgspec

from barnabas.broker.cluster import inter_broker_authentication as inter_broker
from barnabas.broker.requests.registry import AUTHENTICATE_BROKER
from barnabas.controller.link import messages
from barnabas.controller.link.auth import INTER_BROKER_LISTENER, seals
from barnabas.controller.link.framing import PREFACE, encode_frame
from barnabas.controller.link.messages import Hello
from barnabas.wire.tests.mutations import damage
from compat_tests.fuzz.case import Case, Pace, framed
from compat_tests.fuzz.requests import World, request_body
from compat_tests.harness import raw

BROKER_ID = 4  # of the impersonated node
# kinds of messages that an open link accepts; their contents here have no effect
PEER_KINDS = (
    messages.HELLO,
    messages.IDENTITY,
    messages.WELCOME,
    messages.PING,
    messages.PONG,
    messages.RAFT,
    messages.REQUEST,
    messages.RESPONSE,
    messages.NO_RESPONSE,
    messages.FORMATION,
    messages.METADATA,
    messages.LOAD,
    *sorted(messages.IGNORED),
)
_NUMBERS = (-(2**63), -1, 0, 1, 2, 3, 4, 99, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
_HUGE = b"\xdd\x7f\xff\xff\xff"  # an array of 2^31-1 elements, in msgpack


def stranger(seed: int, _world: World) -> Case:
    """Bytes on the controller port from a client that does not know the secret, or has none."""
    rng = random.Random(f"stranger {seed}")
    case = Case([])
    preface = PREFACE if rng.random() < 0.8 else damage(PREFACE, rng)[0]
    hello: list[Any] = [1, 2, rng.choice(("secret", "none", "x" * 1000)), rng.randbytes(16)]
    frames = [encode_frame(messages.HELLO, _packed(hello, rng, case), None)]
    for _ in range(rng.randrange(4)):
        kind = rng.choice((*PEER_KINDS, 0, 18, 255))
        payload = (
            msgspec.msgpack.encode(_any_value(rng, 0))
            if rng.random() < 0.5
            else rng.randbytes(rng.randrange(90))
        )
        case.story.append(f"kind {kind}, {len(payload)} bytes")
        frames.append(encode_frame(kind, payload, None))
    if rng.random() < 0.2:
        size = rng.choice((0, 1, 17, 64 * 1024 + 1, 2**31 - 1, 2**32 - 1))
        frames.append(struct.pack(">I", size) + rng.randbytes(300))
        case.story.append(f"a frame of {size} bytes")
    data = preface + b"".join(frames)
    if rng.random() < 0.3:
        data, how = damage(data, rng)
        case.story.append(how)
    case.pieces.append(data)
    case.pace = rng.choice((Pace.ONE_WRITE, Pace.ONE_WRITE, Pace.ONE_WRITE, Pace.SILENT))
    return case


def peer(seed: int, world: World) -> Case:
    """Messages on an open link; each piece is a kind and a payload (link_client.py)."""
    rng = random.Random(f"peer {seed}")
    case = Case([])
    for _ in range(rng.choice((1, 2, 5))):
        kind = rng.choice(PEER_KINDS)
        payload = _payload(kind, world, rng, case)
        if rng.random() < 0.3:
            payload, how = damage(payload, rng)
            case.story.append(how)
        case.pieces.append(bytes([kind]) + payload)
    return case


def proof(seed: int, _world: World) -> Case:
    """AuthenticateBroker on the inter-broker listener from a client that does not know the secret; and a Fetch as a
    follower."""
    rng = random.Random(f"proof {seed}")
    case = Case([], rng.choice((Pace.ONE_WRITE, Pace.ONE_BY_ONE)))
    for _ in range(rng.choice((1, 2, 2, 3))):
        epoch = rng.choice((0, 1, 2**62))
        hello = [
            rng.choice(("", "cluster")),
            rng.choice((2, 3, 4)),
            epoch,
            rng.choice((1, 2)),
            "INTERNAL",
            rng.randbytes(16),
        ]
        token = rng.choice((_packed(hello, rng, case), rng.randbytes(16), b"", b"x" * 1025))
        if rng.random() < 0.3:
            token, how = damage(token, rng)
            case.story.append(how)
        case.pieces.append(authenticate(token))
    fetch = struct.pack(">iiiib", 2, 0, 0, 1 << 20, 0) + raw.array([])
    case.pieces.append(framed(raw.request(1, 4, fetch)))
    return case


def authenticate(token: bytes) -> bytes:
    """An AuthenticateBroker request."""
    return framed(raw.request(AUTHENTICATE_BROKER, 0, struct.pack(">i", len(token)) + token))


def prove(connection: socket.socket, secret: bytes, cluster_id: str, peer_id: int, listener: str) -> None:
    """Authenticates as a broker of the cluster on a connection to its inter-broker listener. ConnectionError."""
    hello = msgspec.msgpack.encode(
        inter_broker.Hello(cluster_id, BROKER_ID, 0, peer_id, listener, os.urandom(16))
    )
    connection.sendall(authenticate(hello))
    sending, _ = seals(secret, hello, _token(connection), dialed=True, purpose=INTER_BROKER_LISTENER)
    connection.sendall(authenticate(sending.next(b"", b"")))
    _token(connection)


def _token(connection: socket.socket) -> bytes:
    """The token of the next answer, which has a size, correlation id, error, message and bytes."""
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    answer = _exactly(connection, size)
    error, length = struct.unpack_from(">hh", answer, 4)
    if error:
        raise ConnectionError(f"error {error}: {answer!r}")
    return answer[8 + max(0, length) + 4 :]


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("connection closed")
        data += more
    return data


def _payload(kind: int, world: World, rng: random.Random, case: Case) -> bytes:
    number = rng.choice((1, 2, 3, 2**32 - 1))
    match kind:
        case messages.REQUEST:
            served, version, body = request_body(world, rng)
            asked = [
                served.message.api_key,
                version,
                rng.choice((None, "fuzz")),
                rng.choice(("", "PLAINTEXT")),
                rng.choice((str(BROKER_ID), "127.0.0.1")),
                body,
                rng.random() < 0.5,
            ]
            case.story.append(f"request {served.message.name} {version}")
            return rng.randbytes(8) + _packed(asked, rng, case, chance=0.2)
        case messages.RESPONSE | messages.NO_RESPONSE | messages.PING | messages.PONG:
            case.story.append(f"kind {kind}")
            return rng.randbytes(rng.randrange(40))
        case messages.METADATA:
            said = rng.choice(
                (
                    [1, number, rng.choice((-1, 0, 5, 2**62))],
                    [2, number],
                    [3, number, rng.choice(_NUMBERS)],
                    [4, number, 0, [[b"record"]], 1, 6],
                    [5, number, 0, rng.choice(_NUMBERS), b"data"],
                )
            )
            return _packed(said, rng, case)
        case messages.LOAD:
            rate = rng.choice((0.0, 1e5, -1.0, 1e308, float("nan"), float("inf")))
            loads = [[rng.randbytes(rng.choice((0, 16))), number, rate, 1.0, rng.choice(_NUMBERS)]]
            said = [
                loads * rng.choice((0, 1, 1000)),
                rate,
                1.0,
                rng.choice(_NUMBERS),
                number,
                2**40,
                {1: number},
            ]
            return _packed(said, rng, case, chance=0.2)
        case messages.HELLO:
            return _packed(list(msgspec.structs.astuple(Hello(1, 2, "secret", rng.randbytes(16)))), rng, case)
        case _:
            return _packed(_any_value(rng, 0), rng, case)


def _packed(value: Any, rng: random.Random, case: Case, chance: float = 0.6) -> bytes:
    """msgpack of a value, some of whose parts are replaced."""
    if isinstance(value, list) and rng.random() < chance:
        value = list(value)
        at = rng.randrange(len(value) + 1)
        match rng.randrange(5):
            case 0:
                value = value[:at]
            case 1:
                value.insert(at, _any_value(rng, 0))
            case 2 if at < len(value):
                value[at] = _any_value(rng, 0)
            case 3 if at < len(value):
                value[at] = rng.choice((_NUMBERS[0], 2**64 - 1, 1.5, None))
            case _:
                value += [0] * 10_000
    data = msgspec.msgpack.encode(value)
    if rng.random() < 0.1:
        at = rng.randrange(len(data) + 1)
        data = data[:at] + rng.choice((_HUGE, b"\xc6\xff\xff\xff\xff", b"\x91" * 5000)) + data[at:]
    case.story.append(f"{len(data)} bytes of msgpack")
    return data


def _any_value(rng: random.Random, depth: int) -> Any:
    if depth < 3 and rng.random() < 0.3:
        return [_any_value(rng, depth + 1) for _ in range(rng.randrange(6))]
    return rng.choice((None, True, "", "text", "x" * 1000, b"", rng.randbytes(16), 1.5, *_NUMBERS))
