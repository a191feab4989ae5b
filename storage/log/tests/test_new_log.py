"""A new log is as one that is opened in an empty directory, which is looked through first."""

from __future__ import annotations

from typing import Any

from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.tests.workshop import Workshop


def state_of(log: Log, workshop: Workshop) -> dict[str, Any]:
    files = {name: workshop.disk.read_file(f"/logs/t-0/{name}") for name in workshop.disk.list("/logs/t-0")}
    return {
        "offsets": (log.log_start_offset, log.log_end_offset, log.high_watermark, log.last_stable_offset),
        "epochs": log.epochs.entries,
        "latest epoch": log.epochs.latest_epoch,
        "producers": dict(log.producers.active),
        "recovery point": log.flusher.recovery_point,
        "checkpointed": (log.checkpointed_high_watermark, log.checkpointed_start_offset, log.gap_from),
        "segments": log.segments.bases,
        "files": files,
    }


def test_a_new_log_is_as_one_opened_in_an_empty_directory() -> None:
    opened, created = Workshop(), Workshop()
    logs = {
        opened: opened.log(),
        created: Log.create(created.disk, created.runtime, "/logs", "t", 0, b"i" * 16, LogConfig()),
    }
    assert state_of(logs[created], created) == state_of(logs[opened], opened)
    for workshop, log in logs.items():
        log.append_as_leader(workshop.batch(3), 4)
        log.roll()
        log.append_as_leader(workshop.batch(2), 5)
        log.flush()
    assert state_of(logs[created], created) == state_of(logs[opened], opened)


def test_a_new_log_that_is_closed_leaves_what_an_opened_one_does() -> None:
    opened, created = Workshop(), Workshop()
    opened.log().close()
    Log.create(created.disk, created.runtime, "/logs", "t", 0, b"i" * 16, LogConfig()).close()
    assert created.disk.list("/logs/t-0") == opened.disk.list("/logs/t-0")
