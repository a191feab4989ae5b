"""Loads of the NATS benchmark: messages into a topic or a stream, and the latency of an acknowledgement.

Messages are 256 B of JSON on 1,000 subjects in turn. Every run fails unless each published message arrived once.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from compat_tests.bench.cluster_load import touch_memory
from compat_tests.bench.latency import percentile
from compat_tests.bench.nats_publisher import PAYLOAD_BYTES, payload
from compat_tests.bench.nats_system import Meter, Prober, Publisher, StreamEnd, System, new_prefix
from compat_tests.bench.workloads import Measures

BROKER, SERVER, SCRIPT, PUBLISHER = "broker", "nats-server", "script", "publisher"
_FULL = 400_000
_BY_HAND_SHARE = 0.4  # of the messages, because the script is slower
_RECORD_BYTES = PAYLOAD_BYTES + 150
_SAMPLES = 4000
_SETTLE_S = 0.05

Load = Callable[[System, float], Measures]


def _count(scale: float, share: float = 1.0) -> int:
    return max(20_000, int(_FULL * scale * share) // 1000 * 1000)


def _exactly(arrived: Callable[[], int], wanted: int) -> None:
    """Assert that the count has its final value and does not grow."""
    time.sleep(_SETTLE_S)
    found = arrived()
    assert found == wanted, f"{found} messages instead of {wanted}"


def core(
    partitions: int, key: str, headers: bool, system: System, scale: float, *, acks: bool = False
) -> Measures:
    """Core messages into a bound topic; with `acks` each of them is acknowledged."""
    count, prefix = _count(scale), new_prefix()
    touch_memory(system.folder, count * _RECORD_BYTES)
    configs = {"nats.subjects": f"{prefix}.>", "nats.key": key, "nats.acks": "reply" if acks else "header"}
    with (
        system.topic(configs, partitions) as topic,
        system.end_of(topic, partitions) as arrived,
        Prober(system.server) as prober,
        Publisher(system.server, prefix, count, headers=headers, acks=acks) as publisher,
    ):
        prober.wait_until_bound(prefix)
        base = arrived()
        meter = Meter({BROKER: system.broker.pid, SERVER: system.server.pid, PUBLISHER: publisher.pid})
        publisher.run(arrived)
        measures = meter.per_message(count)
        _exactly(arrived, base + count)
    return measures


def by_hand(headers: bool, system: System, scale: float) -> Measures:
    """The script of nats_by_hand.py, into a topic of this broker."""
    count, prefix = _count(scale, _BY_HAND_SHARE), new_prefix()
    touch_memory(system.folder, count * _RECORD_BYTES)
    with (
        system.topic({}, 1) as topic,
        system.end_of(topic, 1) as arrived,
        Publisher(system.server, prefix, count, headers=headers) as publisher,
    ):
        command = [sys.executable, "-m", "compat_tests.bench.nats_by_hand"]
        words = [system.server.url, system.broker.bootstrap, f"{prefix}.>", topic]
        script = subprocess.Popen([*command, *words], stdout=subprocess.PIPE)
        try:
            assert script.stdout is not None
            assert script.stdout.readline() == b"ready\n"
            pids = {BROKER: system.broker.pid, SERVER: system.server.pid}
            meter = Meter({**pids, SCRIPT: script.pid, PUBLISHER: publisher.pid})
            publisher.run(arrived)
            measures = meter.per_message(count)
            _exactly(arrived, count)
        finally:
            script.send_signal(signal.SIGTERM)
            script.wait(20)
    return measures


def stream(headers: bool, system: System, scale: float, *, acks: bool) -> Measures:
    """JetStream itself: messages into a stream with file store."""
    count, prefix = _count(scale), new_prefix()
    touch_memory(system.folder, count * _RECORD_BYTES)
    with (
        system.stream(prefix) as name,
        StreamEnd(system.server, name) as arrived,
        Publisher(system.server, prefix, count, headers=headers, acks=acks) as publisher,
    ):
        meter = Meter({SERVER: system.server.pid, PUBLISHER: publisher.pid})
        publisher.run(arrived)
        measures = meter.per_message(count)
        _exactly(arrived, count)
    return measures


def jetstream(partitions: int, headers: bool, delivery: str, system: System, scale: float) -> Measures:
    """Messages already in a stream, into a topic that is then bound to it."""
    count, prefix = _count(scale), new_prefix()
    with system.stream(prefix) as name, system.topic({}, partitions) as topic:
        with (
            StreamEnd(system.server, name) as stored,
            Publisher(system.server, prefix, count, headers=headers) as publisher,
        ):
            publisher.run(stored)
        touch_memory(system.folder, count * _RECORD_BYTES)
        with system.end_of(topic, partitions) as arrived:
            meter = Meter({BROKER: system.broker.pid, SERVER: system.server.pid})
            configs = {
                "nats.subjects": f"{prefix}.>",
                "nats.mode": "jetstream",
                "nats.stream": name,
                "nats.delivery": delivery,
            }
            system.bind(topic, configs)
            moved_at, last = time.monotonic(), 0
            while (done := arrived()) < count:
                if done != last:
                    moved_at, last = time.monotonic(), done
                assert time.monotonic() < moved_at + 30, f"{done} of {count} messages arrived"
                time.sleep(0.01)
            measures = meter.per_message(count)
            _exactly(arrived, count)
    return measures


def stream_read(headers: bool, system: System, scale: float) -> Measures:
    """Messages already in a stream, read by nats_reader.py: the cost of delivery alone."""
    count, prefix = _count(scale), new_prefix()
    with system.stream(prefix) as name:
        with (
            StreamEnd(system.server, name) as stored,
            Publisher(system.server, prefix, count, headers=headers) as publisher,
        ):
            publisher.run(stored)
        command = [
            sys.executable,
            "-m",
            "compat_tests.bench.nats_reader",
            "127.0.0.1",
            str(system.server.port),
        ]
        with subprocess.Popen(
            [*command, name, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"ready\n"
            meter = Meter({SERVER: system.server.pid, SCRIPT: reader.pid})
            reader.stdin.write(b"go\n")
            reader.stdin.flush()
            found = int(reader.stdout.readline())
            measures = meter.per_message(count)
            assert found == count, f"{found} messages instead of {count}"
            reader.stdin.close()
    return measures


def core_latency(system: System, scale: float) -> Measures:
    """From publishing to the answer to Kafka-Ack: all, one message at a time."""
    prefix = new_prefix()
    with system.topic({"nats.subjects": f"{prefix}.>"}, 1), Prober(system.server) as prober:
        prober.wait_until_bound(prefix)
        return _latency(prober, f"{prefix}.one".encode(), scale)


def stream_latency(system: System, scale: float) -> Measures:
    """The same from JetStream."""
    prefix = new_prefix()
    with system.stream(prefix), Prober(system.server) as prober:
        return _latency(prober, f"{prefix}.one".encode(), scale)


def _latency(prober: Prober, subject: bytes, scale: float) -> Measures:
    samples = []
    for number in range(max(200, int(_SAMPLES * scale))):
        data = payload(number)
        started = time.perf_counter()
        answer = prober.ask(subject, data)
        samples.append(time.perf_counter() - started)
        assert b'"seq"' in answer, answer
    return {
        label: percentile(samples, fraction) * 1e3 for label, fraction in (("p50 ms", 0.5), ("p99 ms", 0.99))
    }


BY_HAND = "by hand, nats-py and confluent-kafka"
PLAIN_CORE = "core, 1 partition, key subject"


def rates() -> dict[str, Load]:
    """Every load whose rate and CPU are measured, by its name."""
    loads: dict[str, Load] = {}
    for partitions, many in ((1, "1 partition"), (8, "8 partitions")):
        for headers, with_headers in ((False, ""), (True, ", 2 headers")):
            for key in ("subject", "none", "json:$.id"):
                loads[f"core, {many}, key {key}{with_headers}"] = partial(core, partitions, key, headers)
    loads["core, 1 partition, all acknowledged"] = partial(core, 1, "subject", False, acks=True)
    for partitions, many in ((1, "1 partition"), (8, "8 partitions")):
        for headers, with_headers in ((False, ""), (True, ", 2 headers")):
            loads[f"from a stream, exactly once, {many}{with_headers}"] = partial(
                jetstream, partitions, headers, "exactly-once"
            )
    loads["from a stream, at least once, 1 partition"] = partial(jetstream, 1, False, "at-least-once")
    loads["from a stream, only read"] = partial(stream_read, False)
    loads["from a stream, only read, 2 headers"] = partial(stream_read, True)
    loads["JetStream itself"] = partial(stream, False, acks=False)
    loads["JetStream itself, 2 headers"] = partial(stream, True, acks=False)
    loads["JetStream itself, all acknowledged"] = partial(stream, False, acks=True)
    loads[BY_HAND] = partial(by_hand, False)
    loads[f"{BY_HAND}, 2 headers"] = partial(by_hand, True)
    return loads


LATENCIES: dict[str, Load] = {
    "core, Kafka-Ack: all": core_latency,
    "JetStream itself, PubAck": stream_latency,
}
