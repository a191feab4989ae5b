"""The messages of one read of a stream, exactly once, under a virtual clock: which are taken, in which order, and what ends them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from barnabas.nats.client.protocol import Sink
from barnabas.nats.jetstream.appender import StreamAppender
from barnabas.nats.jetstream.exactly_once import ExactlyOnce
from barnabas.nats.jetstream.stream import Reached
from barnabas.nats.tests.stream_world import Partitions, binding
from compat_tests.virtual.runtime import VirtualRuntime

SHORT = b"$JS.ACK.S.C."
LONG = b"$JS.ACK._.account.S.C."
CONSUMER_IS_GONE = b"NATS/1.0 409 Consumer Deleted\r\n\r\n"
TIME_NS = 1_795_970_351_735_000_000


class Reading:
    """A consumer of the stream S that has begun to read; the client is a mock that only keeps the sink."""

    def __init__(self, **configs: str) -> None:
        self.runtime = VirtualRuntime(start_ms=TIME_NS // 1_000_000)
        self.world = Partitions([1], 1, {})
        client = MagicMock(is_connected=False, last_cause=None)
        client.settings.jetstream_domain = ""
        client.new_inbox.return_value = b"_INBOX.x"
        source = SimpleNamespace(client=client, closers=[])
        bound = binding(**configs)
        appender = StreamAppender(bound, "cluster", lambda: 1)
        self.carrier = ExactlyOnce(self.runtime, source, bound, appender)
        self.carrier.start({0: self.world.partition()})
        carrier: Any = self.carrier
        carrier._stream, carrier._consumer = "S", "C"
        carrier._progress.reached[0] = Reached(0, 0)
        appender.set_stream("S")
        carrier._start_run(SimpleNamespace(takes_all=True, info=SimpleNamespace(num_pending=0)), 1)
        self._sink: Sink = client.subscribe.call_args.args[1]
        self._sequence = 0

    def message(
        self,
        subject: str = "a.1",
        headers: bytes = b"",
        *,
        prefix: bytes = SHORT,
        numbers: str = "",
        time_ns: int = 0,
    ) -> None:
        """The next one of the stream, in the read that is going on. Its payload is its sequence."""
        self._sequence += 1
        numbers = numbers or f"1.{self._sequence}.{self._sequence}.{time_ns or TIME_NS + self._sequence}.0"
        self._sink(subject.encode(), prefix + numbers.encode(), headers, b"%d" % self._sequence)

    def status(self, block: bytes) -> None:
        self._sink(b"_INBOX.x", b"", block, b"")

    def end_read(self) -> None:
        self.carrier.on_read()
        self.runtime.advance(0)

    @property
    def values(self) -> list[int]:
        return [int(record.value or b"") for record in self.world.records()]


def test_a_status_that_ends_the_consumer_leaves_the_messages_before_it() -> None:
    reading = Reading()
    for _ in range(10):
        reading.message()
    reading.status(CONSUMER_IS_GONE)
    reading.message()
    reading.end_read()
    assert reading.values == list(range(1, 11))
    assert reading.carrier.state.startswith("waiting")


@pytest.mark.parametrize("key", ["subject", "header:Key", "json:$.id"])
@pytest.mark.parametrize("prefix", [SHORT, LONG])
def test_messages_of_every_kind_keep_their_order(prefix: bytes, key: str) -> None:
    """Plain ones, new subjects, special headers, times that are not usual, and what belongs to another consumer."""
    reading = Reading(nats_key=key)
    for _ in range(3):
        reading.message("a.1", prefix=prefix)
        reading.message("a.1", b"NATS/1.0\r\nKey: k\r\n\r\n", prefix=prefix)
        reading.message("a.2", b"NATS/1.0\r\nKafka-Partition: 0\r\n\r\n", prefix=prefix)
        reading._sink(b"a.1", b"$JS.ACK.S.OTHER.1.1.1.%d.0" % TIME_NS, b"", b"0")
        reading.message("a.1", prefix=prefix, time_ns=7)
    reading.message("a.1", prefix=prefix)
    reading.end_read()
    assert reading.values == list(range(1, 14))
    assert reading.carrier.stats.messages_in == 13
    times = [record.timestamp for record in reading.world.records()]
    assert times[0] == times[-1] == TIME_NS // 1_000_000
    assert times[3] == 0
    for later_ms in (1, 1, 2):
        reading.message("a.1", prefix=prefix, time_ns=TIME_NS + later_ms * 1_000_000)
    reading.end_read()
    assert reading.values == list(range(1, 17))
    assert [record.timestamp - times[0] for record in reading.world.records()[-3:]] == [1, 1, 2]


@pytest.mark.parametrize(
    "numbers", ["1.3.3", "1.x.3.1795970351735000000.0", f"1.{'9' * 20}.3.1795970351735000000.0"]
)
def test_nothing_behind_a_malformed_message_is_taken(numbers: str) -> None:
    """It comes again, in order."""
    reading = Reading()
    for _ in range(2):
        reading.message()
    reading.message(numbers=numbers)
    reading.message()
    reading.end_read()
    assert reading.values == [1, 2]
    assert reading.carrier.state.startswith("waiting: a message came with a malformed reply subject")


def test_a_message_that_stays_out_ends_the_read_there() -> None:
    reading = Reading()
    reading.message()
    reading.message(headers=b"NATS/1.0\r\nKafka-Partition: 9\r\n\r\n")
    reading.message()
    reading.end_read()
    assert reading.values == [1]
    assert reading.carrier.state.startswith("blocked: message 2 of the stream can't be taken")


def test_an_error_of_ours_ends_the_run_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reading = Reading()
    reading.message()
    reading.end_read()
    monkeypatch.setattr(StreamAppender, "add_plain", lambda *_: 1 // 0)
    reading.message()
    reading.end_read()
    assert reading.values == [1]
    assert reading.carrier.state.startswith("waiting")
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("ends", ["stop", "roles"])
def test_what_was_read_is_taken_before_the_run_ends(ends: str) -> None:
    reading = Reading()
    for _ in range(3):
        reading.message()
    if ends == "stop":
        reading.carrier.stop()
    else:
        reading.carrier.roles_changed({})
    assert reading.values == [1, 2, 3]
