"""Streams in a cluster: leaders move and are killed, nats-server too, and each message is in the topic; exactly once, also
once and in order.

Short forms; BARNABAS_CHAOS_ROUNDS sets the number of rounds (`make chaos-nats`).
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from compat_tests.harness.cluster import Cluster
from compat_tests.harness.eventually import eventually
from compat_tests.harness.leader_moves import move_leader
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.bound_topics import bind
from compat_tests.nats.streams import (
    Streams,
    check_at_least_once,
    check_exactly,
    numbered,
    read_all,
)

pytestmark = pytest.mark.barnabas_only

ROUNDS = int(os.environ.get("BARNABAS_CHAOS_ROUNDS", "1"))
TOPIC = "orders"
PARTITIONS = 3
EXACTLY_ONCE = {"nats.subjects": "orders.>", "nats.mode": "jetstream"}
AT_LEAST_ONCE = {**EXACTLY_ONCE, "nats.delivery": "at-least-once"}


class Published(list[tuple[str, bytes]]):
    """Messages stored so far."""

    def await_more(self, count: int) -> None:
        goal = len(self) + count
        eventually(lambda: len(self) >= goal)


@contextmanager
def publishing(server: NatsServer) -> Iterator[Published]:
    """Stores messages in order in a thread, until the context ends."""
    published = Published()
    is_over = threading.Event()

    def run() -> None:
        with Streams(server) as streams:
            while not is_over.is_set():
                more = numbered(len(published), 100)
                streams.publish(more)
                published.extend(more)
                time.sleep(0.02)  # the rate: 5,000 a second at most

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield published
    finally:
        is_over.set()
        thread.join()


@pytest.fixture
def stream(server: NatsServer) -> NatsServer:
    """The server, with a stream."""
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
    return server


def bind_in(cluster: Cluster, binding: dict[str, str]) -> None:
    bind(cluster, TOPIC, {**binding, "min.insync.replicas": "2"}, partitions=PARTITIONS, replicas=3)
    cluster.wait_until_whole()


def move(cluster: Cluster, number: int) -> None:
    move_leader(cluster, TOPIC, number % PARTITIONS, random.sample(sorted(cluster.nodes), 3))


def kill(cluster: Cluster, published: Published) -> None:
    victim = cluster.leader(TOPIC, random.randrange(PARTITIONS))
    cluster.kill(victim)
    published.await_more(1000)
    cluster.start(victim)
    cluster.wait_until_whole()
    published.await_more(500)


@pytest.mark.timeout(300 + 150 * ROUNDS)
def test_exactly_once_while_leaders_move_and_are_killed(cluster: Cluster, stream: NatsServer) -> None:
    bind_in(cluster, EXACTLY_ONCE)
    with publishing(stream) as published:
        for number in range(6 * ROUNDS):
            published.await_more(200)
            move(cluster, number)
        for _ in range(1 if ROUNDS == 1 else 2 * ROUNDS):
            kill(cluster, published)
    check_exactly(read_all(cluster, TOPIC, len(published)), published)


@pytest.mark.timeout(300 + 150 * ROUNDS)
def test_at_least_once_while_leaders_move_and_are_killed(cluster: Cluster, stream: NatsServer) -> None:
    bind_in(cluster, AT_LEAST_ONCE)
    with publishing(stream) as published:
        published.await_more(1000)
        for number in range(4 * ROUNDS):
            published.await_more(200)
            move(cluster, number)
        for _ in range(ROUNDS):
            kill(cluster, published)
    check_at_least_once(read_all(cluster, TOPIC, len(published), distinct=True), published)


@pytest.mark.timeout(300 + 150 * ROUNDS)
@pytest.mark.parametrize(
    "binding",
    [
        pytest.param(EXACTLY_ONCE, id="exactly-once"),
        pytest.param(
            AT_LEAST_ONCE,
            id="at-least-once",
            marks=pytest.mark.skipif(ROUNDS == 1, reason="waits for redeliveries, 10 s each time"),
        ),
    ],
)
def test_nats_server_is_killed_too(cluster: Cluster, stream: NatsServer, binding: dict[str, str]) -> None:
    """Compares with the final contents of the stream: messages that were in flight when the server was killed may be
    there or not."""
    bind_in(cluster, binding)
    stored = 0
    for number in range(3 * ROUNDS):
        with publishing(stream) as published:
            published.await_more(700)
        stored += len(published)
        move(cluster, number)
        if number % 3 == 1:
            cluster.kill(victim := cluster.leader(TOPIC, number % PARTITIONS))
            stream.restart(kill=True)
            cluster.start(victim)
        else:
            stream.restart(kill=True)
    with Streams(stream) as streams:
        contents = streams.contents("ORDERS")
    assert len(contents) == stored
    if binding is EXACTLY_ONCE:
        check_exactly(read_all(cluster, TOPIC, stored), contents)
    else:
        check_at_least_once(read_all(cluster, TOPIC, stored, distinct=True), contents)
