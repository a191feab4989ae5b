"""The processes of the NATS benchmark, with the topics, streams, publishers and counts that its runs use."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient

from compat_tests.bench import driver
from compat_tests.bench.nats_offsets import TopicEnd
from compat_tests.bench.nats_publisher import connect
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.confluent_admin import NewTopic
from compat_tests.harness.nats_server import NatsServer
from compat_tests.harness.process_usage import cpu_seconds
from compat_tests.nats.bound_topics import bind
from compat_tests.nats.streams import Streams

WINDOW = 50_000  # messages in flight: about 20 MB; nats-server disconnects at 64 MiB
_POLL_S = 0.01
_STALLED_S = 30.0
_numbers = itertools.count()
_INBOX = b"_INBOX.probe"
_ASK = b"NATS/1.0\r\nKafka-Ack: all\r\n\r\n"


@dataclass
class System:
    """One broker and one nats-server with JetStream, both running."""

    broker: BarnabasBroker
    server: NatsServer
    streams: Streams
    folder: Path

    @contextmanager
    def topic(self, configs: Mapping[str, str], partitions: int) -> Iterator[str]:
        """A new topic, deleted afterwards."""
        name = f"bench-{next(_numbers)}"
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 2})
        always = {"file.delete.delay.ms": "100", "retention.ms": "-1"}
        admin.create_topics([NewTopic(name, partitions, 1, config={**always, **configs})])[name].result(30)
        driver.wait_until_served(self.broker.bootstrap, name)
        try:
            yield name
        finally:
            admin.delete_topics([name])[name].result(30)

    @contextmanager
    def stream(self, prefix: str) -> Iterator[str]:
        """A new stream with file store for all subjects below the prefix, deleted afterwards."""
        name = prefix.upper()
        self.streams.add(name, f"{prefix}.>")
        try:
            yield name
        finally:
            self.streams.run(self.streams.jetstream.delete_stream(name))

    def bind(self, topic: str, configs: Mapping[str, str]) -> None:
        bind(self.broker, topic, configs)

    def end_of(self, topic: str, partitions: int) -> TopicEnd:
        return TopicEnd(self.broker.bootstrap, topic, partitions)


def new_prefix() -> str:
    """A subject prefix that was not used before."""
    return f"bench{next(_numbers)}"


class Prober:
    """Asks for an acknowledgement, one message at a time; `with` closes the connection."""

    def __init__(self, server: NatsServer) -> None:
        self._socket = connect("127.0.0.1", server.port)
        self._data = b""  # received bytes of an incomplete message
        self._socket.sendall(b"SUB %b 1\r\n" % _INBOX)

    def ask(self, subject: bytes, payload: bytes, *, headers: bytes = _ASK) -> bytes:
        """The headers and payload that come back."""
        size = len(headers) + len(payload)
        if headers:
            line = b"HPUB %b %b %d %d\r\n" % (subject, _INBOX, len(headers), size)
        else:
            line = b"PUB %b %b %d\r\n" % (subject, _INBOX, size)
        self._socket.sendall(b"%b%b%b\r\n" % (line, headers, payload))
        return self._receive()

    def publish(self, subject: bytes, payload: bytes, *, headers: bytes) -> None:
        """Return when the server has taken the message, which nothing acknowledges."""
        line = b"HPUB %b %d %d\r\n" % (subject, len(headers), len(headers) + len(payload))
        self._socket.sendall(b"%b%b%b\r\nPING\r\n" % (line, headers, payload))
        while not self._data.endswith(b"PONG\r\n"):
            received = self._socket.recv(65536)
            if not received:
                raise ConnectionError("the server has closed the connection")
            self._data += received
        self._data = b""

    def wait_until_bound(self, prefix: str) -> None:
        """Return when a message below the prefix is acknowledged."""
        deadline = time.monotonic() + _STALLED_S
        while b'"seq"' not in self.ask(prefix.encode() + b".probe", b"{}"):
            assert time.monotonic() < deadline, "no acknowledgement comes"
            time.sleep(0.01)

    def _receive(self) -> bytes:
        while True:
            line, end, rest = self._data.partition(b"\r\n")
            if end and line.startswith((b"MSG ", b"HMSG ")):
                size = int(line.rpartition(b" ")[2])
                if len(rest) >= size + 2:
                    self._data = rest[size + 2 :]
                    return rest[:size]
            elif end:  # INFO, or a PING that can wait
                self._data = rest
                continue
            received = self._socket.recv(65536)
            if not received:
                raise ConnectionError("the server has closed the connection")
            self._data += received

    def __enter__(self) -> Prober:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._socket.close()


class StreamEnd:
    """How many messages a stream has; `with` closes the connection."""

    def __init__(self, server: NatsServer, stream: str) -> None:
        self._prober = Prober(server)
        self._subject = b"$JS.API.STREAM.INFO.%b" % stream.encode()

    def __call__(self) -> int:
        answer = self._prober.ask(self._subject, b"", headers=b"")
        return int(json.loads(answer[answer.index(b"{") :])["state"]["messages"])

    def __enter__(self) -> StreamEnd:
        return self

    def __exit__(self, *exception: object) -> None:
        self._prober.__exit__(*exception)


class Publisher:
    """nats_publisher.py as a process, ready to send; `with` ends it."""

    def __init__(
        self, server: NatsServer, prefix: str, count: int, *, headers: bool = False, acks: bool = False
    ) -> None:
        words = ["127.0.0.1", str(server.port), prefix, str(count), str(int(headers)), str(int(acks))]
        self.count = count
        self._acks = acks
        self._process = subprocess.Popen(
            [sys.executable, "-m", "compat_tests.bench.nats_publisher", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid
        assert self._line() == b"ready"

    def run(self, arrived: Callable[[], int]) -> None:
        """Have all messages sent, as fast as they arrive; return when all have arrived and are answered."""
        assert self._process.stdin is not None
        base = arrived()
        moved_at, last = time.monotonic(), -1
        while (done := arrived() - base) < self.count:
            if done != last:
                self._process.stdin.write(b"%d\n" % min(self.count, done + WINDOW))
                self._process.stdin.flush()
                moved_at, last = time.monotonic(), done
            assert time.monotonic() < moved_at + _STALLED_S, f"{done} of {self.count} messages arrived"
            time.sleep(_POLL_S)
        answered = int(self._line())
        assert not self._acks or answered == self.count, f"{answered} of {self.count} were answered"

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_exception: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


class Meter:
    """CPU seconds of processes since it was made, and the time."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        self._started = time.perf_counter()

    def per_message(self, count: int) -> dict[str, float]:
        """messages/s, and CPU microseconds of each process."""
        seconds = time.perf_counter() - self._started
        measures = {"messages/s": count / seconds}
        for name, pid in self._pids.items():
            measures[name] = (cpu_seconds(pid) - self._before[name]) / count * 1e6
        return measures
