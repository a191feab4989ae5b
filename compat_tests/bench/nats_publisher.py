"""A publisher with little CPU: a raw socket that sends prepared PUB and HPUB lines.

`python -m compat_tests.bench.nats_publisher HOST PORT PREFIX COUNT HEADERS ACKS` prints "ready" and then reads numbers, one
a line: the total number of messages that it may have sent. When all are sent and, with ACKS, answered, it prints the
number of answers, and ends with its standard input. It is a process of its own, so that its CPU is counted separately.

Its caller keeps the messages in flight far below the 64 MiB at which nats-server disconnects a slow consumer.
"""

from __future__ import annotations

import os
import select
import socket
import sys

SUBJECTS = 1000
PAYLOAD_BYTES = 256
RENDERED = 20_000  # different messages; then they come again
IDS = 10_000
_PIECE = 200  # messages in one send
_HEADERS = b"NATS/1.0\r\nContent-Type: application/json\r\nTrace-Id: 4bf92f3577b34da6-%07d\r\n\r\n"
_INBOX = b"_INBOX.bench"


def payload(number: int) -> bytes:
    """256 B of JSON with an id."""
    text = b'{"id":"c-%d","amount":12.5,"text":"' % (number % IDS)
    return text + b"x" * (PAYLOAD_BYTES - len(text) - 2) + b'"}'


def message(prefix: bytes, number: int, *, headers: bool, reply: bytes = b"") -> bytes:
    """The bytes that publish message `number`."""
    subject = b"%b.%d" % (prefix, number % SUBJECTS)
    if reply:
        subject += b" " + reply
    body = payload(number)
    if not headers:
        return b"PUB %b %d\r\n%b\r\n" % (subject, len(body), body)
    block = _HEADERS % number
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(block), len(block) + len(body), block, body)


def connect(host: str, port: int) -> socket.socket:
    """A connection on which CONNECT has been sent."""
    connection = socket.create_connection((host, port), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(
        b'CONNECT {"verbose":false,"headers":true,"no_responders":true,"lang":"raw","version":"1"}\r\n'
    )
    return connection


def main() -> None:
    host, port, prefix, count_text, headers_text, acks_text = sys.argv[1:]
    count, acks = int(count_text), acks_text == "1"
    reply = _INBOX if acks else b""
    pieces = [
        b"".join(
            message(prefix.encode(), number, headers=headers_text == "1", reply=reply)
            for number in range(start, start + _PIECE)
        )
        for start in range(0, RENDERED, _PIECE)
    ]
    assert count % _PIECE == 0
    connection = connect(host, int(port))
    connection.sendall(b"SUB %b 1\r\nPING\r\n" % _INBOX)
    greeting = b""
    while not greeting.endswith(b"PONG\r\n"):
        greeting += connection.recv(65536)
    print("ready", flush=True)
    print(publish(connection, pieces, count, acks=acks), flush=True)
    sys.stdin.read()


def publish(connection: socket.socket, pieces: list[bytes], count: int, *, acks: bool) -> int:
    """Send `count` messages as standard input allows; how many answers came."""
    sent = allowed = lines = 0
    incoming = bytearray(1 << 18)
    while sent < count or (acks and lines < 2 * count):
        may_send = sent < min(allowed, count)
        if may_send:
            connection.sendall(pieces[sent // _PIECE % len(pieces)])
            sent += _PIECE
        readable, _, _ = select.select([connection, sys.stdin], [], [], 0 if may_send else None)
        if connection in readable:
            size = connection.recv_into(incoming)
            if not size:
                raise ConnectionError("the server has closed the connection")
            lines += incoming.count(b"\n", 0, size)  # two an answer, and a PING that can wait
        if sys.stdin in readable:
            words = os.read(sys.stdin.fileno(), 65536).split()
            if not words:
                break
            allowed = int(words[-1])
    return lines // 2


if __name__ == "__main__":
    main()
