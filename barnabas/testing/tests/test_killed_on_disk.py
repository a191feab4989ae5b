"""A node of this process that is killed while it has files: as after kill -9, but that the process goes on."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from barnabas.testing import Broker
from barnabas.testing.killable_disk import KillableDisk

pytestmark = pytest.mark.sockets

MARKER = ".kafka_cleanshutdown"
RECOVERED = "was not stopped cleanly: recovered 1 logs"


def files_open_below(folder: Path) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_nothing_is_closed_in_order_and_the_next_start_recovers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "barnabas")
    with Broker(directory=tmp_path) as broker:
        broker.create_topic("orders")
        broker.seed("orders", [b"1", b"2"])
        before = contents(tmp_path)
        broker.kill_node(1)
        assert contents(tmp_path) == before
        assert not (tmp_path / MARKER).exists()
        assert not files_open_below(tmp_path), "a dead process has none"
        assert caplog.text.count(RECOVERED) == 0
        broker.start_node(1)
        assert caplog.text.count(RECOVERED) == 1
        assert [record.value for record in broker.records("orders")] == [b"1", b"2"]
        broker.produce("orders", b"3")
    assert (tmp_path / MARKER).exists(), "the end is one in order"
    with Broker(directory=tmp_path) as broker:
        assert caplog.text.count(RECOVERED) == 1
        assert [record.value for record in broker.records("orders")] == [b"1", b"2", b"3"]
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    # Clients of other tests of this process may log as well.
    assert not [record for record in errors if record.name.partition(".")[0] not in ("aiokafka", "kafka")]


def test_a_torn_end_is_cut_off(tmp_path: Path) -> None:
    """What recovery is for: a clean start would believe it."""
    with Broker(directory=tmp_path) as broker:
        broker.seed("orders", [b"kept"])
        broker.kill_node(1)
        with (tmp_path / "orders-0" / f"{0:020}.log").open("ab") as log:
            log.write(b"half a batch")
        broker.start_node(1)
        assert broker.produce("orders", b"next").offset == 1
        assert [record.value for record in broker.records("orders")] == [b"kept", b"next"]


def test_another_broker_may_have_the_directory_of_a_dead_one(tmp_path: Path) -> None:
    with Broker(directory=tmp_path) as broker:
        broker.seed("orders", [b"kept"])
        broker.kill_node(1)
        with Broker(directory=tmp_path) as other:
            assert [record.value for record in other.records("orders")] == [b"kept"]
    assert not files_open_below(tmp_path)


def test_a_leader_of_a_cluster_with_files_dies_and_comes_back(tmp_path: Path) -> None:
    with Broker(nodes=3, directory=tmp_path) as broker:
        broker.create_topic("orders")
        broker.seed("orders", [b"1"])
        leader = broker.partition("orders").leader
        broker.kill_node(leader)
        broker.produce("orders", b"2")
        assert not (tmp_path / f"node-{leader}" / MARKER).exists()
        broker.start_node(leader)
        broker.wait_until_in_sync()
        assert sorted(broker.partition("orders").isr) == [1, 2, 3]
        assert [record.value for record in broker.records("orders")] == [b"1", b"2"]


def test_in_the_running_loop(tmp_path: Path) -> None:
    async def run() -> None:
        async with Broker(directory=tmp_path) as broker:
            await broker.seed("orders", [b"kept"])
            broker.kill_node(1)
            assert not (tmp_path / MARKER).exists()
            await broker.start_node(1)
            assert [record.value for record in broker.records("orders")] == [b"kept"]

    asyncio.run(run())


def test_a_thread_that_is_still_at_work_changes_nothing_more(tmp_path: Path) -> None:
    disk = KillableDisk()
    path = str(tmp_path / "file")
    file = disk.open(path, create=True)
    file.pwrite(b"before", 0)
    lock = disk.lock(str(tmp_path / ".lock"))
    disk.cut()
    for change in (
        lambda: file.pwrite(b"after", 6),
        lambda: file.pwritev([b"after"], 6),
        lambda: file.truncate(0),
        file.sync,
        lambda: file.write_back(0, 6),
        lambda: disk.write_file(path, b"after"),
        lambda: disk.open(path),
        lambda: disk.rename(path, path + "-2"),
        lambda: disk.remove(path),
        lambda: disk.remove_tree(str(tmp_path)),
        lambda: disk.make_directory(str(tmp_path / "new")),
        lambda: disk.set_modified_ms(path, 0),
        lambda: disk.sync_directory(str(tmp_path)),
        lambda: disk.lock(path),
    ):
        with pytest.raises(OSError, match="was killed"):
            change()
    assert file.pread(10, 0) == b"before"
    disk.close()
    assert not files_open_below(tmp_path)
    lock.release()
    assert sorted(os.listdir(tmp_path)) == [".lock", "file"]
    KillableDisk().lock(str(tmp_path / ".lock")).release()
