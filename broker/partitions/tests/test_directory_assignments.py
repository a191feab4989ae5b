"""Directories of partitions are reported to the controller, which may not accept the report at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from barnabas.broker.partitions.log_directories import LogDirectories
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.assign_replicas_to_dirs import AssignReplicasToDirsResponse
from compat_tests.virtual.runtime import VirtualRuntime

TOPIC, HERE, THERE = (name.ljust(16) for name in (b"topic", b"here", b"there"))


class Reporter:
    """Directories over a controller that a test answers for."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.error = ErrorCode.NONE
        self.requests: list[tuple[float, dict[int, bytes]]] = []  # when, and partition -> directory
        self.holds = False
        self.held: list[Callable[[], object]] = []
        log_manager: Any = SimpleNamespace(moves=SimpleNamespace(), broker_epoch=5, subscribe=lambda _: None)
        self.directories = LogDirectories(
            log_manager,
            SimpleNamespace(),  # type: ignore[arg-type]
            SimpleNamespace(),  # type: ignore[arg-type]
            SimpleNamespace(send=self.send),  # type: ignore[arg-type]
            self.runtime,
            SimpleNamespace(node_id=1),  # type: ignore[arg-type]
            on_failed=None,
            on_fatal=lambda _: None,
        )

    def send(self, _key: int, request: Any, done: Callable[[Any, ErrorCode], object]) -> None:
        reported = {
            partition.partition_index: directory.id
            for directory in request.directories
            for topic in directory.topics
            for partition in topic.partitions
        }
        self.requests.append((self.runtime.monotonic(), reported))
        response = AssignReplicasToDirsResponse(error_code=self.error)
        self.held.append(lambda: done(response, ErrorCode.NONE))
        if not self.holds:
            self.answer()

    def answer(self) -> None:
        self.held.pop()()

    def assign(self, index: int, directory: bytes = HERE) -> None:
        self.directories.assign(TOPIC, index, directory)

    def reported(self) -> list[dict[int, bytes]]:
        self.runtime.advance(0)
        return [request for _, request in self.requests]


def test_a_report_that_the_controller_refuses_is_retried_at_growing_intervals() -> None:
    reporter = Reporter()
    reporter.error = ErrorCode.NOT_CONTROLLER
    started = reporter.runtime.monotonic()
    reporter.assign(0)
    reporter.runtime.advance(100)
    times = [moment - started for moment, _ in reporter.requests]
    assert times[0] == 0
    assert times[1] <= 0.1
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert all(later >= earlier - 1e-6 for earlier, later in pairwise(gaps))
    assert max(gaps) <= 10 + 1e-6
    reporter.error = ErrorCode.NONE
    reporter.runtime.advance(10)
    before = len(reporter.requests)
    reporter.runtime.advance(100)
    assert len(reporter.requests) == before
    assert all(request == {0: HERE} for request in reporter.reported())


def test_an_assignment_during_a_retry_delay_is_reported_at_once() -> None:
    reporter = Reporter()
    reporter.error = ErrorCode.NOT_CONTROLLER
    reporter.assign(0)
    reporter.runtime.advance(60)  # it is tried every ten seconds by now
    reporter.requests.clear()
    reporter.error = ErrorCode.NONE
    reporter.assign(1)
    assert reporter.reported() == [{0: HERE, 1: HERE}]
    reporter.runtime.advance(60)
    assert len(reporter.requests) == 1


def test_one_report_is_in_flight_at_a_time_and_the_newest_directory_counts() -> None:
    reporter = Reporter()
    reporter.holds = True
    reporter.assign(0)
    assert reporter.reported() == [{0: HERE}]
    reporter.assign(0, THERE)
    reporter.assign(1)
    assert reporter.reported() == [{0: HERE}]
    reporter.holds = False
    reporter.answer()
    assert reporter.reported()[1:] == [{0: THERE, 1: HERE}]


def test_very_many_are_reported_in_several_requests() -> None:
    """The controller decides a request in one turn, and its records have to fit into one command."""
    reporter = Reporter()
    for index in range(2500):
        reporter.assign(index)
    reporter.runtime.advance(60)
    assert max(map(len, reporter.reported())) == 1000
    found = {index: directory for request in reporter.reported() for index, directory in request.items()}
    assert found == dict.fromkeys(range(2500), HERE)
