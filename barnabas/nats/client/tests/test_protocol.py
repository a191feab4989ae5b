"""The parser against a slow and obvious one, with streams cut anywhere, damaged and random; and what the encoders write."""

from __future__ import annotations

import json
import re
import tracemalloc
from typing import Any, TypeAlias

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barnabas.nats.client.protocol import (
    CONTROL_LINES_MAX,
    KNOWN_LINES_MAX,
    LINE_BYTES_MAX,
    NOT_REMEMBERED,
    NatsParser,
    NatsProtocolError,
    ServerInfo,
    connect_line,
    pub,
    read_info,
    sub_line,
    unsub_line,
)

Event: TypeAlias = tuple[Any, ...]
SIZE_MAX = 5000
SINKS = (b"1", b"2", b"30")


class Heard:
    """A handler and three sinks that record their calls."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.parser = NatsParser(self)
        self.parser.size_max = SIZE_MAX
        for name in SINKS:
            self.listen(name)

    def listen(self, name: bytes) -> None:
        self.parser.add_sink(name, lambda *message: self.events.append(("message", name, *message)))

    def on_info(self, info: ServerInfo) -> None:
        self.events.append(("info", info))

    def on_ping(self) -> None:
        self.events.append(("ping",))

    def on_pong(self) -> None:
        self.events.append(("pong",))

    def on_ok(self) -> None:
        self.events.append(("ok",))

    def on_error(self, text: str) -> None:
        self.events.append(("error", text))

    def on_sink_error(self, subject: bytes, error: Exception) -> None:
        self.events.append(("sink error", subject, str(error)))

    def read(self, pieces: list[bytes], views: bool = False) -> tuple[list[Event], bool]:
        """All events, and whether the stream was understood to its end."""
        try:
            for piece in pieces:
                self.parser.feed(memoryview(bytearray(piece)) if views else piece)
        except NatsProtocolError:
            return self.events, False
        return self.events, True


def model(stream: bytes) -> tuple[list[Event], bool]:
    """What a stream means, read as the protocol's description says, at leisure."""
    events: list[Event] = []
    while True:
        line, end, rest = stream.partition(b"\r\n")
        if not end:
            return events, len(line) <= LINE_BYTES_MAX
        verb, *fields = re.findall(rb"[^ \t]+", line) if line[:1].strip(b" \t") else [b""]
        verb = verb.upper()
        if verb in (b"MSG", b"HMSG") and line[len(verb) : len(verb) + 1] in (b" ", b"\t"):
            sizes = fields[-1 - (verb == b"HMSG") :]
            names = fields[: len(fields) - len(sizes)]
            if len(names) not in (2, 3) or not all(size.isdigit() and len(size) <= 10 for size in sizes):
                return events, False
            total, header = int(sizes[-1]), int(sizes[0]) if len(sizes) == 2 else 0
            if total > SIZE_MAX or header > total:
                return events, False
            if len(rest) < total + 2:
                return events, True
            if rest[total : total + 2] != b"\r\n":
                return events, False
            reply = names[2] if len(names) == 3 else b""
            if names[1] in SINKS:
                events.append(("message", names[1], names[0], reply, rest[:header], rest[header:total]))
            rest = rest[total + 2 :]
        elif verb == b"PING" and not fields:
            events.append(("ping",))
        elif verb == b"PONG" and not fields:
            events.append(("pong",))
        elif verb == b"+OK" and not fields:
            events.append(("ok",))
        elif verb == b"-ERR":
            events.append(("error", line[4:].strip().strip(b"'").decode(errors="replace")))
        elif verb == b"INFO":
            try:
                events.append(("info", read_info(line)))
            except NatsProtocolError:
                return events, False
        else:
            return events, False
        stream = rest


# -- streams

subjects = st.sampled_from([b"a", b"orders.eu", b"x.y.z", b"\xc3\xa9.1"]) | st.binary(
    min_size=1, max_size=8
).filter(lambda word: not {*b" \t\n"} & {*word})
replies = st.just(b"") | subjects
payloads = st.binary(max_size=60) | st.sampled_from(
    [b"\r\n", b"MSG a 1 3\r\nabc\r\n", b"PING\r\n", b"x" * 3000]
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    subject, reply, payload = draw(subjects), draw(replies), draw(payloads)
    name = draw(st.sampled_from((*SINKS, b"99")))
    words = b" ".join(word for word in (subject, name, reply) if word)
    header = draw(st.just(b"") | st.just(b"NATS/1.0\r\nA: b\r\n\r\n") | st.binary(min_size=1, max_size=20))
    if header:
        return b"HMSG %b %d %d\r\n%b%b\r\n" % (
            words,
            len(header),
            len(header) + len(payload),
            header,
            payload,
        )
    return b"MSG %b %d\r\n%b\r\n" % (words, len(payload), payload)


controls = st.sampled_from(
    [
        b"PING\r\n",
        b"PONG\r\n",
        b"+OK\r\n",
        b"-ERR 'Slow Consumer'\r\n",
        b'-ERR Permissions Violation for Publish to "a"\r\n',
        b'INFO {"server_id":"S","max_payload":77,"connect_urls":["h:1"],"new":[{}]}\r\n',
        b"ping\r\n",
        b"msg\ta  1\t2\r\nhi\r\n",
    ]
)
streams = st.lists(messages() | controls, max_size=20).map(b"".join)


@st.composite
def cut(draw: st.DrawFn, source: st.SearchStrategy[bytes] = streams) -> list[bytes]:
    stream = draw(source)
    places = sorted(draw(st.sets(st.integers(0, len(stream)), max_size=12)))
    return [stream[start:stop] for start, stop in zip([0, *places], [*places, len(stream)], strict=True)]


damaged = st.tuples(streams, st.integers(0, 10_000), st.binary(max_size=3)).map(
    lambda drawn: (
        drawn[0][: drawn[1] % (len(drawn[0]) + 1)] + drawn[2] + drawn[0][drawn[1] % (len(drawn[0]) + 1) + 1 :]
    )
)


@given(cut(), st.booleans())
def test_a_stream_cut_anywhere_means_what_it_says(pieces: list[bytes], views: bool) -> None:
    expected = model(b"".join(pieces))
    assert expected[1]
    heard = Heard()
    assert heard.read(pieces, views) == expected
    # and again, now that its lines are known
    heard.events.clear()
    assert heard.read(pieces, views) == expected


@given(cut(damaged | st.binary(max_size=300)))
@example([b"MSG\na 1 0\r\n\r\n"])
@example([b"MSG  1 2\r\nhi\r\n"])
def test_invalid_input_is_refused_where_it_begins(pieces: list[bytes]) -> None:
    assert Heard().read(pieces) == model(b"".join(pieces))


def test_byte_by_byte() -> None:
    stream = b"PING\r\nMSG a 1 5\r\nhello\r\nHMSG a 2 r 4 6\r\nABCDxy\r\nPONG\r\n"
    heard = Heard()
    assert heard.read([stream[at : at + 1] for at in range(len(stream))]) == model(stream)
    assert len(heard.events) == 4
    assert heard.parser.messages == 2


@pytest.mark.parametrize("byte", [b"\r", b"\x0b", b"\x0c", b"\x1c", b"\x85", b"\0"])
@pytest.mark.parametrize(
    "line", [b"MSG a%b2 1 4\r\nPING", b"MSG a 1 r%b2%b2 4\r\nPING", b"HMSG a%b2%b2 1 r 0 4\r\nPING"]
)
def test_no_byte_of_a_subject_makes_a_message_another_ones_or_ends_the_connection(
    line: bytes, byte: bytes
) -> None:
    heard = Heard()
    stream = line.replace(b"%b", byte) + b"\r\nPONG\r\n"
    assert heard.read([stream]) == model(stream)
    assert [event[:2] for event in heard.events] == [("message", b"1"), ("pong",)]


@pytest.mark.parametrize(
    "stream",
    [
        b"MSG a 1 5001\r\n",
        b"MSG a 1 99999999999\r\n",
        b"MSG a 1 -1\r\n",
        b"MSG a 1 +1\r\nx\r\n",
        b"MSG a 1 1_0\r\n0123456789\r\n",
        b"MSG a 1\r\n",
        b"MSG a 1 b c 3\r\nabc\r\n",
        b"HMSG a 1 3\r\nabc\r\n",
        b"HMSG a 1 4 3\r\nabc\r\n",
        b"MSG a 1 3\r\nabcd\r\n",
        b"MSG a 1 3\r\nab\r\n\r\n",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\r\n",
        b"PINGS\r\n",
        b"INFO {\r\n",
        b'INFO {"max_payload":"much"}\r\n',
        b"INFO " + b"[" * 60_000 + b"\r\n",
        b"INFO \xff\r\n",
        b"-ERR" + b" " * LINE_BYTES_MAX + b"\r\n",
        b"x" * (LINE_BYTES_MAX + 1),
    ],
)
def test_refused(stream: bytes) -> None:
    assert Heard().read([stream]) == ([], False)
    assert Heard().read([stream[at : at + 1000] for at in range(0, len(stream), 1000)]) == ([], False)


def test_after_reset_the_next_connection_is_read_from_its_beginning() -> None:
    heard = Heard()
    assert heard.read([b"MSG a 1 500\r\nabc"]) == ([], True)
    heard.parser.reset()
    assert heard.read([b"PING\r\n"]) == ([("ping",)], True)


def test_a_sink_may_end_its_subscription_and_others_during_feed() -> None:
    heard = Heard()

    def once(*message: bytes) -> None:
        heard.events.append(message)
        heard.parser.remove_sink(b"1")
        heard.parser.remove_sink(b"2")
        heard.parser.add_sink(b"3", lambda *other: heard.events.append(("third", *other)))

    three = b"MSG a 1 1\r\nx\r\nMSG a 2 1\r\ny\r\nMSG a 3 1\r\nz\r\n"
    heard.parser.add_sink(b"1", lambda *message: None)
    heard.read([three])  # their lines are known now
    heard.events.clear()
    heard.parser.add_sink(b"1", once)
    assert heard.read([three + three]) == (
        [(b"a", b"", b"", b"x"), ("third", b"a", b"", b"", b"z"), ("third", b"a", b"", b"", b"z")],
        True,
    )


def test_a_sink_that_fails_loses_only_its_message() -> None:
    heard = Heard()

    def fail(*message: bytes) -> None:
        raise KeyError("no")

    heard.parser.add_sink(b"1", fail)
    assert heard.read([b"MSG s 1 1\r\nx\r\nMSG a 2 1\r\ny\r\nPING\r\n"]) == (
        [("sink error", b"s", "'no'"), ("message", b"2", b"a", b"", b"", b"y"), ("ping",)],
        True,
    )


def test_a_turn_parses_a_bounded_number_of_lines() -> None:
    heard = Heard()
    rest = b"MSG a 1 1\r\nx\r\nMSG a 1 5\r\nab"
    heard.parser.feed(b"PING\r\n" * 2500 + rest)
    assert (len(heard.events), heard.parser.is_behind) == (CONTROL_LINES_MAX, True)
    heard.parser.feed(b"")
    assert (len(heard.events), heard.parser.is_behind) == (2 * CONTROL_LINES_MAX, True)
    heard.parser.feed(b"")
    assert (len(heard.events), heard.parser.is_behind) == (2501, False)
    heard.parser.feed(b"cde\r\n" + b"PONG\r\n" * CONTROL_LINES_MAX)
    assert heard.events[2500:2502] == [
        ("message", b"1", b"a", b"", b"", b"x"),
        ("message", b"1", b"a", b"", b"", b"abcde"),
    ]
    assert (len(heard.events), heard.parser.is_behind) == (2502 + CONTROL_LINES_MAX, False)
    heard.parser.feed(b"PING\r\n" * 2500)
    heard.parser.reset()
    assert not heard.parser.is_behind


def test_known_lines_are_bounded() -> None:
    heard = Heard()
    for number in range(KNOWN_LINES_MAX + 100):
        heard.parser.feed(b"MSG subject.%d 1 0\r\n\r\n" % number)
        heard.parser.feed(b"MSG subject 1 reply.%d 0\r\n\r\n" % number)
    assert len(heard.parser._known) <= KNOWN_LINES_MAX
    assert len(heard.events) == 2 * (KNOWN_LINES_MAX + 100)


@pytest.mark.slow
def test_lines_that_never_repeat_are_not_kept_for_a_while() -> None:
    heard = Heard()
    heard.parser.add_sink(b"1", lambda *message: None)
    unique = iter(range(10_000_000))

    def feed_unique(count: int) -> None:
        for _ in range(count // 1000):
            heard.parser.feed(b"".join(b"MSG subject.%d 1 0\r\n\r\n" % next(unique) for _ in range(1000)))

    feed_unique(KNOWN_LINES_MAX + 2000)
    heard.parser.feed(b"MSG again 1 0\r\n\r\n" * 2)
    assert b"MSG again 1 0" not in heard.parser._known
    feed_unique(NOT_REMEMBERED)
    heard.parser.feed(b"MSG again 1 0\r\n\r\n" * 2)
    assert b"MSG again 1 0" in heard.parser._known
    # those that come again and again stay welcome beside others
    for _ in range(3 * KNOWN_LINES_MAX // 1000):
        heard.parser.feed(b"MSG again 1 0\r\n\r\n" * 3000)
        feed_unique(1000)
    heard.parser.feed(b"MSG again 1 0\r\n\r\n")
    assert b"MSG again 1 0" in heard.parser._known


def test_a_large_payload_in_pieces_takes_memory_as_it_arrives_and_few_copies() -> None:
    size = 8 * 1024 * 1024
    sizes: list[int] = []
    heard = Heard()
    heard.parser.size_max = size
    heard.parser.add_sink(b"1", lambda subject, reply, header_block, payload: sizes.append(len(payload)))
    piece = b"x" * 65536
    tracemalloc.start()
    try:
        heard.parser.feed(b"MSG a 1 %d\r\n" % size)
        assert tracemalloc.get_traced_memory()[0] < 100_000
        for _ in range(size // len(piece) - 1):
            heard.parser.feed(piece)
            # the buffer itself grows; nothing of its size is made beside it
        assert tracemalloc.get_traced_memory()[1] < 2.5 * size
        heard.parser.feed(piece + b"\r\n")
    finally:
        tracemalloc.stop()
    assert sizes == [size]
    assert heard.parser._held == b""


@pytest.mark.parametrize("subject", [b"", b"a b", b"a\r\nPUB b 0", b"a\n", b" a", b"a\t"])
def test_an_invalid_subject_is_refused(subject: bytes) -> None:
    with pytest.raises(ValueError, match="not a NATS subject"):
        pub(subject, b"")
    with pytest.raises(ValueError, match="not a NATS subject"):
        sub_line(subject, b"1")
    if subject:
        with pytest.raises(ValueError, match="not a NATS subject"):
            pub(b"a", b"", reply=subject)
        with pytest.raises(ValueError, match="not a NATS subject"):
            sub_line(b"a", b"1", subject)


def test_lines() -> None:
    assert pub(b"a.b", b"hello") == b"PUB a.b 5\r\nhello\r\n"
    assert pub(b"a.b", b"", b"r") == b"PUB a.b r 0\r\n\r\n"
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    assert pub(b"a", b"xyz", headers=block) == b"HPUB a 18 21\r\n" + block + b"xyz\r\n"
    assert pub(b"a", b"xyz", b"r", block) == b"HPUB a r 18 21\r\n" + block + b"xyz\r\n"
    assert sub_line(b"a.*", b"7") == b"SUB a.* 7\r\n"
    assert sub_line(b"a.>", b"7", b"group") == b"SUB a.> group 7\r\n"
    assert unsub_line(b"7") == b"UNSUB 7\r\n"
    line = connect_line({"verbose": False, "name": 'a"b'})
    assert line.startswith(b"CONNECT ")
    assert line.endswith(b"}\r\n")
    assert json.loads(line[8:]) == {"verbose": False, "name": 'a"b'}
