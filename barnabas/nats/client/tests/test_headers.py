"""Header blocks: what was written is read, and what is no block is refused."""

from __future__ import annotations

import asyncio

import nats
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barnabas.nats.client.headers import (
    MalformedHeaders,
    find_header,
    parse_headers,
    read_status,
)
from barnabas.nats.tests.header_blocks import format_headers
from compat_tests.harness.nats_server import NatsServer

no_line_end = st.binary(max_size=40).filter(lambda text: b"\r\n" not in text)
names = no_line_end.filter(lambda name: b":" not in name)
pairs = st.lists(st.tuples(names, no_line_end), max_size=8)


@given(pairs)
@example([(b"A", b"1"), (b"a", b"2"), (b"A", b""), (b"A", b"1")])
@example([(b"binary", bytes(range(256)).replace(b"\r\n", b""))])
@example([(b"blanks", b"  two in front, three behind   "), (b"tab", b"\tx")])
@example([(b"\r", b"\r"), (b"\n", b"\n"), (b"", b"")])
def test_pairs_are_read_as_written(written: list[tuple[bytes, bytes]]) -> None:
    block = format_headers(written)
    assert parse_headers(block) == written
    assert read_status(block) == b""


@given(pairs, names)
def test_the_first_of_a_name_is_found(written: list[tuple[bytes, bytes]], wanted: bytes) -> None:
    for name in [wanted, *(name for name, _ in written)]:
        expected = next((value for other, value in written if other == name), None)
        assert find_header(format_headers(written), name) == expected


def test_names_differ_by_case() -> None:
    block = b"NATS/1.0\r\nkafka-ack: no\r\nKafka-Ack: all\r\n\r\n"
    assert find_header(block, b"Kafka-Ack") == b"all"
    assert find_header(block, b"KAFKA-ACK") is None


def test_one_space_belongs_to_the_colon() -> None:
    block = b"NATS/1.0\r\na:1\r\nb: 1\r\nc:  1\r\nd:\r\ne: \r\nf: a:b: c\r\n\r\n"
    assert parse_headers(block) == [
        (b"a", b"1"),
        (b"b", b"1"),
        (b"c", b" 1"),
        (b"d", b""),
        (b"e", b""),
        (b"f", b"a:b: c"),
    ]


def test_a_status_stands_in_the_first_line() -> None:
    assert read_status(b"NATS/1.0 503\r\n\r\n") == b"503"
    block = b"NATS/1.0 100 FlowControl Request\r\nNats-Pending: 3\r\n\r\n"
    assert read_status(block) == b"100 FlowControl Request"
    assert parse_headers(block) == [(b"Nats-Pending", b"3")]
    assert format_headers([(b"Nats-Pending", b"3")], b"100 FlowControl Request") == block


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"NATS/1.0",
        b"NATS/1.0\r\n",
        b"NATS/2.0\r\na: 1\r\n\r\n",
        b"NATS/1.0\r\na: 1\r\n",
        b"NATS/1.0\r\na: 1\n\n",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\na: 1\r\n\r\nb: 2\r\n\r\n",
        b"NATS/1.0\r\na: 1\r\n folded\r\n\r\n",
    ],
)
def test_malformed_blocks_are_refused(block: bytes) -> None:
    with pytest.raises(MalformedHeaders):
        parse_headers(block)


@given(st.binary(max_size=200))
def test_any_bytes_are_pairs_or_malformed(text: bytes) -> None:
    for block in (text, b"NATS/1.0" + text + b"\r\n\r\n"):
        find_header(block, b"a")
        try:
            read = parse_headers(block)
        except MalformedHeaders:
            continue
        assert parse_headers(format_headers(read)) == read


@pytest.mark.parametrize(
    "pair", [(b"a:b", b""), (b"a\r\nb", b""), (b"a", b"1\r\nb: 2"), (b"a", b"\r\n\r\n"), (b"a", b"\r\n")]
)
def test_pairs_that_would_be_read_differently_are_not_written(pair: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match=r"a header can't hold|the name of a header can't hold"):
        format_headers([pair])


BLOCKS = [
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\na:1\r\nA: 1\r\na:  1 \r\nempty:\r\n\r\n",
    b"NATS/1.0\r\nbinary: " + bytes(range(14, 256)) + b"\r\n\r\n",
    b"NATS/1.0 503 No Responders\r\n\r\n",
    b"NATS/1.0\r\nno colon\r\n\r\n",
    b"NATS/1.0\r\nnot: ended",
    b"anything",
]


async def connect_plainly(server: NatsServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\nSUB blocks 1\r\nPING\r\n')
    while not (await reader.readline()).startswith(b"PONG"):
        pass
    return reader, writer


def hpub(block: bytes) -> bytes:
    return b"HPUB blocks %d %d\r\n%bx\r\n" % (len(block), len(block) + 1, block)


async def read_block(reader: asyncio.StreamReader) -> bytes:
    words = (await asyncio.wait_for(reader.readline(), 60)).split()
    assert words[0] == b"HMSG", words
    return (await reader.readexactly(int(words[-1]) + 2))[: int(words[-2])]


@pytest.mark.sockets
def test_servers_pass_blocks_on_as_they_are(shared_nats_server: NatsServer) -> None:
    async def exchange() -> list[bytes]:
        reader, writer = await connect_plainly(shared_nats_server)
        writer.writelines(map(hpub, BLOCKS))
        received = [await read_block(reader) for _ in BLOCKS]
        writer.close()
        return received

    assert asyncio.run(exchange()) == BLOCKS


@pytest.mark.sockets
def test_another_client_writes_what_is_read_and_reads_what_is_written(shared_nats_server: NatsServer) -> None:
    headers = {"Content-Type": "text/plain", "x": "größe", "X": "a: b", "Long": "y" * 300}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def exchange() -> tuple[bytes, object]:
        reader, writer = await connect_plainly(shared_nats_server)
        client = await nats.connect(shared_nats_server.url)
        await client.publish("blocks", b"", headers=headers)
        block = await read_block(reader)
        subscription = await client.subscribe("blocks")
        await client.flush()  # lets PING overtake what waits:
        await client.flush()  # ... so once more
        writer.write(hpub(format_headers(pairs)))
        read = (await subscription.next_msg(5)).headers
        writer.close()
        await client.close()
        return block, read

    block, read = asyncio.run(exchange())
    assert parse_headers(block) == pairs
    assert read == headers
