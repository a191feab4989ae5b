"""Retention and compaction, now instead of when their time comes. Functions run on the broker's loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.storage.compaction.cleaning import plan
from barnabas.storage.compaction.job import CleaningJob
from barnabas.storage.compaction.log_to_clean import measure
from barnabas.storage.errors import StorageError
from barnabas.testing.contents import UnknownTopic, image_of
from barnabas.testing.operations import when
from barnabas.wire.record_batch import RecordBatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.storage.compaction.job import Outcome
    from barnabas.storage.log.log import Log
    from barnabas.testing.broker_node import BrokerNode
    from barnabas.testing.operations import Done

MAP_BYTES: Final = 16 * 1024 * 1024  # of the cleaner's map: room for 700,000 keys
_LOAD_FACTOR: Final = 0.9


def run_retention(nodes: Sequence[BrokerNode], topic: str | None, done: Done) -> None:
    """Remove what retention.ms, retention.bytes, barnabas.retention.messages and DeleteRecords let go, of one topic or of all.
    Leaders do so; followers take over where the log begins with the next that they fetch."""
    running = _running(nodes, topic)
    waiting = len(running)

    def one_done() -> None:
        nonlocal waiting
        waiting -= 1
        if waiting == 0:
            done(None)

    for node in running:
        node.node.services.log_manager.enforce_retention(one_done, _logs(node, topic))


def run_compaction(nodes: Sequence[BrokerNode], topic: str | None, done: Done) -> None:
    """Clean compacted topics, whatever their dirty ratio, their newest records among them (the active segment is rolled).
    What min.compaction.lag.ms protects stays."""
    work = [
        (node, log)
        for node in _running(nodes, topic)
        for log in _logs(node, topic)
        if log.config.is_compacted and not log.closed and log.failure is None
    ]
    for _, log in work:
        log.roll()
    _clean_next(nodes, work, done)


def _clean_next(nodes: Sequence[BrokerNode], work: list[tuple[BrokerNode, Log]], done: Done) -> None:
    if not work:
        done(None)
        return
    node, log = work.pop()

    def go_on(_job: CleaningJob, outcome: Outcome) -> None:
        if outcome.error is not None:
            done(RuntimeError(f"{log.name} could not be cleaned: {outcome.error}"))
        else:
            _clean_next(nodes, work, done)

    def begin() -> None:
        try:
            choice = measure(log, log.log_start_offset, node.disk, node.runtime.time_ms())
            if not choice.cleanable_bytes:
                _clean_next(nodes, work, done)
                return
            cleaning = plan(choice, node.disk, node.runtime.time_ms(), MAP_BYTES, _LOAD_FACTOR)
        except (OSError, RecordBatchError, StorageError) as error:
            done(error)
            return
        CleaningJob(node.disk, node.runtime, log, cleaning, lambda _: 0.0, go_on).start()

    # Not while the broker's own cleaner is at it, nor before the segment that was rolled is on the disk.
    when(
        nodes,
        lambda: not log.cleaning and log.flusher.sealed_offset >= log.segments[-1].base_offset,
        begin,
        done,
    )


def _running(nodes: Sequence[BrokerNode], topic: str | None) -> list[BrokerNode]:
    if topic is not None and topic not in image_of(nodes).topics:
        raise UnknownTopic(f"there is no topic {topic!r}")
    return [node for node in nodes if node.is_running and node.is_ready]


def _logs(node: BrokerNode, topic: str | None) -> list[Log]:
    logs = node.node.services.log_manager.logs()
    return [log for log in logs if topic is None or log.topic == topic]
