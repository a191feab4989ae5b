"""Subjects and headers made of records: valid in NATS, and reversible."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.nats.binding.subjects import is_valid_subject
from barnabas.nats.binding.templates import is_internal_subject, parse_publish_template
from barnabas.nats.client.headers import parse_headers
from barnabas.nats.client.protocol import NatsParser, pub
from barnabas.nats.egress.message import MessageHeaders
from barnabas.nats.egress.subject import Unpublishable, compile_subject, escape_value
from barnabas.wire.records import Record


def unescape_subject(subject: bytes) -> bytes:
    """The value that `escape_value` has escaped."""
    return unquote_to_bytes(subject)


def unescape_header(value: bytes) -> tuple[str, bytes | None]:
    """The name and value of the record's header, from the value of a Kafka-Header."""
    name, equals, rest = value.partition(b"=")
    return unquote_to_bytes(name).decode(errors="replace"), unquote_to_bytes(rest) if equals else None


# Bytes that mean something to NATS, more often than chance has them.
AWKWARD = st.one_of(
    st.binary(min_size=1, max_size=30),
    st.lists(
        st.sampled_from([b".", b"*", b">", b" ", b"%", b"a", b"$", b"_INBOX", b"\xc3\xa4", b"\xff"]),
        min_size=1,
    ).map(b"".join),
)


@given(AWKWARD)
def test_values_survive_a_round_trip_through_a_subject(value: bytes) -> None:
    escaped = escape_value(value)
    assert is_valid_subject(escaped)
    assert unescape_subject(escaped) == value
    escaped.decode()  # clients show subjects as text


@given(AWKWARD, AWKWARD)
def test_no_two_values_share_a_subject(first: bytes, second: bytes) -> None:
    assert (escape_value(first) == escape_value(second)) == (first == second)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"orders.eu.1", b"orders.eu.1"),
        ("größe".encode(), "größe".encode()),
        (b"two words", b"two%20words"),
        (b".a..b.", b"%2Ea.%2Eb%2E"),
        (b"100%", b"100%25"),
        (b"\xffa", b"%FFa"),
        (b"*.>", b"%2A.%3E"),
    ],
)
def test_how_values_are_escaped(value: bytes, expected: bytes) -> None:
    assert escape_value(value) == expected


@given(AWKWARD)
def test_no_record_is_published_to_a_subject_of_the_server(key: bytes) -> None:
    for text in ("{key}", "_{key}.x", "{header:H}"):
        subject = compile_subject(parse_publish_template(text), "t")(0, Record(0, 0, key, b"", [("H", key)]))
        assert is_valid_subject(subject)
        assert not is_internal_subject(subject)


def test_a_template_takes_the_last_header_of_a_name() -> None:
    subject_of = compile_subject(parse_publish_template("out.{topic}.{partition}.{header:Region}"), "t")
    record = Record(0, 0, None, b"", [("Region", b"eu"), ("Region", b"us"), ("region", b"xx")])
    assert subject_of(3, record) == b"out.t.3.us"


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (Record(0, 0, None, b""), "no key"),
        (Record(0, 0, b"", b""), "an empty key"),
        (Record(0, 0, b"x" * 4000, b""), "4002 bytes"),
    ],
)
def test_records_without_a_subject_have_a_reason(record: Record, why: str) -> None:
    with pytest.raises(Unpublishable, match=why):
        compile_subject(parse_publish_template("a.{key}"), "t")(0, record)


NAMES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["Nats-Msg-Id", "a:b", "Kafka-Header", "X", "nats-rollup", "nats.subject"]),
)
HEADERS = st.lists(
    st.tuples(
        NAMES, st.one_of(st.none(), st.binary(max_size=12), st.sampled_from([b" a", b"a\r\nb: c", b""]))
    )
)


@given(HEADERS)
def test_headers_survive_a_round_trip_in_order(headers: list[tuple[str, bytes | None]]) -> None:
    headers = [each for each in headers if each[0] != "Barnabas-Hops"]
    added: list[tuple[str, bytes | None]] = [
        ("nats.subject", b"a.b"),
        ("nats.stream", b"S"),
        ("nats.seq", b"1"),
    ]
    block = MessageHeaders("c", "t", bytes(16), 7).block(Record(42, 0, None, b"", added + headers))
    pairs = parse_headers(block)
    assert pairs[-2:] == [(b"Barnabas-Hops", b"c/t"), (b"Nats-Msg-Id", b"AAAAAAAAAAAAAAAAAAAAAA/7/42")]
    back = [
        unescape_header(value) if name == b"Kafka-Header" else (name.decode(), value)
        for name, value in pairs[:-2]
    ]
    assert back == headers
    assert sum(name.lower() == b"nats-msg-id" for name, _ in pairs) == 1


@given(AWKWARD, HEADERS, st.binary(max_size=20))
def test_hostile_headers_stay_within_one_message(
    key: bytes, headers: list[tuple[str, bytes | None]], value: bytes
) -> None:
    """Nothing in a record can end the line or the headers of its message."""
    record = Record(1, 0, key, value, headers)
    subject = compile_subject(parse_publish_template("a.{key}"), "t")(0, record)
    block = MessageHeaders("c", "t", bytes(16), 0).block(record)
    line = pub(subject, value, headers=block).replace(b"HPUB " + subject, b"HMSG " + subject + b" 1", 1)
    found: list[tuple[bytes, bytes, bytes, bytes]] = []
    parser = NatsParser(None)  # type: ignore[arg-type]
    parser.add_sink(b"1", lambda *message: found.append(message))
    parser.feed(line)
    assert found == [(subject, b"", block, value)]
