"""The metrics of requests and connections, as JMX exporters write Kafka's RequestMetrics and SocketServer metrics.

Quantiles are those of the requests of the last minutes: WINDOW_S, and up to twice that.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from barnabas.broker.metrics.families import COUNTER, GAUGE, Family, one, written_labels
from barnabas.broker.requests.request_metrics import new_buckets, upper_bound_s
from barnabas.runtime.slices import Periodic
from barnabas.wire.errors import ErrorCode
from barnabas.wire.registry import API_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from barnabas.broker.fetch.purgatory import FetchPurgatory
    from barnabas.broker.fetch.sessions import FetchSessionCache
    from barnabas.broker.network.connection import Connections
    from barnabas.broker.requests.request_metrics import RequestMetrics
    from barnabas.runtime.interface import Runtime

WINDOW_S: Final = 150.0
# As JMX exporters write Kafka's histograms: by label
QUANTILES: Final = {each: float(each) for each in ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")}
FETCH: Final = 1
CONNECTIONS_AT_ONCE: Final = 2000
SOFTWARE_MAX: Final = 100  # kinds of clients that are shown; what clients call themselves is up to them
OTHER_SOFTWARE: Final = "other"

_TIMES: Final = (
    ("totaltimems", "From the turn in which a request is served until its answer is encoded, in ms"),
    ("localtimems", "The part of it until the request begins to wait for something, in ms"),
    (
        "remotetimems",
        "The part of it in which it waits: for replicas, records, the disk or another node, in ms",
    ),
)
_NO_TIMES: Final = (
    ("requestqueuetimems", "Always 0: a request is served when it is read"),
    ("responsequeuetimems", "Always 0: an answer is written in the turn in which it is encoded"),
    ("responsesendtimems", "Always 0: what the socket does not take at once is not timed"),
)


class _Times:
    """Buckets of the three times of one kind of request."""

    def __init__(self) -> None:
        self.requests = 0
        self.buckets = tuple(new_buckets() for _ in _TIMES)

    def add(self, metrics: RequestMetrics) -> None:
        total, local, remote = self.buckets
        self.requests += metrics.requests
        remote[0] += sum(metrics.at_once)
        _add(total, metrics.at_once)
        _add(local, metrics.at_once)
        waits = metrics.waits
        if waits is not None:
            _add(total, waits.total)
            _add(local, waits.local)
            _add(remote, waits.remote)


def _add(buckets: list[int], more: list[int]) -> None:
    for bucket, count in enumerate(more):
        if count:
            buckets[bucket] += count


class RequestWindow:
    """The times of requests in the last minutes. `stop` once."""

    def __init__(self, runtime: Runtime, metrics: Callable[[], Iterable[RequestMetrics]]) -> None:
        self._metrics = metrics
        self._before: dict[str, _Times] = {}  # as of one to two windows ago
        self._last: dict[str, _Times] = {}
        self._periodic = Periodic(runtime, WINDOW_S, WINDOW_S, self._turn)

    def stop(self) -> None:
        self._periodic.stop()

    def _turn(self, done: Callable[[], object]) -> None:
        self._before, self._last = self._last, self._now()
        done()

    def _now(self) -> dict[str, _Times]:
        found: dict[str, _Times] = {}
        for metrics in self._metrics():
            for name in _names_of(metrics):
                found.setdefault(name, _Times()).add(metrics)
        return found

    def families(self) -> Iterator[Family | None]:
        now = self._now()
        yield None
        for place, (name, help_text) in enumerate(_TIMES):
            times = Family(f"kafka_network_requestmetrics_{name}", GAUGE, help_text)
            counts = Family(
                f"kafka_network_requestmetrics_{name}_count", GAUGE, "Requests whose time was taken"
            )
            for request, of_request in sorted(now.items()):
                before = self._before.get(request)
                recent = of_request.buckets[place]
                if before is not None:
                    recent = [a - b for a, b in zip(recent, before.buckets[place], strict=True)]
                for quantile, value_s in _quantiles(recent, is_remote=name == "remotetimems"):
                    times.add(value_s * 1000, {"request": request, "quantile": quantile})
                counts.add(of_request.requests, {"request": request})
                yield None
            yield times
            yield counts
        for name, help_text in _NO_TIMES:
            zeros = Family(f"kafka_network_requestmetrics_{name}", GAUGE, help_text)
            for request in sorted(now):
                for quantile in QUANTILES:
                    zeros.add(0, {"request": request, "quantile": quantile})
            yield zeros


def _quantiles(buckets: list[int], *, is_remote: bool) -> Iterator[tuple[str, float]]:
    """(label of a quantile, seconds); nothing without any. The first bucket of remote times has those of requests that did not
    wait."""
    total = sum(buckets)
    if not total:
        return
    wanted = iter(QUANTILES.items())
    label, quantile = next(wanted)
    seen = 0
    for bucket, count in enumerate(buckets):
        seen += count
        while seen >= quantile * total and count:
            yield label, 0.0 if is_remote and not bucket else upper_bound_s(bucket)
            following = next(wanted, None)
            if following is None:
                return
            label, quantile = following


def _names_of(metrics: RequestMetrics) -> tuple[str, ...]:
    """Kafka counts fetches twice: as Fetch, and by who sends them."""
    name = API_NAMES.get(metrics.api_key, str(metrics.api_key))
    if metrics.api_key != FETCH:
        return (name,)
    return name, "FetchFollower" if metrics.of_follower else "FetchConsumer"


def request_metrics(metrics: Iterable[RequestMetrics]) -> Iterable[Family | None]:
    """How many requests there were, and the errors in their answers."""
    requests = Family("kafka_network_requestmetrics_requests_total", COUNTER, "Requests that were answered")
    errors = Family(
        "kafka_network_requestmetrics_errors_total", COUNTER, "Error codes in answers, without NONE"
    )
    by_name: dict[tuple[str, str], int] = {}
    errors_by_name: dict[tuple[str, str], int] = {}
    for each in metrics:
        for name in _names_of(each):
            key = name, str(each.api_version)
            by_name[key] = by_name.get(key, 0) + each.requests
            for code, count in each.errors.items():
                of_error = name, ErrorCode.of(code).name
                errors_by_name[of_error] = errors_by_name.get(of_error, 0) + count
    for (name, version), count in sorted(by_name.items()):
        if count:
            requests.add(count, {"request": name, "version": version})
    for (name, error), count in sorted(errors_by_name.items()):
        errors.add(count, {"request": name, "error": error})
    yield requests
    yield errors


def connection_metrics(
    connections: Connections, purgatory: FetchPurgatory, sessions: FetchSessionCache, idle: float | None
) -> Iterable[Family | None]:
    """`idle`: the fraction of the time in which the event loop had nothing to do; None where it is not measured."""
    counts = connections.limits.counts()
    for name in ("kafka_server_socket_server_metrics", "kafka_server_socketservermetrics"):
        family = Family(f"{name}_connection_count", GAUGE, "Connections of each listener")
        for listener, count in counts.items():
            family.add(count, {"listener": listener, "networkprocessor": "0"})
        yield family
    created = Family(
        "kafka_server_socket_server_metrics_connection_creation_total",
        COUNTER,
        "Connections of each listener that have been opened",
    )
    closed = Family(
        "kafka_server_socket_server_metrics_connection_close_total",
        COUNTER,
        "Of those, how many have ended",
    )
    for listener, served in connections.limits.served().items():
        labels = written_labels({"listener": listener, "networkprocessor": "0"})
        created.add_labelled(served, labels)
        closed.add_labelled(served - counts[listener], labels)
    yield created
    yield closed
    yield from _software(connections)
    if idle is not None:
        for name in (
            "kafka_network_socketserver_networkprocessoravgidle_percent",
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
        ):
            yield one(
                name,
                idle,
                "The part of the last minute in which the event loop had nothing to do; 1 is all of it",
            )
    waiting = Family(
        "kafka_server_delayedoperationpurgatory_purgatorysize", GAUGE, "Requests that wait, by what they do"
    )
    waiting.add(purgatory.waiting, {"delayedoperation": "Fetch"})
    yield waiting
    yield one(
        "kafka_server_fetchsessioncache_numincrementalfetchsessions",
        len(sessions),
        "Fetch sessions (KIP-227)",
    )
    yield one(
        "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total",
        sessions.evictions,
        "Fetch sessions that were closed to make room for others",
        COUNTER,
    )


def _software(connections: Connections) -> Iterator[Family | None]:
    """What clients say that they are in ApiVersions (KIP-511)."""
    family = Family(
        "kafka_server_socket_server_metrics_connections_software",
        GAUGE,
        f"Connections by the software of their clients; of the {SOFTWARE_MAX} most frequent kinds",
    )
    found: Counter[tuple[str, str, str]] = Counter()
    for number, connection in enumerate(tuple(connections.open), 1):
        peer = connection.peer
        found[peer.software_name, peer.software_version, connection.listener] += 1
        if not number % CONNECTIONS_AT_ONCE:
            yield None
    ranked = found.most_common()
    others: Counter[str] = Counter()
    for (_, _, listener), count in ranked[SOFTWARE_MAX:]:
        others[listener] += count
    shown = ranked[:SOFTWARE_MAX] + [
        ((OTHER_SOFTWARE, OTHER_SOFTWARE, listener), count) for listener, count in others.items()
    ]
    for (name, version, listener), count in shown:
        family.add(
            count,
            {
                "client_software_name": name,
                "client_software_version": version,
                "listener": listener,
                "networkprocessor": "0",
            },
        )
    yield family
