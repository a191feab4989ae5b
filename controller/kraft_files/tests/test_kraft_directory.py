"""Going to Kafka and back on one directory, through kills and power failures at any step: each start sees
everything that was acknowledged, or does not start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.kraft_files.directory import FENCE, KraftDirectory
from barnabas.controller.kraft_files.importer import import_image
from barnabas.controller.kraft_files.log import read_kraft_log
from barnabas.controller.metadata.controller import Controller
from barnabas.controller.metadata.decision import Decision
from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.image import MetadataImage
from barnabas.controller.metadata.local_log import LocalMetadataLog
from barnabas.controller.metadata.records import encode_record
from barnabas.controller.sessions.single_node import start_alone
from barnabas.testing.memory_disk import MemoryDisk, ProcessKilled
from barnabas.wire.messages import metadata_records as wire
from barnabas.wire.records import Record, build_batch
from compat_tests.virtual.runtime import VirtualRuntime

LOGS = "/logs"
KRAFT = f"{LOGS}/__cluster_metadata-0"
DIRECTORY_ID = bytes(15) + b"\xff"
SETTINGS = SimpleNamespace(node_id=1, broker_rack=None, listeners=[], value=lambda _name: "1")


def topic_id(name: str) -> bytes:
    return name.encode().rjust(16, b"t")


def toggled(topics: set[str], name: str) -> list[msgspec.Struct]:
    """Records that create the topic, or delete it when it is there."""
    if name in topics:
        return [wire.RemoveTopicRecord(topic_id=topic_id(name))]
    partition = wire.PartitionRecord(
        partition_id=0,
        topic_id=topic_id(name),
        replicas=[1],
        isr=[1],
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=[DIRECTORY_ID],
    )
    return [wire.TopicRecord(name=name, topic_id=topic_id(name)), partition]


class Ours:
    """One run of this broker's controller. `acknowledged` grows with each change that was answered."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.runtime = VirtualRuntime(1)
        self.kraft = KraftDirectory(disk, LOGS, self.runtime)

    def start(self) -> None:
        self.kraft.enter(1, lambda: [DIRECTORY_ID])
        self.log = LocalMetadataLog(self.disk, self.kraft.journal_directory, self.runtime)
        self.controller = Controller(self.log)
        start_alone(self.controller, SETTINGS, self.runtime)

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    def toggle(self, name: str, acknowledged: list[str]) -> None:
        def operation(image: MetadataImage) -> Decision[str]:
            return Decision(toggled(set(image.topics), name), name)

        self.controller.run(operation, acknowledged.append)
        self.runtime.run_until_idle()

    def stop(self) -> None:
        assert self.log.at_rest
        self.controller.close()
        self.kraft.leave(self.image, [DIRECTORY_ID], lambda topic, partition: DIRECTORY_ID, None)


class Kafka:
    """What Kafka does to the directory: refuses a quorum-state that it can't read, cuts a log that ends before
    the newest checkpoint, elects itself in a new epoch, appends. `topics` is what it would serve."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.refused = False
        state = f"{KRAFT}/quorum-state"
        if disk.exists(state) and disk.read_file(state) == FENCE:
            self.refused = True
            return
        if not disk.exists(KRAFT):
            disk.make_directory(KRAFT)
            disk.sync_directory(LOGS)
        found = read_kraft_log(disk, KRAFT, f"{LOGS}/bootstrap.checkpoint")
        image = import_image(found, 1, [DIRECTORY_ID])
        self.topics = set(image.topics)
        self.offset, self.epoch = found.end_offset, found.epoch + 1
        self.write(state, json.dumps({"leaderId": 1, "leaderEpoch": self.epoch, "data_version": 1}).encode())
        self.append([wire.NoOpRecord()])

    def append(self, records: Sequence[msgspec.Struct]) -> None:
        listed = [
            Record(self.offset + index, 0, None, encode_record(record))
            for index, record in enumerate(records)
        ]
        batch = build_batch(listed, base_offset=self.offset, leader_epoch=self.epoch)
        self.write(f"{KRAFT}/{self.offset:020d}.log", batch)  # a segment for each: names tell where it starts
        self.offset += len(records)

    def write(self, path: str, content: bytes) -> None:
        self.disk.write_file(path, content)

    def toggle(self, name: str) -> None:
        self.append(toggled(self.topics, name))
        self.topics ^= {name}


NAMES = st.sampled_from(["a", "b", "c", "d"])
RUN = st.tuples(
    st.sampled_from(["ours", "kafka"]),
    st.lists(NAMES, max_size=3),
    st.one_of(st.none(), st.integers(0, 40)),  # changes to the disk that this broker lives to make
    st.booleans(),  # whether the power fails with it
)


@given(runs=st.lists(RUN, min_size=1, max_size=8), data=st.data())
def test_crossings_between_brokers_lose_no_acknowledged_change(
    runs: list[tuple[str, list[str], int | None, bool]], data: st.DataObject
) -> None:
    disk = MemoryDisk()
    disk.make_directory(LOGS)
    disk.sync_directory("/")
    topics: set[str] = set()
    in_doubt: set[str] = set()
    stopped_cleanly = True
    for who, changes, kill_after, power in runs:
        if who == "kafka":
            kafka = Kafka(disk)
            assert not (kafka.refused and stopped_cleanly)
            if kafka.refused:
                continue
            assert kafka.topics ^ topics <= in_doubt
            for name in changes:
                kafka.toggle(name)
            topics, in_doubt, stopped_cleanly = kafka.topics, set(), True
            continue
        acknowledged: list[str] = []
        ours = Ours(disk)
        disk.kill_after = kill_after
        started = False
        try:
            ours.start()
            assert set(ours.image.topics) ^ topics <= in_doubt
            topics, in_doubt, started = set(ours.image.topics), set(changes), True
            for name in changes:
                ours.toggle(name, acknowledged)
            ours.stop()
            stopped_cleanly, disk.kill_after = True, None
        except ProcessKilled:
            stopped_cleanly = False
            if power:
                disk = disk.crash(lambda n: data.draw(st.integers(0, n)))
            disk.revive()
        if started:
            for name in acknowledged:
                topics ^= {name}
            in_doubt = set() if stopped_cleanly else set(changes[len(acknowledged) :])


def test_a_directory_created_by_a_killed_start_survives_a_power_failure() -> None:
    disk = MemoryDisk()
    disk.make_directory(LOGS)
    disk.sync_directory("/")
    disk.kill_after = 1
    with pytest.raises(ProcessKilled):
        Ours(disk).start()
    disk.revive()
    ours, acknowledged = Ours(disk), list[str]()
    ours.start()
    ours.toggle("a", acknowledged)
    assert acknowledged == ["a"]
    again = Ours(disk.crash(lambda _: 0))
    again.start()
    assert set(again.image.topics) == {"a"}


@pytest.mark.parametrize("was_kafkas", [False, True])
def test_the_fence_and_journal_of_a_killed_start_survive_a_power_failure(was_kafkas: bool) -> None:
    """And so does the journal, whatever the change to the disk behind which the start was killed."""
    for kill_after in range(60):
        disk = MemoryDisk()
        disk.make_directory(LOGS)
        disk.sync_directory("/")
        if was_kafkas:
            Kafka(disk)
        disk.kill_after = kill_after
        try:
            Ours(disk).start()
        except ProcessKilled:
            pass
        disk.revive()
        ours, acknowledged = Ours(disk), list[str]()
        ours.start()
        ours.toggle("a", acknowledged)
        assert acknowledged == ["a"]
        disk = disk.crash(lambda _: 0)
        assert Kafka(disk).refused, kill_after
        ours = Ours(disk)
        ours.start()
        assert set(ours.image.topics) == {"a"}, kill_after


def test_changes_in_both_logs_are_refused() -> None:
    disk = MemoryDisk()
    disk.make_directory(LOGS)
    for name in ("a", "b"):
        ours = Ours(disk)
        ours.start()
        ours.toggle(name, [])
        if name == "a":
            ours.stop()
    disk.remove(f"{KRAFT}/quorum-state")  # by hand, to make Kafka start
    Kafka(disk).toggle("c")
    with pytest.raises(MetadataError, match="both hold metadata that the other lacks"):
        Ours(disk).start()


def test_offsets_and_epochs_continue_across_crossings() -> None:
    disk = MemoryDisk()
    disk.make_directory(LOGS)
    ends: list[tuple[int, int]] = []
    for name in ("a", "b", "c"):
        ours = Ours(disk)
        ours.start()
        ours.toggle(name, [])
        ours.stop()
        kafka = Kafka(disk)
        ends.append((kafka.offset, kafka.epoch))
    assert ends == sorted(set(ends))
    assert {epoch for _, epoch in ends} == {2, 4, 6}


def test_a_stop_leaves_one_checkpoint_and_no_log() -> None:
    disk = MemoryDisk()
    disk.make_directory(LOGS)
    Kafka(disk).toggle("a")
    disk.write_file(f"{KRAFT}/partition.metadata", b"version: 0\n")
    ours = Ours(disk)
    ours.start()
    ours.stop()
    names = disk.list(KRAFT)
    assert len(names) == 3
    assert names[0].endswith("-0000000002.checkpoint")
    assert names[1:] == ["barnabas", "partition.metadata"]
