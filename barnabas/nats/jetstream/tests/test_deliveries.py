"""Deliveries of a durable consumer, from arrival to acknowledgement, over lost connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from barnabas.nats.client.errors import NatsError, NotConnected
from barnabas.nats.jetstream.ack_subject import ACK, IN_PROGRESS, NAK, TERM
from barnabas.nats.jetstream.deliveries import CONFIRM_EVERY_S, REMEMBERED, Deliveries
from compat_tests.virtual.runtime import VirtualRuntime


class Server:
    """Stands for the client: what was sent, and whether the server has read it (`confirm`)."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.is_connected = True
        self.sent: list[tuple[bytes, bytes]] = []
        self.flushes: list[Callable[[NatsError | None], object]] = []
        self.deliveries = Deliveries(self.runtime, cast(Any, self))

    def publish(self, subject: bytes, payload: bytes) -> None:
        if not self.is_connected:
            raise NotConnected("no connection")
        self.sent.append((subject, payload))

    def publish_encoded(self, data: bytes, count: int) -> None:
        if not self.is_connected:
            raise NotConnected("no connection")
        lines = data.split(b"\r\n")
        assert lines.pop() == b""
        assert len(lines) == 2 * count
        for line, payload in zip(lines[::2], lines[1::2], strict=True):
            verb, subject, size = line.split(b" ")
            assert (verb, int(size)) == (b"PUB", len(payload))
            self.sent.append((subject, payload))

    def flush(self, done: Callable[[NatsError | None], object]) -> None:
        self.flushes.append(done)

    def acknowledged(self) -> list[bytes]:
        found = [subject for subject, payload in self.sent if payload == ACK]
        self.sent.clear()
        return found


def test_a_message_is_acknowledged_once_when_its_record_is_committed() -> None:
    server = Server()
    deliveries = server.deliveries
    assert deliveries.received(1, b"one")
    assert deliveries.received(2, b"two")
    deliveries.settled([(1, b"one")])
    deliveries.settled([(1, b"one")])
    assert server.acknowledged() == [b"one"]
    assert set(deliveries.open) == {2}


def test_redelivered_messages_are_not_taken_again() -> None:
    server = Server()
    deliveries = server.deliveries
    deliveries.received(1, b"first")
    assert not deliveries.received(1, b"again"), "it is open"
    deliveries.settled([(1, b"first")])
    assert server.acknowledged() == [b"again"], "where it was delivered last"
    assert not deliveries.received(1, b"once-more"), "its record is there"
    assert server.acknowledged() == [b"once-more"]


def test_a_bounded_number_of_settled_messages_is_remembered() -> None:
    server = Server()
    deliveries = server.deliveries
    for sequence in range(1, 2 * REMEMBERED + 10):
        deliveries.received(sequence, b"r")
        deliveries.settled([(sequence, b"r")])
    assert not deliveries.received(REMEMBERED + 5, b"r")
    assert deliveries.received(1, b"r")


def test_failed_messages_are_returned_in_order() -> None:
    server = Server()
    deliveries = server.deliveries
    for sequence in (5, 3, 4, 1):
        deliveries.received(sequence, b"%d" % sequence)
    deliveries.settled([(1, b"1")])
    deliveries.fail([(5, b"5"), (3, b"3")])
    deliveries.fail([(4, b"4"), (1, b"1")])
    server.sent.clear()
    assert deliveries.return_failed() == 3
    assert server.sent == [(b"3", NAK), (b"4", NAK), (b"5", NAK)]
    assert deliveries.received(3, b"3-again")


def test_a_terminated_message_is_not_redelivered() -> None:
    server = Server()
    server.deliveries.received(7, b"7")
    server.deliveries.fail([(7, b"7")])
    server.deliveries.terminate(7)
    assert server.sent == [(b"7", TERM)]
    assert server.deliveries.return_failed() == 0


def test_messages_open_for_long_are_reported_in_progress() -> None:
    server = Server()
    deliveries = server.deliveries
    deliveries.received(1, b"old")
    server.runtime.advance(4)
    deliveries.received(2, b"young")
    deliveries.report_in_progress(3)
    assert server.sent == [(b"old", IN_PROGRESS)]


def test_acknowledgements_that_the_server_may_not_have_read_are_sent_again() -> None:
    server = Server()
    deliveries = server.deliveries
    for sequence in (1, 2, 3):
        deliveries.received(sequence, b"%d" % sequence)
    deliveries.settled([(1, b"1")])
    server.runtime.advance(CONFIRM_EVERY_S)
    deliveries.settled([(2, b"2")])
    server.flushes.pop()(None)  # it has read what was sent before it was asked
    assert server.acknowledged() == [b"1", b"2"]
    server.is_connected = False
    deliveries.settled([(3, b"3")])
    server.is_connected = True
    deliveries.connected()
    assert server.acknowledged() == [b"2", b"3"]
    for _ in range(3):
        server.runtime.advance(CONFIRM_EVERY_S)
        while server.flushes:
            server.flushes.pop()(None)
    deliveries.connected()
    assert server.acknowledged() == []
