"""Kafka's DumpLogSegments reads the files of this broker without complaint."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from barnabas.storage.disk.disk import RealDisk
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.manager.manager import LogManager
from barnabas.storage.segment.transaction_marker import build_marker
from barnabas.storage.tests.workshop import verified
from barnabas.wire.compression import Codec

JARS = Path(__file__).resolve().parents[2] / ".cache" / "kafka-4.3.1" / "lib"

pytestmark = [pytest.mark.jvm, pytest.mark.sockets]


def dump(files: list[str], *options: str) -> str:
    assert JARS.is_dir(), "Kafka's jars are missing: run `make kafka`"
    command = ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*"]
    command += ["org.apache.kafka.tools.DumpLogSegments", "--files", ",".join(files), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def write_logs(workshop: Any, path: Path) -> tuple[int, list[str]]:
    """Logs with every codec, several segments, a kill, deleted records and a truncation; (batches, files)."""
    logs = LogManager(RealDisk(), [str(path)], workshop.runtime)
    logs.open()
    settings = LogConfig(segment_bytes=20_000, index_interval_bytes=500)
    for codec in Codec:
        log = logs.create(codec.name.lower(), b"i" * 16, 0, settings)
        for turn in range(120):
            fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 3 * turn} if turn % 2 else {}
            batch = workshop.batch(3, size=300, codec=codec, timestamp=workshop.now + turn * 7)
            if fields:
                batch = workshop.batch(
                    3,
                    size=300,
                    codec=codec,
                    timestamp=workshop.now,
                    producer_id=turn,
                    producer_epoch=0,
                    base_sequence=0,
                )
            log.append_as_leader(batch, turn // 50)
    recoded = logs.create(
        "recoded", b"i" * 16, 0, LogConfig(compression_type="lz4", message_timestamp_type="LogAppendTime")
    )
    recoded.append_as_leader(workshop.batch(200, size=1000), 0)
    logs.directories.unlock()  # as kill -9 does
    logs = LogManager(RealDisk(), [str(path)], workshop.runtime, config=settings)
    logs.open()
    first = logs.get("none", 0)
    second = logs.get("gzip", 0)
    assert first is not None
    assert second is not None
    first.increment_log_start_offset(100)
    second.truncate_to(150)
    second.append_as_leader(workshop.batch(2), 9)
    count = sum(len(workshop.content(log)) for log in logs.logs())
    hidden = sum(
        1 for header in first.segments.headers(first.segments[0].base_offset) if header.last_offset < 100
    )
    logs.close()
    files = [str(file) for log in logs.logs() for file in sorted(Path(log.directory).iterdir())]
    return count + hidden, [file for file in files if file.endswith((".log", ".index", ".timeindex"))]


def test_dump_log_segments_accepts_every_file(workshop: Any, tmp_path: Path) -> None:
    batches, files = write_logs(workshop, tmp_path)
    assert len([file for file in files if file.endswith(".log")]) > 8
    output = dump(files, "--deep-iteration", "--print-data-log")
    for complaint in (
        "Mismatches in",
        "Non-consecutive",
        "Out of order",
        "corrupt",
        "isvalid: false",
        "not valid",
    ):
        assert complaint not in output, output[:3000]
    assert len(re.findall(r"^baseOffset: .* isvalid: true$", output, re.MULTILINE)) == batches
    assert len(re.findall(r"compresscodec: lz4", output)) >= 100

    indexes = [file for file in files if not file.endswith(".log")]
    output = dump(indexes, "--index-sanity-check")
    # A segment of one batch has no entry in its offset index yet, which the tool says in other words.
    assert output.count("passed sanity check") == len(indexes) - 1
    assert output.count("is empty") == 1


def test_dump_log_segments_reads_snapshots_and_transaction_indexes(workshop: Any, tmp_path: Path) -> None:
    """It prints every producer and every aborted transaction that the log knows, and their batches agree."""
    logs = LogManager(RealDisk(), [str(tmp_path)], workshop.runtime)
    logs.open()
    log = logs.create("transactions", b"i" * 16, 0, LogConfig(segment_bytes=3000, index_interval_bytes=300))
    for turn in range(60):
        producer, sequence = turn % 3, turn // 3
        batch = workshop.batch(
            1, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        log.append_as_leader(batch, 0, verification=verified(log, batch))
        if turn % 4 == 3 and producer:  # producer 0 stays in its transaction
            batch = build_marker(
                producer, 0, commit=turn % 8 == 3, coordinator_epoch=turn, timestamp=workshop.now + turn
            )
            log.append_as_leader(batch, 0, from_client=False)
    logs.close()
    files = [str(file) for file in sorted(Path(log.directory).iterdir())]
    files = [file for file in files if file.endswith((".log", ".snapshot", ".txnindex"))]
    assert {file.rpartition(".")[2] for file in files} == {"log", "snapshot", "txnindex"}
    output = dump(files)
    dumped = re.findall(
        r"^version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)$",
        output,
        re.MULTILINE,
    )
    known = log.producers.collect_aborted(0, log.log_end_offset)
    assert [tuple(map(int, fields)) for fields in dumped] == [
        (each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset) for each in known
    ]
    assert len(known) > 3
    last = output[output.index(f"{log.log_end_offset:020d}.snapshot") :]
    producers = re.findall(
        r"^producerId: (\d+) producerEpoch: 0 coordinatorEpoch: (-?\d+) "
        r"currentTxnFirstOffset: OptionalLong(?:\.empty|\[(\d+)\]) lastTimestamp: (\d+) "
        r"firstSequence: (\d+) lastSequence: (\d+) lastOffset: (\d+) offsetDelta: 0 timestamp: \d+$",
        last,
        re.MULTILINE,
    )
    assert [tuple(int(field or -1) for field in fields) for fields in producers] == [
        (
            entry.producer_id,
            entry.coordinator_epoch,
            entry.current_transaction_first_offset,
            entry.last_timestamp,
            entry.last_sequence,
            entry.last_sequence,
            entry.last_offset,
        )
        for entry in log.producers.active.values()
    ]
    assert len(re.findall(r"^baseOffset: .* isvalid: true$", output, re.MULTILINE)) == log.log_end_offset
