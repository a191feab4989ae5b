"""The receiver: names, sums, what is removed, and its bound."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from barnabas.broker.telemetry import receiver as module
from barnabas.broker.telemetry.otlp import Point
from barnabas.broker.telemetry.receiver import ClientMetricsReceiver, series_name
from compat_tests.virtual.runtime import VirtualRuntime

LABELS = {"client_id": "c"}


def point(
    name: str,
    value: float,
    *,
    is_delta: bool = False,
    is_counter: bool = False,
    attributes: Mapping[str, str] | None = None,
) -> Point:
    return Point(name, dict(attributes or {}), value, is_delta, is_counter)


class Received:
    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.receiver = ClientMetricsReceiver(self.runtime)

    def push(self, *points: Point, client: bytes = b"1") -> None:
        for _ in self.receiver.receive(client, LABELS, points, 60_000):
            pass

    def values(self) -> dict[str, float]:
        found = {}
        for each in self.receiver.series():
            if each is not None:
                name, labels, value = each
                assert labels["client_id"] == "c"
                text = ",".join(f"{key}={text}" for key, text in labels.items() if key != "client_id")
                found[f"{name.removeprefix('kafka_client_')}[{text}]"] = value
        return found


@pytest.mark.parametrize(
    ("name", "is_counter", "expected"),
    [
        ("org.apache.kafka.producer.connection.creation.total", True, "producer_connection_creation_total"),
        ("org.apache.kafka.consumer.poll.idle.ratio.avg", False, "consumer_poll_idle_ratio_avg"),
        ("app.requests", True, "app_requests_total"),
        ("a.total", False, "a_total_value"),
        ("9 ä\n{}", False, "9_____"),
        ("", False, ""),
    ],
)
def test_names(name: str, is_counter: bool, expected: str) -> None:
    assert series_name(name, is_counter=is_counter) == f"kafka_client_{expected}"


def test_deltas_are_added_and_others_replace() -> None:
    received = Received()
    for value in (1, 2, 4):
        received.push(
            point("d", value, is_delta=True, is_counter=True),
            point("c", value, is_counter=True),
            point("g", value),
        )
    assert received.values() == {"d_total[]": 7, "c_total[]": 4, "g[]": 4}


def test_attributes_become_labels() -> None:
    received = Received()
    received.push(
        point("g", 1, attributes={"node.id": "1", "client_id": "other", "__x": "2", "3": "4", "": "5"})
    )
    assert received.values() == {"g[attribute_3=4,node_id=1,x=2]": 1}


def test_a_series_that_is_no_longer_pushed_is_removed() -> None:
    received = Received()
    received.push(point("old", 1), point("new", 1))
    for _ in range(2):
        received.push(point("new", 2))
        assert "old[]" in received.values()
    received.push(point("new", 2))
    assert received.values() == {"new[]": 2}


def test_a_silent_client_is_forgotten() -> None:
    received = Received()
    received.push(point("g", 1))
    received.runtime.advance(59)
    received.push(point("g", 2), client=b"2")
    received.runtime.advance(2)
    assert received.values() == {"g[]": 2}
    received.runtime.advance(60)
    assert received.values() == {}


def test_memory_is_bounded_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES_MAX", 5000)
    received = Received()
    received.push(*(point(f"g{number}", 1) for number in range(100)))
    kept = len(received.values())
    assert 5 < kept < 20
    assert received.receiver.left_out == 100 - kept
    received.push(point("g", 1), client=b"2")
    assert len(received.values()) == kept
    received.runtime.advance(61)
    received.push(point("g", 1), client=b"2")
    assert received.values() == {"g[]": 1}


def test_series_of_one_client_are_bounded() -> None:
    received = Received()
    received.push(*(point("g", 1, attributes={"x": str(number)}) for number in range(2000)))
    assert len(received.values()) == module.SERIES_OF_A_CLIENT_MAX


def test_a_client_that_is_forgotten_during_its_push_leaves_nothing() -> None:
    received = Received()
    push = received.receiver.receive(b"1", LABELS, [point(f"m{number}", 1) for number in range(3)], 60_000)
    next(push)
    received.runtime.advance(61)
    assert list(push) == []
    assert received.values() == {}
    assert received.receiver._bytes == 0
