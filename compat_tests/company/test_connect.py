"""Kafka Connect, distributed, with the file connectors: its own compacted topics, its group, its REST API; exactly once over
a kill -9 of the worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.testing.ports import free_port
from compat_tests.company.connect import WORKER, Rest, worker_properties
from compat_tests.company.read import read_all
from compat_tests.harness.broker import Broker
from compat_tests.harness.fixture_types import TopicFactory, UniqueName
from compat_tests.harness.java_program import JavaProgram

pytestmark = pytest.mark.jvm

FILE_CONNECTOR = "org.apache.kafka.connect.file.FileStream{}Connector"


def test_file_connectors_copy_through_a_topic_and_continue_after_a_restart(
    broker: Broker, topic: TopicFactory, unique: UniqueName, tmp_path: Path
) -> None:
    name, group = topic(), unique("connect")
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    lines = [f"line {number}" for number in range(500)]
    _append(source, lines[:300])
    port = free_port()
    rest = Rest(port)
    properties = worker_properties(broker, group, port, tmp_path)

    with JavaProgram(WORKER, [str(properties)], tmp_path) as worker:
        worker.wait_until(lambda: rest.get("/connectors") == [])
        rest.put("/connectors/in/config", _file_connector("Source", source, topic=name))
        rest.put("/connectors/out/config", _file_connector("Sink", sink, topics=name))
        worker.wait_until(lambda: rest.runs("in") and rest.runs("out"))
        worker.wait_until(lambda: _lines(sink) == lines[:300])

    _append(source, lines[300:])
    with JavaProgram(WORKER, [str(properties)], tmp_path) as worker:
        worker.wait_until(lambda: _lines(sink) == lines)  # neither doubled nor lost: positions were kept
        worker.wait_until(lambda: rest.get("/connectors") == ["in", "out"])

    assert [value for _, value in read_all(broker.bootstrap, name)] == [line.encode() for line in lines]
    configs = {key.decode() for key, _ in read_all(broker.bootstrap, f"{group}-configs")}
    assert {"connector-in", "connector-out"} <= configs


@pytest.mark.long
def test_a_source_is_copied_exactly_once_over_a_kill(
    broker: Broker, topic: TopicFactory, unique: UniqueName, tmp_path: Path
) -> None:
    """Records and source offsets share a transaction. The worker dies with one open, and its successor fences the task that
    wrote it, as it does at each change of a connector's configuration."""
    name, group, source = topic(), unique("connect"), tmp_path / "source.txt"
    lines = [f"line {number}" for number in range(500)]
    _append(source, lines[:200])
    port = free_port()
    rest = Rest(port)
    properties = worker_properties(
        broker, group, port, tmp_path, **{"exactly.once.source.support": "enabled"}
    )
    connector = {
        **_file_connector("Source", source, topic=name),
        "exactly.once.support": "required",
        "transaction.boundary": "interval",
        "transaction.boundary.interval.ms": "1000",
    }

    with JavaProgram(WORKER, [str(properties)], tmp_path) as worker:
        worker.wait_until(lambda: rest.get("/connectors") == [])
        rest.put("/connectors/in/config", connector)
        worker.wait_until(lambda: _copied(broker, name) == lines[:200])
        _append(source, lines[200:350])
        worker.wait_until(lambda: len(_copied(broker, name, committed=False)) > len(_copied(broker, name)))
        worker.kill()

    with JavaProgram(WORKER, [str(properties)], tmp_path) as worker:
        worker.wait_until(lambda: _copied(broker, name) == lines[:350])
        rest.put("/connectors/in/config", {**connector, "transaction.boundary": "poll"})
        _append(source, lines[350:])
        worker.wait_until(lambda: _copied(broker, name) == lines)

    assert len(_copied(broker, name, committed=False)) > len(lines)  # what the first task had not committed


def _copied(broker: Broker, topic: str, *, committed: bool = True) -> list[str]:
    values = [value for _, value in read_all(broker.bootstrap, topic, committed=committed)]
    return [value.decode() for value in values if value is not None]


def _file_connector(kind: str, file: Path, **topic: str) -> dict[str, str]:
    return {"connector.class": FILE_CONNECTOR.format(kind), "tasks.max": "1", "file": str(file), **topic}


def _append(path: Path, lines: list[str]) -> None:
    with path.open("a") as file:
        file.writelines(line + "\n" for line in lines)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
