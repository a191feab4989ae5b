"""Log directories: whose they are, what is in them, and what a start, a stop and a deletion leave."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from barnabas.storage.disk.disk import RealDisk
from barnabas.storage.errors import LogDirectoryError, StorageError
from barnabas.storage.log.log_config import LONG_MAX, LogConfig
from barnabas.storage.log.producers import PRODUCER_ID_EXPIRATION_MS
from barnabas.storage.manager.manager import LogManager, LogManagerSettings, parse_directory_name
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode
from barnabas.wire.uuids import uuid_from_string, uuid_to_string
from compat_tests.virtual.runtime import VirtualRuntime

TOPIC_ID = bytes(range(1, 17))


def manager(workshop: Any, *paths: Path, **settings: Any) -> LogManager:
    opened = LogManager(RealDisk(), [str(path) for path in paths], workshop.runtime, **settings)
    opened.open()
    return opened


def reconfigure(
    opened: LogManager,
    *,
    producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
    cordoned: Sequence[str] = (),
) -> None:
    opened.reconfigure(
        producer_id_expiration_ms=producer_id_expiration_ms,
        cordoned=cordoned,
        move_bytes_per_second=float("inf"),
    )


def abandon(opened: LogManager) -> None:
    """As kill -9 does: nothing is written, the lock goes with the process."""
    opened.directories.unlock()


def test_files_are_kafkas(workshop: Any, tmp_path: Path) -> None:
    logs = manager(workshop, tmp_path, node_id=7, cluster_id="Some-cluster-id-of-22-c")
    log = logs.create("a-topic", TOPIC_ID, 3, LogConfig())
    log.append_as_leader(workshop.batch(), 0)
    directory = tmp_path / "a-topic-3"
    assert (
        directory / "partition.metadata"
    ).read_text() == f"version: 0\ntopic_id: {uuid_to_string(TOPIC_ID)}\n"
    properties = dict(
        line.split("=") for line in (tmp_path / "meta.properties").read_text().splitlines() if "=" in line
    )
    assert (properties["version"], properties["node.id"]) == ("1", "7")
    assert properties["cluster.id"] == "Some-cluster-id-of-22-c"
    assert len(uuid_from_string(properties["directory.id"])) == 16
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    logs.close()
    assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":-1}'
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\na-topic 3 1\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n0\n"
    assert sorted(os.listdir(directory)) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000001.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_finds_everything(workshop: Any, tmp_path: Path, clean: bool) -> None:
    logs = manager(workshop, tmp_path)
    for partition in range(3):
        log = logs.create("t", TOPIC_ID, partition, LogConfig(segment_bytes=200))
        for _ in range(10 * partition):
            log.append_as_leader(workshop.batch(), 2)
    content = {log.partition: workshop.content(log) for log in logs.logs()}
    cluster_id = logs.directories.cluster_id
    if clean:
        logs.close()
    else:
        abandon(logs)
    again = manager(workshop, tmp_path)
    assert (again.directories.cluster_id, again.clean_start) == (cluster_id, clean)
    assert {log.partition: workshop.content(log) for log in again.logs()} == content
    found = again.get("t", 2)
    assert found is not None
    assert (found.topic_id, found.log_dir, found.epochs.latest_epoch) == (TOPIC_ID, str(tmp_path), 2)
    again.close()


def test_the_clean_marker_serves_once(workshop: Any, tmp_path: Path) -> None:
    first = manager(workshop, tmp_path)
    first.create("t", TOPIC_ID, 0, LogConfig())
    first.close()
    second = manager(workshop, tmp_path)
    assert second.clean_start
    abandon(second)
    third = manager(workshop, tmp_path)
    assert not third.clean_start
    third.close()


def test_an_unclean_start_reads_only_beyond_the_recovery_point(workshop: Any, tmp_path: Path) -> None:
    logs = manager(workshop, tmp_path)
    log = logs.create("t", TOPIC_ID, 0, LogConfig(segment_bytes=200))
    for _ in range(10):
        log.append_as_leader(workshop.batch(), 0)
    logs.checkpoint()
    first = Path(log.segments[0].path)
    damaged = bytearray(first.read_bytes())
    damaged[-1] ^= 1
    first.write_bytes(damaged)
    abandon(logs)
    again = manager(workshop, tmp_path)
    found = again.get("t", 0)
    assert found is not None
    assert found.log_end_offset == 10
    again.close()


def test_delete_records_survives_kill(workshop: Any, tmp_path: Path) -> None:
    logs = manager(workshop, tmp_path)
    log = logs.create("t", TOPIC_ID, 0, LogConfig(segment_bytes=200))
    for _ in range(9):
        log.append_as_leader(workshop.batch(), 0)
    log.increment_log_start_offset(5)
    assert log.segments[0].base_offset == 4
    workshop.runtime.advance(0)
    abandon(logs)
    again = manager(workshop, tmp_path)
    found = again.get("t", 0)
    assert found is not None
    assert found.log_start_offset == 5
    again.close()


def test_a_deleted_log_is_renamed_then_removed(workshop: Any, tmp_path: Path) -> None:
    logs = manager(workshop, tmp_path)
    log = logs.create("t", TOPIC_ID, 0, LogConfig(file_delete_delay_ms=5000))
    log.append_as_leader(workshop.batch(size=100), 0)
    region = log.read(0, 1000).regions[0]
    logs.delete("t", 0)
    assert logs.get("t", 0) is None
    (name,) = [name for name in os.listdir(tmp_path) if name.startswith("t-0")]
    assert name.endswith("-delete")
    assert len(name) == len("t-0." + 32 * "x" + "-delete")
    logs.create("t", bytes(15) + b"2", 0, LogConfig())
    workshop.runtime.advance(5)
    assert not (tmp_path / name).exists()
    assert (tmp_path / "t-0").exists()
    assert len(region.read()) == len(region)
    logs.close()


def test_deletion_continues_after_a_restart(workshop: Any, tmp_path: Path) -> None:
    logs = manager(workshop, tmp_path)
    logs.create("x" * 249, TOPIC_ID, 0, LogConfig())
    logs.delete("x" * 249, 0)
    (name,) = [name for name in os.listdir(tmp_path) if name.startswith("xxx")]
    assert len(name) <= 255
    logs.close()
    again = manager(workshop, tmp_path)
    assert again.logs() == []
    workshop.runtime.advance(61)
    assert not (tmp_path / name).exists()
    again.close()


def test_two_managers_can_not_share_a_directory(workshop: Any, tmp_path: Path) -> None:
    logs = manager(workshop, tmp_path)
    with pytest.raises(LogDirectoryError, match=r"in use by another process.*log\.dirs"):
        manager(workshop, tmp_path)
    logs.close()
    manager(workshop, tmp_path).close()


@pytest.mark.sockets
def test_a_killed_process_leaves_no_lock(workshop: Any, tmp_path: Path) -> None:
    script = "import sys, time\nfrom barnabas.storage.disk.disk import RealDisk\n"
    script += "RealDisk().lock(sys.argv[1] + '/.lock'); hold = RealDisk().lock\n"
    script = script.replace("RealDisk().lock(sys.argv[1]", "lock = RealDisk().lock(sys.argv[1]")
    script += "print('locked', flush=True); time.sleep(60)\n"
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(LogDirectoryError, match="in use"):
            manager(workshop, tmp_path)
        process.kill()
    manager(workshop, tmp_path).close()


def test_another_brokers_directory_is_refused(workshop: Any, tmp_path: Path) -> None:
    manager(workshop, tmp_path, node_id=1, cluster_id="mine").close()
    with pytest.raises(LogDirectoryError, match=r"node\.id=1.*node\.id=2"):
        manager(workshop, tmp_path, node_id=2)
    with pytest.raises(LogDirectoryError, match=r"cluster\.id=mine"):
        manager(workshop, tmp_path, cluster_id="other")
    manager(workshop, tmp_path).close()


@pytest.mark.parametrize("content", ["version=0\nbroker.id=1\n", "version=1\n", "version=1\nnode.id=x\n", ""])
def test_meta_properties_that_say_nothing_useful(workshop: Any, tmp_path: Path, content: str) -> None:
    (tmp_path / "meta.properties").write_text(content)
    with pytest.raises(LogDirectoryError, match=r"meta\.properties"):
        manager(workshop, tmp_path)


def test_a_directory_that_can_not_be_made_is_named(workshop: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogDirectoryError, match=r"file/logs.*log\.dirs"):
        manager(workshop, tmp_path / "file" / "logs")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_is_named(workshop: Any, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(LogDirectoryError, match=r"log\.dirs"):
        manager(workshop, tmp_path)


def test_permission_denied_by_the_disk_is_named(workshop: Any) -> None:
    workshop.disk.fault = lambda operation, path: 13 if operation == "open" and ".lock" in path else None
    logs = LogManager(workshop.disk, ["/data"], workshop.runtime)
    with pytest.raises(LogDirectoryError, match=r"/data.*log\.dirs.*Permission denied"):
        logs.open()
    assert not workshop.disk.locks


def test_several_directories_share_the_partitions(workshop: Any, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    logs = manager(workshop, one, two)
    for partition in range(6):
        logs.create("t", TOPIC_ID, partition, LogConfig())
    assert [len([name for name in os.listdir(path) if name.startswith("t-")]) for path in (one, two)] == [
        3,
        3,
    ]
    assert logs.directories.id_of(str(one)) != logs.directories.id_of(str(two))
    logs.close()
    again = manager(workshop, one, two)
    assert len(again.logs()) == 6
    again.close()


def test_creation_on_a_full_disk_leaves_nothing(workshop: Any) -> None:
    logs = LogManager(workshop.disk, ["/data"], workshop.runtime)
    logs.open()
    workshop.disk.capacity = workshop.disk.capacity = sum(len(f.data) for f in workshop.disk.files.values())
    with pytest.raises(StorageError) as caught:
        logs.create("t", TOPIC_ID, 0, LogConfig())
    assert caught.value.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert not workshop.disk.exists("/data/t-0")
    workshop.disk.capacity = None
    logs.create("t", TOPIC_ID, 0, LogConfig())


def open_below(folder: Path) -> int:
    """Descriptors of files below it; 0 where the system does not say."""
    if not os.path.isdir("/proc/self/fd"):
        return 0
    files = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            files.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(file.startswith(f"{folder}/") for file in files)


def test_the_thousandth_partition_costs_as_much_as_the_first_and_no_descriptor(
    workshop: Any, tmp_path: Path
) -> None:
    logs = manager(workshop, tmp_path)
    descriptors = open_below(tmp_path)

    def create(partitions: range) -> int:
        """How many calls that takes, of functions in Python."""
        calls = 0

        def count(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal calls
            calls += event == "call"

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            for partition in partitions:
                logs.create("t", TOPIC_ID, partition, LogConfig())
        finally:
            sys.setprofile(before)
        return calls

    create(range(100))
    first = create(range(100, 200))
    create(range(200, 900))
    assert create(range(900, 1000)) <= 1.1 * first
    assert open_below(tmp_path) <= descriptors
    logs.close()


def test_directory_names() -> None:
    assert parse_directory_name("a-b-12") == ("a-b", 12)
    for name in ("a", "-1", "a-", "a-x", "a-0.abc-delete", "a-0-future"):
        assert parse_directory_name(name) is None


def test_settings_from_properties() -> None:
    config = LogConfig.from_properties(
        {
            "segment.bytes": "1000",
            "cleanup.policy": "compact, delete",
            "message.timestamp.type": "LogAppendTime",
            "min.cleanable.dirty.ratio": "0.25",
            "barnabas.retention.messages": "7",
            "barnabas.validate.records": "true",
            "preallocate": "false",
            "unknown": "1",
        }
    )
    assert config.segment_bytes == 1000
    assert config.cleanup_policy == frozenset({"compact", "delete"})
    assert config.is_compacted
    assert config.validate_records
    assert config.retention_messages == 7
    assert not config.preallocate
    assert (config.min_cleanable_dirty_ratio, config.flush_ms) == (0.25, LONG_MAX)


def test_silent_producers_expire(workshop: Any, tmp_path: Path) -> None:
    """producer.id.expiration.ms, looked at every producer.id.expiration.check.interval.ms and at a start."""
    settings = LogManagerSettings(
        producer_id_expiration_ms=60_000, producer_id_expiration_check_interval_ms=10_000
    )

    def start() -> LogManager:
        logs = LogManager(RealDisk(), [str(tmp_path)], workshop.runtime, settings=settings)
        logs.open()
        return logs

    logs = start()
    log = logs.create("t", TOPIC_ID, 0, LogConfig(retention_ms=-1))
    log.append_as_leader(workshop.batch(producer_id=1, producer_epoch=0, base_sequence=0), 0)
    workshop.runtime.advance(30)
    now = workshop.runtime.time_ms()
    log.append_as_leader(workshop.batch(timestamp=now, producer_id=2, producer_epoch=0, base_sequence=0), 0)
    assert set(log.producers.active) == {1, 2}
    for _ in range(5):
        workshop.runtime.advance(10)
    assert set(log.producers.active) == {2}
    logs.close()
    workshop.runtime.wall_offset_ms += 50_000
    logs = start()
    opened = logs.get("t", 0)
    assert opened is not None
    assert not opened.producers.active
    reconfigure(logs, producer_id_expiration_ms=1000)
    now = workshop.runtime.time_ms()
    opened.append_as_leader(
        workshop.batch(timestamp=now, producer_id=3, producer_epoch=0, base_sequence=0), 0
    )
    for _ in range(2):
        workshop.runtime.advance(10)
    assert not opened.producers.active
    logs.close()


def test_the_directories_of_a_large_topic_are_removed_one_at_a_time() -> None:
    class CountingThreads(VirtualRuntime):
        under_way = most = 0

        def run_in_thread(
            self, work: Any, done: Any, *, remote: bool = False, background: bool = False
        ) -> None:
            def ended(result: Any, error: BaseException | None) -> None:
                self.under_way -= 1
                done(result, error)

            self.under_way += 1
            self.most = max(self.most, self.under_way)
            super().run_in_thread(work, ended)

    disk, runtime = MemoryDisk(), CountingThreads()
    logs = LogManager(disk, ["/logs"], runtime)
    logs.open()
    config = LogConfig(file_delete_delay_ms=1000)
    for index in range(20):
        logs.create("t", TOPIC_ID, index, config)
        logs.delete("t", index)
    runtime.advance(0.5)
    runtime.most = 0
    runtime.advance(1)
    assert runtime.most == 1
    assert not any(name.startswith("t-") for name in disk.list("/logs"))


def test_a_node_that_joins_learns_its_cluster_id_and_keeps_its_directory_id(
    workshop: Any, tmp_path: Path
) -> None:
    joining = manager(workshop, tmp_path, begins_cluster=False)
    directory_id = joining.directories.id_of(str(tmp_path))
    assert (joining.directories.cluster_id, bool(directory_id)) == ("", True)
    abandon(joining)
    again = manager(workshop, tmp_path, begins_cluster=False)
    assert (again.directories.cluster_id, again.directories.id_of(str(tmp_path))) == ("", directory_id)
    again.directories.join_cluster("Some-cluster-id-of-22-c")
    again.close()
    member = manager(workshop, tmp_path, begins_cluster=False)
    assert (member.directories.cluster_id, member.directories.id_of(str(tmp_path))) == (
        "Some-cluster-id-of-22-c",
        directory_id,
    )
    with pytest.raises(LogDirectoryError, match=r"cluster\.id"):
        member.directories.join_cluster("Another-cluster-id-22-c")
    member.close()


def test_a_clean_stop_tells_the_next_start_its_broker_epoch(workshop: Any, tmp_path: Path) -> None:
    first = manager(workshop, tmp_path / "a", tmp_path / "b")
    assert first.directories.previous_broker_epoch == -1
    first.registered(17)
    first.close()
    second = manager(workshop, tmp_path / "a", tmp_path / "b")
    assert second.directories.previous_broker_epoch == 17
    abandon(second)
    assert manager(workshop, tmp_path / "a", tmp_path / "b").directories.previous_broker_epoch == -1


def test_a_start_without_registration_keeps_the_last_clean_epoch(workshop: Any, tmp_path: Path) -> None:
    first = manager(workshop, tmp_path)
    first.registered(17)
    first.close()
    manager(workshop, tmp_path).close()  # no controller has answered
    killed = manager(workshop, tmp_path)
    assert killed.directories.previous_broker_epoch == 17
    abandon(killed)
    manager(workshop, tmp_path).close()
    assert manager(workshop, tmp_path).directories.previous_broker_epoch == -1


def test_a_cordoned_directory_gets_no_log_while_there_is_another(workshop: Any, tmp_path: Path) -> None:
    opened = manager(workshop, tmp_path / "one", tmp_path / "two")
    reconfigure(opened, cordoned=[str(tmp_path / "one")])
    for index in range(3):
        log = opened.create("t", b"t" * 16, index, LogConfig())
        assert log.log_dir == str(tmp_path / "two")
    reconfigure(opened, cordoned=[str(tmp_path / "one"), str(tmp_path / "two")])
    assert opened.create("t", b"t" * 16, 3, LogConfig()).log_dir == str(tmp_path / "one"), "the emptier one"
    opened.close()
