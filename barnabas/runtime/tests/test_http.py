"""HTTP/1.1 requests in pieces, the bounds of what is kept of them, and responses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.runtime.http import Head, HttpError, RequestParser, encode_response, parse_head

HEAD_MAX, BODY_MAX = 100, 50


def parser() -> RequestParser:
    return RequestParser(HEAD_MAX, BODY_MAX)


@given(
    st.binary(max_size=BODY_MAX), st.lists(st.integers(1, 20), min_size=1), st.sampled_from(["\r\n", "\n"])
)
def test_a_request_in_pieces(body: bytes, pieces: list[int], end: str) -> None:
    lines = ["POST /topics?a=b HTTP/1.1", "Host:  h:1 ", f"Content-Length: {len(body)}"]
    data = end.join([*lines, "", ""]).encode() + body
    each, turn = parser(), 0
    is_whole = False
    while data:
        assert not is_whole
        size = pieces[turn % len(pieces)]
        is_whole, data, turn = each.feed(data[:size]), data[size:], turn + 1
    assert is_whole
    assert each.head == Head("POST", "/topics?a=b", {"host": "h:1", "content-length": str(len(body))})
    assert each.body == body


def test_what_follows_a_request_is_ignored() -> None:
    each = parser()
    assert each.feed(b"GET / HTTP/1.0\r\nContent-Length: 1\r\n\r\nab")
    assert each.body == b"a"
    each = RequestParser(HEAD_MAX)
    assert each.feed(b"GET / HTTP/1.0\r\nContent-Length: 1000\r\n\r\nab")
    assert each.body == b""


def test_the_head_is_there_before_the_body() -> None:
    each = parser()
    assert not each.feed(b"PUT /x HTTP/1.1\r\nContent-Length: 2\r\n\r\na")
    assert each.head is not None
    assert (each.head.method, each.head.target, bytes(each.body)) == ("PUT", "/x", b"a")
    assert each.feed(b"b")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 400),
        (b"\x16\x03\x01\xff\xff\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 51\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nContent-Length: 9999999999999999999999\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_MAX, 431),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_MAX + b"\r\n\r\n", 431),
    ],
)
def test_what_is_no_request(data: bytes, status: int) -> None:
    with pytest.raises(HttpError) as raised:
        parser().feed(data)
    assert raised.value.status == status


def test_a_head_of_the_maximum_is_taken() -> None:
    head = b"GET / HTTP/1.1\r\nX: "
    assert parser().feed(head + b"x" * (HEAD_MAX - len(head)) + b"\r\n\r\n")


def test_a_header_without_a_colon_is_a_name() -> None:
    assert parse_head(b"GET / HTTP/1.1\r\nX").headers == {"x": ""}


def test_responses() -> None:
    assert encode_response(200, "text/plain", b"body") == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"
    )
    assert encode_response(405, "text/plain", b"", "Allow: GET\r\n") == (
        b"HTTP/1.1 405 Method Not Allowed\r\nContent-Type: text/plain\r\nContent-Length: 0\r\nAllow: GET\r\n"
        b"Connection: close\r\n\r\n"
    )
    assert encode_response(413, "text/plain", b"").startswith(b"HTTP/1.1 413 Content Too Large\r\n")
