"""A hostile nats-server: composes valid messages of the protocol and of JetStream, then damages them.

Each seed is a personality: which kinds of damage it does, and how often. Connections of the same seed get the same
operations as long as the broker sends the same requests. Everything is valid except what `Mutator` changes: sizes,
counts and fields of lines, header blocks, JSON of answers, the numbers in reply subjects, statuses of pulls, the
bytes and their pace.

The server remembers the messages that it delivered undamaged, and which of them the broker acknowledged: an
acknowledged message must be in the log, regardless of all other messages.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable
from copy import deepcopy
from typing import Any

KINDS = (
    "sizes",
    "fields",
    "headers",
    "json",
    "tokens",
    "statuses",
    "errors",
    "bits",
    "cuts",
    "endless",
    "drip",
    "flood",
    "silence",
    "pongs",
    "large",
)
STORED_NS = 1_767_225_600_000_000_000
MESSAGES_OF_A_PULL = 12
LINE_BYTES_MAX = 1 << 20
FLOOD = 3000
SIZES = (
    b"-1", b"0", b"", b"1", b"99999999999999999999", b"9999999999", b"2147483648", b"68157440", b"+5", b"0x10", b"1_0", b"\xd9\xa3",
    b"1048577", b"2097153",
)  # fmt: skip
NUMBERS = (
    b"",
    b"-1",
    b"0",
    b"9" * 19,
    b"9" * 25,
    b"9" * 5000,
    b"x",
    b"1_0",
    b"\xd9\xa3",
    b"1.1",
    b" 1",
    b"00001",
)
ERRORS = (
    "'Slow Consumer'", "'Stale Connection'", "'Authorization Violation'", "'User Authentication Expired'", "", "'", "'\xff\0'",
    "'Permissions Violation for Subscription to \"c.>\"'", "'Permissions Violation for Publish to \"x\"'", "'Invalid Subject'",
    "'maximum subscriptions exceeded'", "'Unknown Protocol Operation'", "'Maximum Payload Violation'", "x" * 60_000,
)  # fmt: skip
STATUSES = (
    b"100 Idle Heartbeat", b"100", b"404 No Messages", b"408 Request Timeout", b"409 Message Size Exceeds MaxBytes",
    b"409 Exceeded MaxWaiting", b"409 Consumer Deleted", b"409 Leadership Change", b"409", b"503", b"503 No Responders", b"",
    b"999 \xff", b"\0", b"4 0 9", b"x" * 5000,
)  # fmt: skip
BLOCKS = (
    b"", b"NATS/1.0", b"NATS/1.0\r\n", b"NATS/1.0\r\n\r\n", b"NATS/9.9\r\na: b\r\n\r\n", b"NATS/1.0\r\nno colon\r\n\r\n",
    b"NATS/1.0\r\n:\r\n\r\n", b"NATS/1.0\r\n" + b"a: b\r\n" * 5000 + b"\r\n", b"NATS/1.0\r\n\xff\xfe: \0\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id: " + b"x" * 9000 + b"\r\n\r\n", b"NATS/1.0\r\nKafka-Partition: 99999999999999999999\r\n\r\n",
    b"NATS/1.0\r\nKafka-Partition: -1\r\n\r\n", b"NATS/1.0\r\nKafka-Ack: nonsense\r\n\r\n",
    b"NATS/1.0\r\nNats-Expected-Last-Sequence: 99999999999999999999999\r\n\r\n", b"NATS/1.0\r\nKV-Operation: \r\n\r\n",
    b"NATS/1.0\r\nBarnabas-Hops: " + b"a/b," * 2000 + b"\r\n\r\n", b"\r\n\r\n", b"NATS/1.0 503\r\n\r\n",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1 << 63, 1 << 200, 1.5, 1e308, float("nan"), "", "x", "\0", "9" * 400, "2026-13-99T99:99:99Z",
    "0001-01-01T00:00:00Z", [], {}, [[]], [None], {"": None}, ["x"] * 1000, {"x": {"y": [1]}},
)  # fmt: skip


class Mutator:
    """The damage of one personality."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        count = self.random.choice((1, 1, 2, 3, len(KINDS)))
        self.kinds = frozenset(self.random.sample(KINDS, count))
        self.chance = self.random.choice((0.02, 0.1, 0.3, 0.8))

    def __str__(self) -> str:
        return f"{' '.join(sorted(self.kinds))}, {self.chance:.0%}"

    def hits(self, kind: str) -> bool:
        return kind in self.kinds and self.random.random() < self.chance

    def line(self, fields: list[bytes]) -> bytes:
        """The protocol line of a message, with sizes and fields possibly changed."""
        if self.hits("sizes"):
            fields[-1 - self.random.randrange(2) * (fields[0] == b"HMSG")] = self.random.choice(SIZES)
        if self.hits("fields"):
            place = self.random.randrange(len(fields))
            what = self.random.randrange(7)
            if what == 0:
                del fields[place]
            elif what == 1:
                fields.insert(place, self.random.choice((b"", b"\t", b"x", b"\0", b"\xff")))
            elif what == 2:
                fields[place] = b"x" * self.random.choice((300, 5000, 60_000, 70_000))
            elif what == 3:
                fields[place] = self.random.randbytes(8).replace(b"\r\n", b"xx")
            elif what == 4:
                return b"\t".join(fields)
            elif what == 5:
                return b"  ".join(fields).swapcase()
            else:
                fields[2] = b"%d" % self.random.randrange(1000)
        return b" ".join(fields)

    def block(self, block: bytes) -> bytes:
        return self.random.choice(BLOCKS) if self.hits("headers") else block

    def ack_subject(self, tokens: list[bytes]) -> bytes:
        if self.hits("tokens"):
            what = self.random.randrange(4)
            place = self.random.randrange(2, len(tokens))
            if what == 0:
                tokens[place] = self.random.choice(NUMBERS)
            elif what == 1:
                del tokens[place:]
            elif what == 2:
                tokens[2:2] = [b"_", b"hash"]
            else:
                tokens += [b"x"] * self.random.randrange(5)
        return b".".join(tokens)

    def json(self, value: Any) -> bytes:
        """An answer of JetStream."""
        if not self.hits("json"):
            return json.dumps(value).encode()
        what = self.random.randrange(8)
        if what == 0:
            return self.random.choice(
                (b"", b"{", b"null", b"[]", b'"x"', b"\xff", b"1", b"{}" * 100, b'{"error":1}')
            )
        if what == 1:
            deep = self.random.choice((100, 10_000, 200_000))
            return self.random.choice((b"[" * deep, b'{"a":' * deep, b'{"config":' + b"[" * deep))
        if what == 2:
            error = {
                "code": self.random.choice(VALUES),
                "err_code": self.random.choice(VALUES),
                "description": "x" * 3000,
            }
            return json.dumps({"error": error}).encode()
        copy = deepcopy(value)
        for _ in range(self.random.choice((1, 1, 3))):
            self._change(copy)
        data = json.dumps(copy).encode()
        return data[: self.random.randrange(len(data) + 1)] if what == 3 else data

    def _change(self, value: Any) -> None:
        while True:
            places: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
            if not places:
                return
            place = self.random.choice(places)
            if isinstance(value[place], dict | list) and self.random.random() < 0.8:
                value = value[place]
                continue
            if isinstance(value, dict) and self.random.random() < 0.2:
                del value[place]
            else:
                value[place] = deepcopy(self.random.choice(VALUES))
            return

    def bytes(self, data: bytes) -> bytes:
        """The bytes of a whole operation."""
        if self.hits("bits") and data:
            damaged = bytearray(data)
            for _ in range(self.random.choice((1, 1, 8))):
                damaged[self.random.randrange(len(damaged))] = self.random.randrange(256)
            return bytes(damaged)
        return data


class Acknowledged:
    """Messages that were delivered undamaged, and those of them that the broker has acknowledged."""

    def __init__(self) -> None:
        self.payloads: set[bytes] = set()
        self._delivered: dict[bytes, bytes] = {}  # payloads by reply subject

    def delivered(self, reply: bytes, payload: bytes) -> None:
        self._delivered[reply] = payload

    def answered(self, reply: bytes, payload: bytes) -> None:
        """The broker has published to a reply subject."""
        found = self._delivered.get(reply)
        if found is not None and (payload == b"+ACK" or payload.startswith(b'{"stream"')):
            self.payloads.add(found)


class HostileNatsServer:
    """Listens in its own thread, with the personality of the last `begin`; between `end` and `begin` its port is
    closed."""

    def __init__(self) -> None:
        self.acknowledged = Acknowledged()
        self.connections = 0  # accepted since the last `begin`
        self.operations = 0  # sent since then
        self.mutator = Mutator(0)
        self.seed = 0
        self.created = ""
        self.numbers = 0  # counts messages of all seeds, so that payloads are unique
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: asyncio.Server | None = None
        self._open: set[_Connection] = set()
        self.port = 0
        self.begin(0)
        self.end()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def begin(self, seed: int) -> None:
        self.seed, self.mutator = seed, Mutator(seed)
        self.numbers += 1
        self.created = stored_at(self.numbers)  # a new time makes new streams
        self.connections = self.operations = 0
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(60)

    def end(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop_listening(), self._loop).result(60)

    def close(self) -> None:
        self.end()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    async def _listen(self) -> None:
        def accept() -> _Connection:
            self.connections += 1
            connection = _Connection(self, self._open.discard)
            self._open.add(connection)
            return connection

        self._server = await self._loop.create_server(accept, "127.0.0.1", self.port, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._open):
            connection.abort()


def stored_at(number: int) -> str:
    """Time at which message `number` was stored: its number is also its nanoseconds."""
    seconds, nanoseconds = divmod(number, 1_000_000_000)
    return f"2026-01-01T00:00:{seconds:02}.{nanoseconds:09}Z"


class _Connection(asyncio.Protocol):
    """Connection of one client."""

    def __init__(self, server: HostileNatsServer, lost: Callable[[_Connection], object]) -> None:
        self._server = server
        self._mutator = server.mutator
        self._lost = lost
        self._transport: Any = None
        self._held = b""
        self._subscriptions: dict[bytes, bytes] = {}
        self._sequences: dict[bytes, int] = {}  # by consumer
        self._durables: dict[str, Any] = {}
        self._is_damaged = False  # the client may misread what is delivered from now on
        self._to_drip = bytearray()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        info = {
            "server_id": "hostile", "version": "2.15.1", "proto": 1, "headers": True, "jetstream": True, "max_payload": 1 << 20,
            "client_id": 7, "nonce": "abc", "auth_required": False, "connect_urls": [f"127.0.0.1:{self._server.port}"],
        }  # fmt: skip
        self._send(b"INFO " + self._mutator.json(info) + b"\r\n")

    def connection_lost(self, _error: Exception | None) -> None:
        self._lost(self)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- operations of the broker

    def data_received(self, data: bytes) -> None:
        self._held += data
        while True:
            line, end, rest = self._held.partition(b"\r\n")
            if not end:
                return
            fields = line.split(b" ")
            if fields[0] in (b"PUB", b"HPUB"):
                size = int(fields[-1])
                if len(rest) < size + 2:
                    return
                self._held = rest[size + 2 :]
                has_reply = len(fields) == (4 if fields[0] == b"PUB" else 5)
                headers = int(fields[-2]) if fields[0] == b"HPUB" else 0
                self._published(fields[1], fields[2] if has_reply else b"", rest[headers:size])
                continue
            self._held = rest
            if fields[0] == b"SUB":
                self._subscriptions[fields[-1]] = fields[1]
                if not fields[1].startswith(b"_INBOX"):
                    self._some_messages(fields[1], fields[-1])
            elif fields[0] == b"UNSUB":
                self._subscriptions.pop(fields[1], None)
            elif fields[0] == b"PING":
                if self._mutator.hits("silence"):
                    continue
                self._send(b"PONG\r\n")
                self._chatter()

    def _published(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        if b"MSG.NEXT" in subject:
            self._pull(subject, reply)
            return
        self._server.acknowledged.answered(subject, payload)
        if not reply or self._mutator.hits("silence"):
            return
        if subject.startswith(b"$JS.API."):
            self._answer(reply, self._mutator.json(self._api(subject.decode("latin-1")[8:], payload)))
        else:  # a message to a stream
            self._server.numbers += 1
            self._answer(reply, self._mutator.json({"stream": "KV_b", "seq": self._server.numbers}))

    def _api(self, what: str, payload: bytes) -> Any:
        stream = what.split(".")[2] if what.count(".") >= 2 else ""
        if what.startswith("STREAM.NAMES"):
            return {"total": 1, "offset": 0, "limit": 1024, "streams": ["S"]}
        if what.startswith("STREAM.INFO"):
            subject = "$KV.b.>" if stream == "KV_b" else "s.>"
            last = self._server.numbers
            state = {
                "messages": last,
                "bytes": 900,
                "first_seq": 1,
                "last_seq": last,
                "subjects": {"$KV.b.k1": 1},
            }
            config = {"name": stream, "subjects": [subject], "retention": "limits"}
            return {"config": config, "created": self._server.created, "state": state, "total": 1}
        if what.startswith("STREAM.MSG.GET"):
            sequence = json.loads(payload).get("seq", 1)
            return {
                "message": {"subject": "s.1", "seq": sequence, "time": stored_at(sequence), "data": "eA=="}
            }
        if what.startswith("CONSUMER.CREATE"):
            config = json.loads(payload)["config"]
            self._durables[config["name"]] = config
            return self._consumer(stream, config)
        if what.startswith("CONSUMER.INFO"):
            known = self._durables.get(what.split(".")[3])
            if known is None:
                return {"error": {"code": 404, "err_code": 10014, "description": "consumer not found"}}
            return self._consumer(stream, known)
        return {"success": True}

    def _consumer(self, stream: str, config: Any) -> Any:
        zero = {"consumer_seq": 0, "stream_seq": 0}
        return {
            "stream_name": stream, "name": config["name"], "created": self._server.created, "config": config, "delivered": zero,
            "ack_floor": zero, "num_ack_pending": 0, "num_redelivered": 0, "num_waiting": 0, "num_pending": 5,
        }  # fmt: skip

    # -- operations of the server

    def _answer(self, reply: bytes, payload: bytes) -> None:
        for sid, pattern in tuple(self._subscriptions.items()):
            if pattern == reply or (pattern.endswith(b"*") and reply.startswith(pattern[:-1])):
                self._message(reply, sid, b"", b"", payload)

    def _some_messages(self, pattern: bytes, sid: bytes) -> None:
        """Sends messages on a subject with a subscription; some request an acknowledgement."""
        chance = self._mutator.random
        for _ in range(chance.randrange(1, 8)):
            subject = pattern.replace(b">", b"%d" % chance.randrange(9)).replace(b"*", b"x")
            payload = self._payload()
            if subject.startswith((b"_", b"$")):  # messages between brokers, and the listing
                payload = self._mutator.json({"broker": 1, "mark": [1, 2], "partition": 0, "seq": 7})
            reply = b"_INBOX.asked.%d" % self._server.numbers if chance.random() < 0.5 else b""
            self._message(subject, sid, reply, b"", payload)

    def _payload(self) -> bytes:
        self._server.numbers += 1
        payload = b"<%d/%d>" % (self._server.seed, self._server.numbers)
        if self._mutator.hits("large"):  # some exceed the limit of a record, some that of a message
            payload += bytes(
                self._mutator.random.choice((60_000, 1_048_000, 1_048_560, 2_097_152, 2_097_200))
            )
        return payload

    def _pull(self, subject: bytes, inbox: bytes) -> None:
        chance = self._mutator.random
        sid = next((sid for sid, pattern in self._subscriptions.items() if pattern == inbox), b"")
        if not sid:
            return
        stream, consumer = subject.split(b".")[-2:]
        for _ in range(chance.randrange(MESSAGES_OF_A_PULL)):
            payload = self._payload()
            sequence = self._server.numbers
            number = self._sequences[consumer] = self._sequences.get(consumer, 0) + 1
            tokens = [b"$JS", b"ACK", stream, consumer, b"1", b"%d" % sequence, b"%d" % number]
            tokens += [b"%d" % (STORED_NS + sequence), b"5"]
            reply = self._mutator.ack_subject(tokens)
            prefix = b"$KV.b.k" if stream == b"KV_b" else b"s."
            block = self._mutator.block(b"NATS/1.0\r\nOwn: x\r\n\r\n" if chance.random() < 0.3 else b"")
            self._message(prefix + b"%d" % chance.randrange(9), sid, reply, block, payload)
        if self._mutator.hits("statuses"):
            status = chance.choice(STATUSES)
            pending = b"\r\nNats-Pending-Messages: %b\r\nNats-Pending-Bytes: %b" % (
                chance.choice(NUMBERS),
                chance.choice(NUMBERS),
            )
            self._message(inbox, sid, b"", b"NATS/1.0 %b%b\r\n\r\n" % (status, pending), b"")
        elif chance.random() < 0.5:
            self._message(inbox, sid, b"", b"NATS/1.0 408 Request Timeout\r\n\r\n", b"")

    def _message(self, subject: bytes, sid: bytes, reply: bytes, block: bytes, payload: bytes) -> None:
        head = [b"HMSG" if block else b"MSG", subject, sid]
        if reply:
            head.append(reply)
        if block:
            head.append(b"%d" % len(block))
        head.append(b"%d" % (len(block) + len(payload)))
        line = self._mutator.line(list(head))
        if line != b" ".join(head):
            self._is_damaged = True
        self._send(line + b"\r\n" + block + payload + b"\r\n")
        # A changed number names another message, and the broker acknowledges that one.
        if reply and not self._is_damaged and "tokens" not in self._mutator.kinds:
            self._server.acknowledged.delivered(reply, payload)

    def _chatter(self) -> None:
        mutator, chance = self._mutator, self._mutator.random
        if mutator.hits("errors"):
            self._send(b"-ERR %b\r\n" % chance.choice(ERRORS).encode("latin-1"))
        if mutator.hits("pongs"):
            self._send(
                chance.choice((b"PONG\r\n", b"+OK\r\n", b"ping\r\n", b"PING \t\r\n", b"\r\n", b"PANG\r\n"))
                * chance.choice((1, 50))
            )
        if mutator.hits("flood"):
            line = chance.choice(
                (b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'Invalid Subject'\r\n", b"INFO {}\r\n")
            )
            self._send(line * FLOOD)
        if mutator.hits("endless"):
            self._send(chance.choice((b"MSG ", b"INFO {", b"x", b"\r", b"\n")) * (LINE_BYTES_MAX // 4))

    def _send(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._server.operations += 1
        mutator = self._mutator
        damaged = mutator.bytes(data)
        if damaged != data:
            self._is_damaged = True
        if mutator.hits("cuts"):
            self._transport.write(
                bytes(self._to_drip) + damaged[: mutator.random.randrange(len(damaged) + 1)]
            )
            self._transport.close()
        elif self._to_drip or (len(damaged) < 2000 and mutator.hits("drip")):
            if not self._to_drip:
                asyncio.get_running_loop().call_soon(self._drip)
            self._to_drip += damaged
        else:
            self._transport.write(damaged)

    def _drip(self) -> None:
        if self._to_drip and not self._transport.is_closing():
            self._transport.write(bytes(self._to_drip[:1]))
            del self._to_drip[:1]
            asyncio.get_running_loop().call_later(0.0005, self._drip)
