"""Very many small messages: publishers that number them by subject, and a tally of received messages.

A payload is "<publisher> <number of its message on this subject>", so a tally does not store what was sent: for each
publisher and subject the numbers must be consecutive.
"""

from __future__ import annotations

import socket
import threading
import time

from confluent_kafka import Consumer, TopicPartition

from compat_tests.harness.nats_server import NatsServer

CHUNK = 2000  # messages between two answers that a publisher awaits


class Tally:
    """Counts received messages and records wrong ones."""

    def __init__(self) -> None:
        self.count = 0
        self.wrong: list[str] = []
        self._next: dict[tuple[bytes, bytes], int] = {}

    def take(self, subject: bytes, payload: bytes) -> None:
        publisher, number = payload.split(b" ")[:2]
        pair = publisher, subject
        due, found = self._next.get(pair, 0), int(number)
        if found != due and len(self.wrong) < 20:
            self.wrong.append(f"{subject!r} of publisher {publisher!r}: {found} where {due} is expected")
        self._next[pair] = found + 1
        self.count += 1


class Raw:
    """A connection to nats-server that speaks the protocol."""

    def __init__(self, server: NatsServer, timeout: float = 60) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout)
        self.reader = self.socket.makefile("rb", 1 << 20)
        self.reader.readline()  # INFO
        self.socket.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
        self.flush()

    def flush(self) -> None:
        """Waits until the server has handled everything that was sent."""
        self.socket.sendall(b"PING\r\n")
        while not self.line().startswith(b"PONG"):
            pass

    def line(self) -> bytes:
        while True:
            line = self.reader.readline()
            assert line, "the server has closed the connection"
            if not line.startswith(b"PING"):
                return line
            self.socket.sendall(b"PONG\r\n")

    def message(self) -> tuple[bytes, bytes]:
        """Subject and payload of the next message, without headers."""
        while True:
            words = self.line().split()
            if words[0] in (b"MSG", b"HMSG"):
                size = int(words[-1])
                data = self.reader.read(size + 2)[:size]
                return words[1], data[int(words[-2]) :] if words[0] == b"HMSG" else data

    def close(self) -> None:
        self.reader.close()
        self.socket.close()


class Publisher(threading.Thread):
    """Publishes `count` messages over `subjects`, a chunk at a time. The last one of each chunk requests an answer
    (of the bound topic, or of the stream), and no more than two chunks are unanswered, so the server disconnects no
    slow consumer."""

    def __init__(self, server: NatsServer, number: int, subjects: list[str], count: int) -> None:
        super().__init__(daemon=True)
        self.failure: BaseException | None = None
        self._raw = Raw(server)
        self._number = number
        self._subjects = [subject.encode() for subject in subjects]
        self._count = count
        self._inbox = b"_INBOX.volume%d" % number
        self._raw.socket.sendall(b"SUB %b.* 1\r\n" % self._inbox)
        self._raw.flush()

    def run(self) -> None:
        try:
            self._run()
        except BaseException as failure:  # noqa: BLE001 - raised again in finish()
            self.failure = failure

    def finish(self, timeout: float) -> None:
        self.join(timeout)
        assert not self.is_alive(), "a publisher does not get its answers"
        if self.failure is not None:
            raise self.failure
        self._raw.close()

    def _run(self) -> None:
        sent = unanswered = 0
        subjects = self._subjects
        while sent < self._count:
            size = min(CHUNK, self._count - sent)
            pieces = [self._message(subjects, sent + place) for place in range(size - 1)]
            pieces.append(self._asking(subjects, sent + size - 1))
            self._raw.socket.sendall(b"".join(pieces))
            sent += size
            unanswered += 1
            while unanswered > (1 if sent < self._count else 0):
                _, answer = self._raw.message()
                assert b'"seq"' in answer, answer
                assert b"error" not in answer, answer
                unanswered -= 1

    def _message(self, subjects: list[bytes], number: int) -> bytes:
        payload = b"%d %d" % (self._number, number // len(subjects))
        return b"PUB %b %d\r\n%b\r\n" % (subjects[number % len(subjects)], len(payload), payload)

    def _asking(self, subjects: list[bytes], number: int) -> bytes:
        payload = b"%d %d" % (self._number, number // len(subjects))
        block = b"NATS/1.0\r\nKafka-Ack: leader\r\n\r\n"
        subject = subjects[number % len(subjects)]
        head = b"HPUB %b %b.%d %d %d\r\n" % (
            subject, self._inbox, number, len(block), len(block) + len(payload),
        )  # fmt: skip
        return head + block + payload + b"\r\n"


def publish(server: NatsServer, subjects: list[str], total: int, publishers: int = 4) -> None:
    """Publishes `total` messages by several publishers at once, each over all subjects."""
    threads = [Publisher(server, number, subjects, total // publishers) for number in range(publishers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.finish(60 + total / 5000)


def tally_topic(bootstrap: str, topic: str, partitions: int, total: int) -> Tally:
    """Tally of a whole topic: `total` records, and any surplus."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tally",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    tally = Tally()
    deadline = time.monotonic() + 60 + total / 5000
    quiet_from = 0.0
    while time.monotonic() < deadline:
        messages = consumer.consume(5000, 0.5)
        for message in messages:
            assert message.error() is None, message.error()
            headers, value = message.headers(), message.value()
            assert headers
            assert isinstance(headers, list)
            subject = headers[0][1]
            assert isinstance(subject, bytes)
            assert value is not None
            tally.take(subject, value)
        if messages:
            quiet_from = 0.0
        elif tally.count >= total:
            quiet_from = quiet_from or time.monotonic()
            if time.monotonic() - quiet_from > 1:
                break
    consumer.close()
    return tally


def tally_subjects(server: NatsServer, pattern: str, total: int) -> tuple[Tally, threading.Thread]:
    """Starts counting the messages of a pattern; the thread ends after `total` messages."""
    raw = Raw(server, 60 + total / 5000)
    raw.socket.sendall(b"SUB %b 1\r\n" % pattern.encode())
    raw.flush()
    tally = Tally()

    def run() -> None:
        while tally.count < total:
            tally.take(*raw.message())
        raw.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return tally, thread
