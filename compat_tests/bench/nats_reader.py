"""The floor for reading a stream: pulls as a binding's consumer does (exactly once), and only counts what comes.

`python -m compat_tests.bench.nats_reader HOST PORT STREAM COUNT` makes a consumer of the stream, prints "ready", waits for a line,
reads `COUNT` messages and prints how many came. Nothing is parsed but the beginnings of reply subjects.
"""

from __future__ import annotations

import json
import socket
import sys

from compat_tests.bench.nats_publisher import connect

_INBOX = b"_INBOX.reader"
_CONSUMER = "reader"
_REPLY = b"$JS.ACK."  # once in each message, and nowhere else
_PULLS = 3  # open at a time, with about a megabyte each, as barnabas/nats/jetstream/pull.py has them
_PULL_MESSAGES = 2500
_RECEIVED_BYTES = 1 << 18


def main() -> None:
    host, port, stream, count_text = sys.argv[1:]
    connection = connect(host, int(port))
    connection.sendall(b"SUB %b 1\r\n" % _INBOX)
    config = {"name": _CONSUMER, "deliver_policy": "all", "ack_policy": "none", "mem_storage": True}
    _publish(
        connection,
        f"$JS.API.CONSUMER.CREATE.{stream}.{_CONSUMER}",
        {"stream_name": stream, "config": config},
    )
    answer = b""
    while b'"num_pending"' not in answer:
        answer += connection.recv(_RECEIVED_BYTES)
        assert b'"error"' not in answer, answer
    print("ready", flush=True)
    sys.stdin.readline()
    print(read(connection, stream, int(count_text)), flush=True)
    sys.stdin.read()


def read(connection: socket.socket, stream: str, count: int) -> int:
    """Pull until `count` messages have come; how many have."""
    buffer = bytearray(_RECEIVED_BYTES + len(_REPLY) - 1)
    kept = 0  # bytes at the buffer's beginning, which may be the beginning of a reply subject
    arrived = asked = 0  # messages
    while arrived < count:
        while asked - arrived <= (_PULLS - 1) * _PULL_MESSAGES:
            pull = {"batch": _PULL_MESSAGES, "expires": 30_000_000_000, "idle_heartbeat": 5_000_000_000}
            _publish(connection, f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{_CONSUMER}", pull)
            asked += _PULL_MESSAGES
        received = connection.recv_into(memoryview(buffer)[kept:])
        assert received, "nats-server has closed the connection"
        end = kept + received
        arrived += buffer.count(_REPLY, 0, end)
        kept = min(len(_REPLY) - 1, end)
        buffer[:kept] = buffer[end - kept : end]
    return arrived


def _publish(connection: socket.socket, subject: str, request: object) -> None:
    body = json.dumps(request).encode()
    connection.sendall(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), _INBOX, len(body), body))


if __name__ == "__main__":
    main()
