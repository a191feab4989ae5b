"""kill -9 under load: nothing acknowledged is lost, and Kafka's own tool accepts every file that is left.

Three rounds; BARNABAS_KILL_ROUNDS sets another number and prints a line for each (`make test-durability`).
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.harness.broker import Broker
from compat_tests.harness.committed import committed as committed_by
from compat_tests.harness.dumped_logs import LogJudge
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.loads import (
    KEYS,
    PARTITIONS,
    Load,
    Make,
    Reader,
    group_commits,
    kafka_python,
    librdkafka,
)
from compat_tests.harness.topics import create_topic

ROUNDS = int(os.environ.get("BARNABAS_KILL_ROUNDS", "3"))
SMALL_SEGMENTS = {"segment.ms": "250", "retention.ms": "-1"}
COMPACTED = "compacted"
GROUP = "group"
SETTINGS = {
    "log.cleaner.backoff.ms": "100",
    "offsets.topic.num.partitions": "5",
    "log.flush.offset.checkpoint.interval.ms": "500",
}

# topic -> (its configs, its writer)
TOPICS: dict[str, tuple[dict[str, str], Make]] = {
    "librdkafka-idempotent": (SMALL_SEGMENTS, librdkafka(idempotent=True, codec="lz4")),
    "librdkafka-plain": (SMALL_SEGMENTS, librdkafka(idempotent=False)),
    "kafka-python-idempotent": ({"retention.ms": "-1"}, kafka_python),
    "each-flushed": ({**SMALL_SEGMENTS, "flush.messages": "1"}, librdkafka(idempotent=True)),
    "often-flushed": ({**SMALL_SEGMENTS, "flush.ms": "50"}, librdkafka(idempotent=False, codec="gzip")),
    COMPACTED: (
        {**SMALL_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
        librdkafka(idempotent=True),
    ),
}


@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_kill_under_load_loses_nothing_acknowledged(
    fresh_broker: BrokerFactory, java_tools: JavaTools, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = fresh_broker(SETTINGS)
    for name, (configs, _) in TOPICS.items():
        create_topic(broker.bootstrap, name, partitions=PARTITIONS, configs=configs)
    loads = [Load(broker, name, make) for name, (_, make) in TOPICS.items()]
    commits = Load(broker, "librdkafka-plain", group_commits(GROUP))
    readers = {name: Reader(broker, name) for name in TOPICS if name != COMPACTED}
    judge = LogJudge(java_tools, broker.log_dir, tmp_path, {COMPACTED, "__consumer_offsets"})
    for number in range(ROUNDS):
        started = time.monotonic()
        _await_progress([*loads, commits])
        time.sleep(random.random() / 2)  # kill the broker at a random point of the clients' work
        broker.kill()
        acknowledged = {load.topic: len(load.acknowledged) for load in loads}
        committed = commits.acknowledged[-PARTITIONS:]
        for each in (*loads, commits):
            each.pause()
        broker.start()
        broker.stop()
        copied = judge.copy()
        broker.start()
        judge.judge(copied)
        for name, reader in readers.items():
            reader.catch_up()
            load = next(load for load in loads if load.topic == name)
            _check(reader, load, load.acknowledged[: acknowledged[name]])
        _check_commits(broker, committed)
        for each in (*loads, commits):
            each.resume()
        if ROUNDS > 3:
            with capsys.disabled():
                print(
                    f"\nround {number + 1} of {ROUNDS}: {sum(acknowledged.values())} records acknowledged, "
                    f"{judge.judged} files judged, {time.monotonic() - started:.1f} s",
                    end="",
                    flush=True,
                )
    for load in (*loads, commits):
        load.finish()
    for load in loads:
        if load.topic != COMPACTED:
            readers[load.topic].catch_up()
            _check(readers[load.topic], load, load.acknowledged)
    _check_compacted(broker, next(load for load in loads if load.topic == COMPACTED))


def _await_progress(loads: list[Load]) -> None:
    before = {id(load): len(load.acknowledged) for load in loads}

    def all_did() -> bool:
        return all(len(load.acknowledged) > before[id(load)] + 20 for load in loads)

    eventually(all_did)


def _check(reader: Reader, load: Load, acknowledged: list[int]) -> None:
    values = [value for partition in reader.values for value in partition]
    lost = set(acknowledged) - set(values)
    assert not lost, f"{load.topic}: {len(lost)} acknowledged records lost, the first {min(lost)}"
    if "plain" in load.topic or load.topic == "often-flushed":
        return
    for partition in reader.values:
        assert partition == sorted(set(partition)), f"{load.topic}: duplicates, or out of order"
    assert not load.failed, load.failed[:3]


def _check_commits(broker: Broker, committed: list[int]) -> None:
    """Each partition's committed offset is the last one that was acknowledged, or one sent since."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    offsets = {one.partition: one.offset for one in committed_by(admin, GROUP)}
    for offset in committed:
        assert offsets.get(offset % PARTITIONS, -1) >= offset, f"committed {committed}, found {offsets}"


def _check_compacted(broker: Broker, load: Load) -> None:
    """The last value of each key is the last one that was acknowledged."""
    reader = Reader(broker, COMPACTED)
    reader.catch_up()
    newest: dict[int, int] = {}
    for partition in reader.values:
        for value in partition:
            newest[value % KEYS] = max(value, newest.get(value % KEYS, -1))
    for key in range(KEYS):
        wanted = max(value for value in load.acknowledged if value % KEYS == key)
        assert newest.get(key, -1) >= wanted, f"key {key}: {newest.get(key)} instead of {wanted}"
