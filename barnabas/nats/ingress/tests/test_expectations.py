"""What publishers expect, beside a real JetStream: the same answers to the same messages."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.nats.ingress.dedup import DedupWindow, message_id
from barnabas.nats.ingress.expectations import concern_topic, expects, refusal, refusal_now
from barnabas.nats.pub_ack import ACK_ALL, NO_ACK, PubAckBytes
from compat_tests.harness.nats_server import NatsServer, default_executable

NAME = "ORDERS"


class Stream:
    """A stream of a real server, spoken to by requests one at a time."""

    def __init__(self, port: int, subject: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._file = self._socket.makefile("rb")
        self._subject = subject.encode()
        self._socket.sendall(
            b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB inbox 1\r\nPING\r\n'
        )
        while self._file.readline() != b"PONG\r\n":
            pass

    def request(self, subject: bytes, payload: bytes, header_block: bytes = b"") -> Any:
        total = len(header_block) + len(payload)
        self._socket.sendall(
            b"HPUB %b inbox %d %d\r\n%b%b\r\n" % (subject, len(header_block), total, header_block, payload)
            if header_block
            else b"PUB %b inbox %d\r\n%b\r\n" % (subject, total, payload)
        )
        while not (line := self._file.readline()).startswith(b"MSG "):
            assert line.startswith((b"INFO", b"PING")), line
        size = int(line.split()[-1])
        return json.loads(self._file.read(size + 2))

    def create(self, **config: Any) -> None:
        made = {"name": NAME, "subjects": [self._subject.decode() + ".>"], "storage": "memory", **config}
        answer = self.request(b"$JS.API.STREAM.CREATE." + NAME.encode(), json.dumps(made).encode())
        assert "error" not in answer, answer

    def publish(self, header_block: bytes) -> Any:
        return self.request(self._subject + b".a", b"x", header_block)

    def close(self) -> None:
        self.request(b"$JS.API.STREAM.DELETE." + NAME.encode(), b"")
        self._file.close()
        self._socket.close()


class Topic:
    """One partition, as the way from messages to records goes through these files."""

    def __init__(self) -> None:
        self.window = DedupWindow(120_000)
        self.answers = PubAckBytes(NAME, 0)
        self.end_offset = 0

    def publish(self, header_block: bytes) -> Any:
        answer = json.loads(self._publish(header_block))
        assert answer.pop("partition") == 0
        return answer

    def _publish(self, header_block: bytes) -> bytes:
        looks = expects(header_block)
        refused = refusal(header_block, NAME) if looks else None
        if refused:
            return self.answers.refused(*refused)
        identity = message_id(header_block)
        found = self.window.find(identity, 1) if identity else None
        if found is not None:
            return self.answers.duplicate(found)
        refused = (
            refusal_now(header_block, self.end_offset, self.window.last_id(self.end_offset))
            if looks
            else None
        )
        if refused:
            return self.answers.refused(*refused)
        if identity:
            self.window.open(identity, 0)
        self.end_offset += 1
        self.window.appended(self.end_offset - 1, self.end_offset, 1)
        return self.answers.stored(self.end_offset - 1)


def block(*pairs: tuple[bytes, bytes]) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in pairs) + b"\r\n"


NUMBERS = [b"0", b"1", b"2", b"3", b"007", b"-1", b"+1", b"abc", b"", b"99999999999999999999999", b" 2"]
VALUES = {
    b"Nats-Msg-Id": [b"a", b"b", b"c", b"", b"  a", b"a ", b"\xff\xfe", b"x" * 300],
    b"Nats-Expected-Stream": [NAME.encode(), b"orders", b"", b" " + NAME.encode()],
    b"Nats-Expected-Last-Sequence": NUMBERS,
    b"Nats-Expected-Last-Msg-Id": [b"a", b"b", b"c", b"", b"x" * 300],
    b"Nats-Rollup": [b"sub", b"all", b"else", b""],
    b"Nats-TTL": [
        b"5",
        b"0",
        b"-1",
        b"1s",
        b"1h2m0.5s",
        b"500ms",
        b"0.5s",
        b"1.5s",
        b"never",
        b"Never",
        b"abc",
        b"",
        b"1d",
    ],
    b"Nats-Incr": [b"1", b"+1", b""],
    b"Nats-Batch-Id": [b"b", b""],
    b"Nats-Schedule": [b"@every 1s", b""],
    b"Nats-Scheduler": [b"x", b""],
    b"Nats-Schedule-Next": [b"purge", b""],
    b"nats-ttl": [b"5"],
    b"Nats-Expected-Something": [b"5"],
    b"X": [b"y"],
}
# What older servers take for ordinary headers.
SINCE = {
    b"Nats-TTL": (2, 11),
    **dict.fromkeys(
        (b"Nats-Incr", b"Nats-Batch-Id", b"Nats-Schedule", b"Nats-Scheduler", b"Nats-Schedule-Next"), (2, 12)
    ),
}
# Which of two refusals comes first; and what differs on purpose (see ingress/expectations.py).
APART = [
    {b"Nats-Msg-Id", b"Nats-Expected-Last-Sequence"},
    *(
        {each, b"Nats-Expected-Last-Sequence"}
        for each in (b"Nats-Schedule", b"Nats-Scheduler", b"Nats-Schedule-Next")
    ),
]


def is_known(name: bytes, server: NatsServer) -> bool:
    return server.version >= SINCE.get(name, ())


def together(names: set[bytes]) -> bool:
    return not any(apart <= names for apart in APART)


@pytest.fixture
def stream(shared_nats_server: NatsServer) -> Any:
    made = Stream(shared_nats_server.port, "expectations")
    made.create()
    yield made
    made.close()


@pytest.mark.sockets
@pytest.mark.every_nats_server
def test_each_header_alone_and_by_two_is_answered_as_by_jetstream(
    stream: Stream, shared_nats_server: NatsServer
) -> None:
    topic = Topic()
    values_of = {name: values for name, values in VALUES.items() if is_known(name, shared_nats_server)}

    def compare(*pairs: tuple[bytes, bytes]) -> None:
        theirs, ours = stream.publish(block(*pairs)), topic.publish(block(*pairs))
        if b"x" * 300 in dict(pairs).values() or "xxx" in str(theirs):  # its text would be long
            theirs, ours = [
                {**each, "error": each.get("error", {}).get("err_code")} for each in (theirs, ours)
            ]
        assert ours == theirs, pairs

    compare((b"Nats-Msg-Id", b"a"))
    for name, values in values_of.items():
        for value in values:
            compare((name, value))
            compare((name, value))
    for first, second in itertools.permutations(values_of, 2):
        if together({first, second}):
            compare((first, values_of[first][0]), (second, values_of[second][0]))


def _pair(name: bytes) -> st.SearchStrategy[tuple[bytes, bytes]]:
    # A time to live that is none is found at another moment than one that is not allowed.
    return st.tuples(
        st.just(name), st.sampled_from(VALUES[name][:1] if name == b"Nats-TTL" else VALUES[name])
    )


_MESSAGES = st.lists(
    st.lists(st.sampled_from(list(VALUES)).flatmap(_pair), max_size=3).filter(
        lambda pairs: together({name for name, _ in pairs})
    ),
    min_size=6,
    max_size=12,
)


@pytest.mark.sockets
@settings(max_examples=25)
@given(messages=_MESSAGES)
def test_any_messages_are_answered_as_by_jetstream(
    shared_nats_servers: Callable[[Path], NatsServer], messages: list[list[tuple[bytes, bytes]]]
) -> None:
    server = shared_nats_servers(default_executable())
    stream = Stream(server.port, "expected")
    stream.create()
    try:
        topic = Topic()
        for several in messages:
            pairs = [pair for pair in several if is_known(pair[0], server)]
            theirs, ours = stream.publish(block(*pairs)), topic.publish(block(*pairs))
            codes = [each.get("error", {}).get("err_code") for each in (theirs, ours)]
            assert codes[0] == codes[1], pairs
            assert (ours["seq"], ours.get("duplicate")) == (theirs["seq"], theirs.get("duplicate")), pairs
    finally:
        stream.close()


def test_a_duplicate_is_answered_before_its_expectations_are_checked() -> None:
    topic = Topic()
    topic.publish(block())
    again = block((b"Nats-Msg-Id", b"a"), (b"Nats-Expected-Last-Sequence", b"1"))
    assert topic.publish(again) == {"stream": NAME, "seq": 2}
    assert topic.publish(again) == {"stream": NAME, "seq": 2, "duplicate": True}


@pytest.mark.parametrize(
    ("pairs", "number"),
    [
        ([(b"Nats-Expected-Last-Subject-Sequence", b"0")], 10003),
        ([(b"Nats-Expected-Last-Subject-Sequence-Subject", b"a.b")], 10193),
        (
            [
                (b"Nats-Expected-Last-Subject-Sequence", b"0"),
                (b"Nats-Expected-Last-Subject-Sequence-Subject", b"a"),
            ],
            10003,
        ),
    ],
)
def test_sequences_by_subject_are_refused(pairs: list[tuple[bytes, bytes]], number: int) -> None:
    assert Topic().publish(block(*pairs))["error"]["err_code"] == number


def test_a_compacted_topic_keyed_by_subject_accepts_rollups() -> None:
    def refused(value: bytes) -> int | None:
        found = refusal_now(block((b"Nats-Rollup", value)), 0, b"", keeps_last_by_subject=True)
        return None if found is None else found.number

    assert [refused(value) for value in (b"sub", b"SUB", b"all", b"bogus")] == [None, None, 10111, 10111]


@pytest.mark.parametrize(
    ("mode", "level", "reply", "pairs", "expected"),
    [
        ("header", ACK_ALL, b"r", [], True),
        ("header", NO_ACK, b"r", [], False),  # another responder's answer
        ("header", NO_ACK, b"", [], True),
        ("off", NO_ACK, b"", [], False),
        ("reply", ACK_ALL, b"r", [], True),
        ("reply", NO_ACK, b"$JS.ACK.a.b", [], False),
        (
            "header",
            NO_ACK,
            b"",
            [(b"Nats-Stream", b"S"), (b"Nats-Subject", b"a"), (b"Nats-Sequence", b"1")],
            False,
        ),
        ("header", ACK_ALL, b"r", [(b"Nats-Stream", b"S"), (b"Nats-Sequence", b"1")], True),
    ],
)
def test_which_expectations_concern_the_topic(
    mode: str, level: int, reply: bytes, pairs: list[tuple[bytes, bytes]], expected: bool
) -> None:
    assert concern_topic(mode, level, reply, block(*pairs)) is expected


@given(st.sampled_from(sorted(VALUES)), st.binary(max_size=20))
def test_any_bytes_are_refused_or_taken(name: bytes, value: bytes) -> None:
    header_block = block((name, value))
    for refused in (refusal(header_block, NAME), refusal_now(header_block, 3, b"a")):
        assert refused is None or json.loads(PubAckBytes(NAME, 0).refused(*refused))["seq"] == 0
        assert refused is None or expects(header_block)
