"""Runs personalities of a hostile nats-server against a broker whose topics are bound to it, and judges each.

`python -m compat_tests.fuzz.nats_engine 17` runs one seed, `--seeds 1000` runs 1,000 seeds from there on.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.fuzz.judge import Judge, Verdict
from compat_tests.fuzz.nats_server import HostileNatsServer
from compat_tests.fuzz.probe import TOPIC, Probe, check_everything_is_there
from compat_tests.fuzz.systems import ADDRESS_SPACE_MAX, create_topics
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.eventually import eventually

COMMAND = "python -m compat_tests.fuzz.nats_engine"
CLIENTS = 3  # connections of a broker to one server
OPERATIONS = 150  # of the server; then the seed ends
CASE_S_MAX = 2.5  # ... or after this time: some servers send nothing, or lose their clients at once
RECORDS = 5  # produced per egress binding and seed
ATTEMPTS_AT_ONCE = 12  # of one client: its backoff grows from 0.05 s to 2 s
ATTEMPTS_A_SECOND = 4
LOG_LINES_MAX = 80  # each connection logs a line when it begins and ends, and so do five bindings
LOG_LINE_CHARACTERS_MAX = 2500
BOUND = {
    "core": {"nats.subjects": "c.>", "nats.acks": "reply"},
    "exact": {"nats.subjects": "s.>", "nats.mode": "jetstream", "nats.stream": "S"},
    "often": {
        "nats.subjects": "s.>",
        "nats.mode": "jetstream",
        "nats.stream": "W",
        "nats.delivery": "at-least-once",
        "nats.max.deliver": "2",
        "nats.dead.letter.topic": "dead",
    },
    "stock": {"nats.mode": "kv", "nats.bucket": "b", "cleanup.policy": "compact"},
    "outward": {"nats.publish.subject": "o.{key}", "nats.publish.jetstream": "true"},
}
ACKNOWLEDGED_IN = ("core", "often", "dead")


class FuzzedByNats:
    """A broker, its probe and judge, and the hostile server of its bindings."""

    def __init__(self, folder: Path, loop: str = "") -> None:
        self.server = HostileNatsServer()
        settings = {"nats.servers": self.server.url, "nats.connect.timeout.ms": "1000"}
        self.broker = BarnabasBroker(folder, settings, loop)
        self.broker.preexec = lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_MAX,) * 2)
        self.broker.start()
        create_topics(self.broker.bootstrap, {TOPIC: {}, **BOUND})
        self.probe = Probe(self.broker.bootstrap, self.broker.pid)
        assert self.probe.wait_for_rounds(20, 60), self.probe.error
        self.judge = Judge([self.broker], self.probe, LOG_LINES_MAX)
        self._producer = Producer({"bootstrap.servers": self.broker.bootstrap, "log_level": 2})

    def run(self, seed: int) -> Verdict:
        """Runs one personality, from the first connection to the last."""
        before = self.judge.begin()
        self.server.begin(seed)
        verdict = Verdict(f"nats {seed} ({self.server.mutator})")
        for number in range(RECORDS):
            for topic in ("stock", "outward"):
                self._producer.produce(topic, key=b"k%d" % number, value=b"%d" % seed)
        self._producer.poll(0)
        began = time.monotonic()
        with suppress(AssertionError):
            eventually(lambda: self.server.operations >= OPERATIONS or not self.broker.alive(), CASE_S_MAX)
        self.server.end()
        lasted_s = time.monotonic() - began
        self.judge.end(before, verdict)
        attempts_max = CLIENTS * (ATTEMPTS_AT_ONCE + ATTEMPTS_A_SECOND * lasted_s)
        if self.server.connections > attempts_max:
            verdict.faults.append(f"{self.server.connections} connections within {lasted_s:.1f} s")
        return verdict

    def end(self) -> list[str]:
        """Faults that show only at the end; stops the broker cleanly."""
        faults: list[str] = []
        self.probe.stop()
        try:
            assert self.probe.error is None, f"the probe failed: {self.probe.error!r}"
            assert self._producer.flush(60) == 0, "records of the bound topics are not acknowledged"
            check_everything_is_there(self.broker.bootstrap, self.probe.acknowledged)
            there = set().union(*(self._values(topic) for topic in ACKNOWLEDGED_IN))
            missing = self.server.acknowledged.payloads - there
            assert not missing, f"{len(missing)} acknowledged messages are missing: {sorted(missing)[:5]}"
            longest = max(map(len, self.broker.log_text().splitlines()))
            assert longest <= LOG_LINE_CHARACTERS_MAX, f"a line of {longest} characters in its log"
            code = self.broker.stop()
            assert code == 0, f"a clean stop exits with {code}"
        except (AssertionError, OSError, EOFError) as error:
            faults.append(f"at the end: {type(error).__name__}: {error}")
        finally:
            if self.broker.alive():
                self.broker.kill()
            self.server.close()
        return faults

    def _values(self, topic: str) -> set[bytes]:
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "judge", "log_level": 2})
        found: set[bytes] = set()
        try:
            for index in (
                consumer.list_topics(timeout=60).topics[topic].partitions
                if self._has(consumer, topic)
                else ()
            ):
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, index), 60)
                consumer.assign([TopicPartition(topic, index, low)])
                position = low
                while position < high:
                    for message in consumer.consume(min(1000, high - position), 1.0):
                        assert message.error() is None, message.error()
                        position = (message.offset() or 0) + 1
                        found.add(message.value() or b"")
        finally:
            consumer.close()
        return found

    def _has(self, consumer: Consumer, topic: str) -> bool:
        return topic in consumer.list_topics(timeout=60).topics


def run_seeds(
    folder: Path,
    seeds: Iterable[int],
    *,
    loop: str = "",
    failures_max: int = 3,
    say: Callable[[str], object] = lambda _line: None,
) -> tuple[list[Verdict], list[str]]:
    """All verdicts, and the failures, each with the command that repeats its seed."""
    verdicts: list[Verdict] = []
    failures: list[str] = []
    fuzzed = FuzzedByNats(folder, loop)
    seed = 0
    for seed in seeds:
        verdict = fuzzed.run(seed)
        verdicts.append(verdict)
        say(verdict.line())
        if verdict.faults:
            failures.append(f"{COMMAND} {seed}\n{verdict.line()}\n" + "\n".join(verdict.faults))
            if len(failures) >= failures_max or not fuzzed.broker.alive():
                break
    failures += [f"{COMMAND} {seed} and those before\n{fault}" for fault in fuzzed.end()]
    return verdicts, failures


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-nats-") as folder:
        seeds = range(options.seed, options.seed + options.seeds)
        _, failures = run_seeds(Path(folder), seeds, say=lambda line: print(line, flush=True))
        print(*failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
