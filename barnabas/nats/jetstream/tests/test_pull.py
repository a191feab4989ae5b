"""Pulls: how much is requested, and the statuses of the server."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from barnabas.nats.client.errors import NotConnected
from barnabas.nats.jetstream.pull import (
    HEARTBEAT_S,
    PULL_BYTES_MAX,
    PULLS,
    SILENCE_MAX,
    Puller,
    PullLimits,
)
from compat_tests.virtual.runtime import VirtualRuntime

TOO_LARGE = b"409 Message Size Exceeds MaxBytes"


class Pulls:
    """A puller whose requests are kept. The client is asked for nothing but to publish."""

    def __init__(self, budget: int, limits: PullLimits | None = None) -> None:
        self.runtime = VirtualRuntime()
        self.asked: list[dict[str, Any]] = []
        self.failed: list[str] = []
        self.is_connected = True
        self.puller = Puller(
            self.runtime,
            cast(Any, self),
            b"next",
            b"inbox",
            budget,
            limits or PullLimits(),
            self.failed.append,
        )

    def publish(self, subject: bytes, payload: bytes, *, reply: bytes = b"", headers: bytes = b"") -> None:
        if not self.is_connected:
            raise NotConnected("no connection")
        assert (subject, reply, headers) == (b"next", b"inbox", b"")
        self.asked.append(msgspec.json.decode(payload))

    def status(self, line: bytes, messages: int = 0, byte_count: int = 0) -> None:
        pending = b"Nats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d\r\n" % (messages, byte_count)
        self.puller.status(b"NATS/1.0 " + line + b"\r\n" + pending + b"\r\n")


def test_pulls_request_no_more_bytes_than_there_is_room_for() -> None:
    pulls = Pulls(3000)
    pulls.puller.refill(3000)
    assert [each["max_bytes"] for each in pulls.asked] == [1000, 1000, 1000]
    pulls.puller.received(5, 900)
    pulls.puller.refill(3000)
    assert len(pulls.asked) == 3, "what was asked for may still come"
    pulls.status(TOO_LARGE, pulls.asked[0]["batch"] - 5, 100)
    pulls.puller.refill(2000)  # the rest is on its way into the log
    assert len(pulls.asked) == 3
    pulls.puller.refill(3000)
    assert len(pulls.asked) == 4


def test_size_and_number_of_pulls_are_bounded() -> None:
    pulls = Pulls(1 << 30)
    pulls.puller.refill(1 << 30)
    assert [each["max_bytes"] for each in pulls.asked] == [PULL_BYTES_MAX] * PULLS


def test_pulls_grow_until_a_large_message_fits() -> None:
    pulls = Pulls(3000)
    sizes = []
    for _ in range(20):
        pulls.puller.refill(3000)
        if not pulls.asked[-1].get("max_bytes"):
            break
        asked, pulls.asked = pulls.asked, []
        sizes.append(asked[0]["max_bytes"])
        for each in asked:
            pulls.status(TOO_LARGE, each["batch"], each["max_bytes"])
    assert sizes == [1000, 2000, 3000]
    assert pulls.asked[-1]["batch"] == 1, "more than the whole budget: one alone, whatever its size"
    pulls.puller.received(1, 10_000)
    pulls.puller.refill(3000)
    assert pulls.asked[-1]["max_bytes"] == 3000


def test_a_pull_that_expires_is_sent_again() -> None:
    pulls = Pulls(3000)
    pulls.puller.refill(3000)
    for each in tuple(pulls.asked):
        pulls.status(b"408 Request Timeout", each["batch"], each["max_bytes"])
    assert pulls.puller.is_idle
    pulls.puller.refill(3000)
    assert len(pulls.asked) == 2 * PULLS
    assert not pulls.failed


def test_a_filled_pull_ends_without_a_status() -> None:
    pulls = Pulls(3000)
    pulls.puller.refill(3000)
    pulls.puller.received(10, 2999)
    pulls.puller.refill(3000)
    assert len(pulls.asked) == PULLS
    pulls.puller.received(1, 1)
    assert pulls.puller.is_idle
    pulls.puller.refill(3000)
    assert len(pulls.asked) == 2 * PULLS


def test_no_pulls_are_sent_while_held() -> None:
    pulls = Pulls(3000)
    pulls.puller.refill(3000)
    pulls.puller.hold()
    for each in tuple(pulls.asked):
        pulls.status(b"408 Request Timeout", each["batch"], each["max_bytes"])
        pulls.puller.refill(3000)
    assert len(pulls.asked) == PULLS
    assert pulls.puller.is_idle
    pulls.puller.release()
    pulls.puller.refill(3000)
    assert len(pulls.asked) == 2 * PULLS


def test_statuses_that_end_a_consumer() -> None:
    for line in (
        b"409 Consumer Deleted",
        b"409 Leadership Change",
        b"409 Server Shutdown",
        b"503",
        b"400 Bad Request",
    ):
        pulls = Pulls(3000)
        pulls.puller.refill(3000)
        pulls.status(line)
        assert len(pulls.failed) == 1, line
        pulls.status(line)
        pulls.puller.refill(3000)
        assert (len(pulls.failed), len(pulls.asked)) == (1, PULLS), (
            "`failed` is called once, and no pull is sent after it"
        )


def test_missing_heartbeats_end_a_consumer() -> None:
    pulls = Pulls(3000)
    pulls.puller.refill(3000)
    for _ in range(20):
        pulls.runtime.advance(HEARTBEAT_S)
        pulls.status(b"100 Idle Heartbeat")
    assert not pulls.failed
    pulls.runtime.advance(HEARTBEAT_S * (SILENCE_MAX + 1))
    assert len(pulls.failed) == 1


def test_silence_without_pulls_ends_nothing() -> None:
    pulls = Pulls(3000)
    pulls.runtime.advance(100)
    assert not pulls.failed


def test_a_lost_connection_ends_the_pulls() -> None:
    pulls = Pulls(3000)
    pulls.is_connected = False
    pulls.puller.refill(3000)
    assert pulls.failed == ["no connection"]


def test_pulls_keep_the_limits_of_the_consumer() -> None:
    pulls = Pulls(1 << 30, PullLimits(messages=50, byte_count=4000, expires_ns=1_000_000_000, waiting=2))
    pulls.puller.refill(1 << 30)
    assert len(pulls.asked) == 2
    assert {(each["batch"], each["max_bytes"], each["expires"]) for each in pulls.asked} == {
        (50, 4000, 1_000_000_000)
    }


def test_a_server_that_allows_fewer_pulls_gets_fewer() -> None:
    pulls = Pulls(3000)
    pulls.puller.refill(3000)
    pulls.status(b"409 Exceeded MaxWaiting", pulls.asked[0]["batch"], 1000)
    pulls.puller.refill(3000)
    assert len(pulls.asked) == PULLS
    assert not pulls.failed


def test_a_pull_whose_messages_have_all_come_ends_with_bytes_left() -> None:
    pulls = Pulls(1 << 30, PullLimits(messages=50, byte_count=4000))
    pulls.puller.refill(1 << 30)
    assert len(pulls.asked) == PULLS
    pulls.puller.received(50, 1000)
    pulls.status(b"409 Batch Completed", 0, 3000)
    pulls.puller.refill(1 << 30)
    assert len(pulls.asked) == PULLS + 1
    assert not pulls.failed
