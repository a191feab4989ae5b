"""Receives the metrics of clients: the last value of each series, for the metrics listener.

A client's series are kept until it has pushed nothing for a while, also when it has disconnected, so that the last values of a
short-lived client are found by the next scrape. A series that three pushes in a row did not name is removed. What all
clients' series take is bounded by BYTES_MAX; a new series beyond that is left out and counted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from barnabas.broker.coordinator.timers import DeadlineTimer
from barnabas.broker.telemetry.otlp import TEXT_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator, Mapping

    from barnabas.broker.telemetry.otlp import Point
    from barnabas.runtime.interface import Runtime

SERIES_OF_A_CLIENT_MAX: Final = 1000
BYTES_MAX: Final = 32 * 1024 * 1024
_SERIES_BYTES: Final = 300  # of a series beside its text
_CLIENT_BYTES: Final = 1000
_PUSHES_KEPT: Final = 3
_PREFIX: Final = "kafka_client_"  # so that no client's metric has the name of one of the broker's
_KAFKAS: Final = "org.apache.kafka."
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]")

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]  # the name of a family, and the labels of the series beside those of the client


class _Series:
    __slots__ = ("push", "value")

    def __init__(self, value: float) -> None:
        self.value = value
        self.push = 0  # the number of the last push that named it


class PushingClient:
    """What one client instance has pushed."""

    __slots__ = ("expiry", "labels", "pushes", "series")

    def __init__(self, labels: Mapping[str, str], expiry: DeadlineTimer) -> None:
        self.labels = labels
        self.expiry = expiry
        self.pushes = 0
        self.series: dict[Key, _Series] = {}


class ClientMetricsReceiver:
    """The series of all clients. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._clients: dict[bytes, PushingClient] = {}  # by client instance id
        self._bytes = 0
        self.left_out = 0  # values that were not kept, for want of room

    def receive(
        self, instance_id: bytes, labels: Mapping[str, str], points: Collection[Point], keep_ms: int
    ) -> Generator[None, None, None]:
        """Keep the points of one push, of at most SERIES_OF_A_CLIENT_MAX. `labels`: those of the client. `keep_ms`: how long
        they are shown if it pushes no more. Yields after each point; no other push may come in between."""
        client = self._clients.get(instance_id)
        if client is None:
            if self._bytes + _CLIENT_BYTES > BYTES_MAX:
                self.left_out += len(points)
                return
            client = PushingClient(
                {name: text[:TEXT_MAX] for name, text in labels.items()},
                DeadlineTimer(self._runtime, lambda: self._forget(instance_id)),
            )
            self._clients[instance_id] = client
            self._bytes += _CLIENT_BYTES
        client.expiry.set(keep_ms)
        client.pushes += 1
        for point in points:
            self._take(client, point)
            yield
            if self._clients.get(instance_id) is not client:
                return  # forgotten meanwhile
        self._remove_old(client)

    def _take(self, client: PushingClient, point: Point) -> None:
        key = series_name(point.name, is_counter=point.is_monotonic), _labels(point.attributes, client.labels)
        series = client.series.get(key)
        if series is None:
            cost = _cost(key)
            if len(client.series) >= SERIES_OF_A_CLIENT_MAX or self._bytes + cost > BYTES_MAX:
                self.left_out += 1
                return
            self._bytes += cost
            series = client.series[key] = _Series(0)
        series.value = series.value + point.value if point.is_delta else point.value
        series.push = client.pushes

    def _remove_old(self, client: PushingClient) -> None:
        oldest = client.pushes - _PUSHES_KEPT
        for key in [key for key, series in client.series.items() if series.push <= oldest]:
            del client.series[key]
            self._bytes -= _cost(key)

    def _forget(self, instance_id: bytes) -> None:
        client = self._clients.pop(instance_id)
        self._bytes -= _CLIENT_BYTES + sum(map(_cost, client.series))

    def stop(self) -> None:
        for client in self._clients.values():
            client.expiry.cancel()

    def series(self) -> Iterator[tuple[str, Mapping[str, str], float] | None]:
        """(name, labels, value) of all series. What is pushed between two steps may be among them; None ends a client's."""
        for client in tuple(self._clients.values()):
            for (name, labels), series in tuple(client.series.items()):
                yield name, {**client.labels, **dict(labels)}, series.value
            yield None


def series_name(name: str, *, is_counter: bool) -> str:
    """Prometheus's name of a metric: `org.apache.kafka.producer.record.send.total` is
    `kafka_client_producer_record_send_total`. Those of counters end in `_total`, and no others."""
    found = _PREFIX + _NOT_IN_NAMES.sub("_", name.removeprefix(_KAFKAS))
    if is_counter != found.endswith("_total"):
        found += "_total" if is_counter else "_value"
    return found


def _labels(attributes: Mapping[str, str], of_client: Mapping[str, str]) -> Labels:
    """Attributes that would replace a label of the client are left out."""
    labels: dict[str, str] = {}
    for key, text in attributes.items():
        name = _NOT_IN_NAMES.sub("_", key).lstrip("_")
        if name and name[0].isdigit():
            name = f"attribute_{name}"
        if name and name not in of_client:
            labels.setdefault(name, text)
    return tuple(sorted(labels.items()))


def _cost(key: Key) -> int:
    name, labels = key
    return _SERIES_BYTES + len(name) + sum(4 * len(text) + len(label) + 150 for label, text in labels)
