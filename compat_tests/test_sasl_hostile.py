"""Clients that never authenticate themselves: what they cost, and that others are served meanwhile."""

from __future__ import annotations

import resource
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.raw import RawConnection
from compat_tests.test_sasl import METADATA, SETTINGS, authenticate, handshake, plain

pytestmark = pytest.mark.barnabas_only
CONNECTIONS = 2000
FLOOD_S = 1.5
ATTACKS_MIN = 3  # of each thread, however busy the machine is


@pytest.fixture
def secured(fresh_broker: BrokerFactory) -> Iterator[Broker]:
    broker = fresh_broker(SETTINGS)
    yield broker
    assert "Traceback" not in broker.log_text()
    assert len(broker.log_text()) < 200_000


def logged_in(broker: Broker) -> RawConnection:
    connection = RawConnection(broker.bootstrap)
    connection.ask(handshake("PLAIN"))
    assert connection.ask(authenticate(plain()))[:2] == b"\0\0"
    return connection


def latency_s(connection: RawConnection) -> float:
    began = time.monotonic()
    connection.ask(METADATA)
    return time.monotonic() - began


@contextmanager
def flood(attack: Callable[[], object], threads: int = 4) -> Iterator[list[int]]:
    """Runs attacks one after the other in threads. Yields how many each has made."""
    is_over = threading.Event()
    counts = [0] * threads

    def run(number: int) -> None:
        while not is_over.is_set():
            try:
                attack()
            except (OSError, EOFError):
                pass
            counts[number] += 1

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield counts
    finally:
        is_over.set()
        for thread in running:
            thread.join()


def served_meanwhile(broker: Broker, attack: Callable[[], object]) -> None:
    """A client is served during the attack, and the broker's memory does not grow with it."""
    with logged_in(broker) as connection:
        latency_s(connection)
        before = broker.resident_bytes()
        latencies: list[float] = []
        with flood(attack) as counts:
            ends_at = time.monotonic() + FLOOD_S
            while time.monotonic() < ends_at or min(counts) <= ATTACKS_MIN:
                latencies.append(latency_s(connection))
        # The floods' threads and the client share a process; the machine may be busy.
        assert statistics.median(latencies) < 0.1
        assert broker.resident_bytes() - before < 64 << 20


def test_failures_in_a_loop(secured: Broker) -> None:
    def attack() -> None:
        with RawConnection(secured.bootstrap) as connection:
            connection.ask(handshake("PLAIN"))
            connection.ask(authenticate(plain(password="wrong")))

    served_meanwhile(secured, attack)


def test_clients_that_leave_before_their_failure_is_answered(secured: Broker) -> None:
    def attack() -> None:
        with RawConnection(secured.bootstrap) as connection:
            connection.ask(handshake("PLAIN"))
            connection.send(authenticate(plain(password="wrong")))

    served_meanwhile(secured, attack)


def test_the_longest_tokens(secured: Broker) -> None:
    token = b"\0".join((b"", b"a" * 250_000, b"b" * 250_000))

    def attack() -> None:
        with RawConnection(secured.bootstrap) as connection:
            connection.ask(handshake("PLAIN"))
            connection.ask(authenticate(token))

    served_meanwhile(secured, attack)


def test_tagged_fields_without_end(secured: Broker) -> None:
    """A SaslAuthenticate v2 that claims 2^31 - 1 tagged fields, and one that is full of empty ones."""
    count = b"\xff\xff\xff\xff\x07"
    header = struct.pack(">hhih", 36, 2, 7, -1)
    many = b"".join(struct.pack(">BB", number & 0x7F | 0x80, 1) + b"\0" for number in range(100_000))

    def attack() -> None:
        for frame in (header + count, header + b"\0\1" + count, header + count + many):
            with RawConnection(secured.bootstrap) as connection:
                connection.ask(handshake("PLAIN"))
                connection.send(frame)
                assert connection.is_closed()

    served_meanwhile(secured, attack)


def test_connections_that_send_one_byte(secured: Broker) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit[0], min(limit[1], CONNECTIONS + 500)), limit[1]))
    host, _, port = secured.bootstrap.rpartition(":")
    with logged_in(secured) as connection:
        latency_s(connection)
        before = secured.resident_bytes()
        opened = []
        try:
            for _ in range(CONNECTIONS):
                one = socket.create_connection((host, int(port)), timeout=30)
                opened.append(one)
                one.sendall(b"\0")
            eventually(lambda: latency_s(connection) < 0.1)
            grown = secured.resident_bytes() - before
        finally:
            for one in opened:
                one.close()
    assert grown < CONNECTIONS * 20_000
