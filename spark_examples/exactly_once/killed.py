"""Kills the job with SIGKILL at the worst time: when a batch is in the second topic, and not yet in the checkpoint.

A batch is in progress when the topic holds more records than the committed batches of the checkpoint. `offsets/N` is the
end of batch N in the source, written before it runs; `commits/N` is written after it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from spark_examples.exactly_once.job import COPIES_TOPIC, FLIGHTS_TOPIC, copies_checkpoint
from spark_examples.shared.program import say
from spark_examples.shared.spark_session import Target
from spark_examples.shared.topics import PARTITIONS

_ATTEMPTS = 8
_COMMITTED_FIRST = 2  # batches that are over before any kill
_TIMEOUT_S = 480


def committed_batches(checkpoint: Path) -> list[int]:
    """The numbers of the batches that are over."""
    return sorted(int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdigit())


def committed_records(checkpoint: Path) -> int:
    """How many records of the source the committed batches hold, all of them."""
    batches = committed_batches(checkpoint)
    if not batches:
        return 0
    ends = (checkpoint / "offsets" / str(batches[-1])).read_text().splitlines()[-1]
    by_partition: dict[str, int] = json.loads(ends)[FLIGHTS_TOPIC]
    return sum(by_partition.values())


def records_held(consumer: Consumer) -> int:
    """How many records the second topic holds."""
    return sum(
        consumer.get_watermark_offsets(TopicPartition(COPIES_TOPIC, partition), timeout=30)[1]
        for partition in range(PARTITIONS)
    )


def kill_in_the_middle(bootstrap: str, folder: Path, batch: int, target: Target) -> int:
    """Run the job and kill it within a batch; return the number of written records that are in no checkpoint.

    A batch may still be committed between the check and the kill; then start and kill the job again. Raises RuntimeError
    if no attempt succeeds.
    """
    checkpoint = copies_checkpoint(folder)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody", "log_level": 2})
    try:
        for attempt in range(1, _ATTEMPTS + 1):
            with _job(bootstrap, folder, batch, target) as process:
                say(f"started the job, process {process.pid}")
                _await_half_a_batch(process, consumer, checkpoint)
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            unknown = records_held(consumer) - committed_records(checkpoint)
            say(
                f"kill -9: {len(committed_batches(checkpoint))} batches are committed, {unknown:,} records of "
                f"the next one are in {COPIES_TOPIC}"
            )
            if unknown > 0:
                return unknown
            say(f"the batch was over just then: attempt {attempt + 1}")
    finally:
        consumer.close()
    raise RuntimeError("the job could not be killed in the middle of a batch")


@contextmanager
def _job(bootstrap: str, folder: Path, batch: int, target: Target) -> Iterator[subprocess.Popen[bytes]]:
    """The job in a process group of its own, so that its Java dies with it."""
    command = [sys.executable, "-m", "spark_examples.exactly_once.job", bootstrap, str(folder), str(batch)]
    command += [target.master, json.dumps(dict(target.conf))]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_half_a_batch(process: subprocess.Popen[bytes], consumer: Consumer, checkpoint: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing to kill within {_TIMEOUT_S} s")
        held = records_held(consumer)  # before the look at the checkpoint, which only grows
        if len(committed_batches(checkpoint)) >= _COMMITTED_FIRST and held > committed_records(checkpoint):
            return
        time.sleep(0.005)
    raise RuntimeError(f"the job ended by itself, with {process.returncode}")
