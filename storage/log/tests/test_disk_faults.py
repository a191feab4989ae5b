"""A full or failing disk: Kafka's code, an unharmed log, and nothing half-written that stays."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.storage.disk.disk import FileRegion, RealDisk
from barnabas.storage.errors import StorageError
from barnabas.storage.tests.workshop import offset_for_timestamp
from barnabas.wire.errors import ErrorCode


def refused(log: Any, batch: bytes) -> None:
    with pytest.raises(StorageError) as caught:
        log.append_as_leader(batch, 0)
    assert caught.value.error == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("size", [10, 30_000])
@given(room=st.integers(0, 31_000))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_full_disk_refuses_and_recovers(make_workshop: Any, size: int, room: int) -> None:
    workshop = make_workshop()
    log = workshop.log(segment_bytes=100_000)
    log.append_as_leader(workshop.batch(3), 0)
    before = workshop.content(log)
    disk = workshop.disk
    batch = workshop.batch(size=size)
    disk.capacity = sum(len(file.data) for file in disk.files.values()) + room % len(batch)
    refused(log, batch)
    assert workshop.content(log) == before
    assert disk.size(log.segments[-1].path) == log.segments[-1].size
    assert workshop.content(workshop.log(clean=False)) == before
    disk.capacity = None
    result = log.append_as_leader(batch, 0)
    assert result.base_offset == 3
    assert len(workshop.content(log)) == 2


def test_a_full_disk_at_the_roll_keeps_the_old_segment_in_use(workshop: Any) -> None:
    log = workshop.log(segment_bytes=150)
    log.append_as_leader(workshop.batch(2), 0)
    before = workshop.content(log)
    workshop.disk.fault = lambda operation, _: errno.ENOSPC if operation == "open" else None
    refused(log, workshop.batch(2))
    workshop.disk.fault = None
    assert workshop.content(log) == before
    log.append_as_leader(workshop.batch(2), 0)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_a_roll_that_cannot_write_the_time_index_leaves_no_segment_behind(workshop: Any) -> None:
    first = workshop.log(segment_bytes=150)
    first.append_as_leader(workshop.batch(2), 0)
    first.close()
    log = workshop.log(segment_bytes=150)  # it has to ask the disk for the size of the time index
    workshop.disk.fault = lambda _, path: errno.ENOSPC if path.endswith(".timeindex") else None
    refused(log, workshop.batch(2))
    workshop.disk.fault = None
    assert [name for name in workshop.disk.list(log.directory) if name.endswith(".log")] == [
        "00000000000000000000.log"
    ]


@pytest.mark.parametrize("rolls", [False, True])
def test_a_torn_tail_that_cannot_be_cut_is_cut_before_the_next_append(workshop: Any, rolls: bool) -> None:
    log = workshop.log()
    log.append_as_leader(workshop.batch(), 0)
    written: list[bool] = []

    def half_a_write(operation: str, _: str) -> int | None:
        if operation == "truncate":
            return errno.EIO
        if operation == "write" and written:
            return errno.EIO
        written.append(operation == "write")
        return None

    workshop.disk.short_write = 40
    workshop.disk.fault = half_a_write
    refused(log, workshop.batch(size=500))
    path = log.segments[-1].path
    assert workshop.disk.files[path].data[log.size :]
    refused(log, workshop.batch())
    workshop.disk.short_write = workshop.disk.fault = None
    if rolls:
        log.roll()
    log.append_as_leader(workshop.batch(), 0)
    assert len(workshop.disk.files[path].data) == log.segments[0].size
    assert len(log.segments) == 1 + rolls
    assert len(workshop.content(workshop.log(clean=False))) == 2


def test_reads_go_on_while_writes_fail(workshop: Any) -> None:
    log = workshop.log()
    log.append_as_leader(workshop.batch(), 0)
    workshop.disk.fault = lambda operation, _: errno.EIO if operation == "write" else None
    refused(log, workshop.batch())
    assert len(workshop.content(log)) == 1


def test_a_failed_read_is_a_storage_error(workshop: Any) -> None:
    log = workshop.log()
    for _ in range(3):
        log.append_as_leader(workshop.batch(2), 0)
    log.truncate_to(4)

    def fail_reads(operation: str, _: str) -> int | None:
        return errno.EIO if operation == "read" else None

    workshop.disk.fault = fail_reads
    reopened = workshop.log  # opening reads too, and fails as the operating system says
    with pytest.raises(OSError, match="Input/output"):
        reopened(clean=False)
    for act in (
        partial(log.read, 1, 10),
        partial(offset_for_timestamp, log, workshop.now),
    ):
        with pytest.raises(StorageError) as caught:
            act()
        assert caught.value.error == ErrorCode.KAFKA_STORAGE_ERROR
    workshop.disk.fault = None
    log.append_as_leader(workshop.batch(producer_id=1, producer_epoch=0, base_sequence=0), 0)


def test_after_a_failed_sync_nothing_is_acknowledged(workshop: Any) -> None:
    """What the kernel has dropped may not be acknowledged later by an fsync that succeeds."""
    log = workshop.log()
    log.append_as_leader(workshop.batch(), 0)
    workshop.disk.fault = lambda operation, _: errno.EIO if operation == "sync" else None
    with pytest.raises(StorageError):
        log.flush()
    workshop.disk.fault = None
    refused(log, workshop.batch())
    assert log.flusher.recovery_point == 0
    assert len(workshop.content(log)) == 1


def test_a_region_outlives_its_segment(tmp_path: Any) -> None:
    disk = RealDisk()
    path = str(tmp_path / "file")
    file = disk.open(path, create=True)
    file.pwrite(b"0123456789", 0)
    region = FileRegion(file, 2, 6)
    descriptor = region.fileno()
    del file
    disk.remove(path)
    assert (len(region), region.read(), region.read(1, 2)) == (6, b"234567", b"34")
    left, right = socket.socketpair()
    with left, right:
        assert region.send_to(left.fileno(), 1, 5) == 5
        assert right.recv(100) == b"34567"
    del region
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.sockets
def test_a_lock_keeps_other_processes_out(tmp_path: Any) -> None:
    path = str(tmp_path / ".lock")
    lock = RealDisk().lock(path)
    script = f"""
from barnabas.storage.disk.disk import RealDisk
try:
    RealDisk().lock({path!r})
except BlockingIOError:
    print("held")
else:
    print("free")
"""

    def ask() -> str:
        return subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout

    assert ask() == "held\n"
    lock.release()
    assert ask() == "free\n"


def test_write_file_replaces_in_one_step(tmp_path: Any) -> None:
    disk = RealDisk()
    path = str(tmp_path / "checkpoint")
    disk.write_file(path, b"one")
    disk.write_file(path, b"two", sync=False)
    assert disk.read_file(path) == b"two"
    assert disk.list(str(tmp_path)) == ["checkpoint"]
