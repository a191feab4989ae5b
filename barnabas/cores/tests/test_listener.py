"""The metrics and the health of several nodes, from listeners as nodes have them, on a virtual network."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from barnabas.broker.metrics.families import COUNTER, GAUGE, OPENMETRICS_END, Family, exposition
from barnabas.broker.metrics.health import Health
from barnabas.broker.metrics.listener import MetricsListener
from barnabas.cores.listener import ANSWER_S, CoresListener, merged
from barnabas.cores.supervision import Supervision
from compat_tests.virtual.runtime import VirtualRuntime


class Client:
    """One GET."""

    def __init__(self, path: str, headers: str = "") -> None:
        self.request = f"GET {path} HTTP/1.1\r\nHost: a\r\n{headers}\r\n".encode()
        self.received = b""
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    @property
    def status(self) -> int:
        return int(self.received.split(b" ", 2)[1])

    @property
    def body(self) -> bytes:
        return self.received.partition(b"\r\n\r\n")[2]


class Nodes:
    """Nodes 1 and 2 that serve, with a listener each, and the one of their supervisor."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.health = {1: Health(True, []), 2: Health(True, [])}
        self.listeners = {each: self._listener(each) for each in (1, 2)}
        self.supervision = Supervision([1, 2], [1])
        self.supervision.begin()
        self.supervision.ready(1, 0)
        self.supervision.ready(2, 0)
        ports = {each: listener.port for each, listener in self.listeners.items()}
        self.own = CoresListener(self.runtime, "127.0.0.1", 0, self.supervision, ports)

    def _listener(self, node_id: int) -> MetricsListener:
        def page(openmetrics: bool) -> Iterator[bytes]:
            plain, labelled = (
                Family("plain", GAUGE, "One."),
                Family("labelled_total", COUNTER, 'With "labels".'),
            )
            plain.add(node_id)
            labelled.add(10 * node_id, {"topic": 'a{b="c} d'})
            yield from exposition([plain, labelled], openmetrics=openmetrics)
            yield OPENMETRICS_END if openmetrics else b""

        return MetricsListener(self.runtime, "127.0.0.1", 0, page, lambda: self.health[node_id])

    def begin(self, path: str, headers: str = "") -> Client:
        client = Client(path, headers)
        self.runtime.connect("127.0.0.1", self.own.server.port, lambda: client, lambda error: None)
        return client

    def get(self, path: str, headers: str = "") -> Client:
        client = self.begin(path, headers)
        self.runtime.advance(1)
        return client


def samples(text: str, parse: Any = text_string_to_metric_families) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels["node"]): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def test_metrics_of_all_nodes() -> None:
    nodes = Nodes()
    expected = {
        ("plain", "1"): 1,
        ("plain", "2"): 2,
        ("labelled_total", "1"): 10,
        ("labelled_total", "2"): 20,
        ("barnabas_cores_node_up", "1"): 1,
        ("barnabas_cores_node_up", "2"): 1,
        ("barnabas_cores_restarts_total", "1"): 0,
        ("barnabas_cores_restarts_total", "2"): 0,
    }
    assert samples(nodes.get("/metrics").body.decode()) == expected
    text = gzip.decompress(nodes.get("/metrics", "Accept-Encoding: gzip\r\n").body).decode()
    assert samples(text) == expected
    text = nodes.get("/metrics", "Accept: application/openmetrics-text\r\n").body.decode()
    assert samples(text, openmetrics_families) == expected
    assert text.count("# TYPE plain ") == 1


def test_health_names_the_node() -> None:
    nodes = Nodes()
    assert nodes.get("/readyz").body == b'{"status":"ok","reasons":[]}\n'
    assert nodes.get("/livez").body == b'{"status":"ok"}\n'
    nodes.health[2] = Health(False, ["the controller has fenced the broker"])
    ready = nodes.get("/readyz")
    assert ready.status == 503
    assert json.loads(ready.body)["reasons"] == ["node 2: the controller has fenced the broker"]
    assert nodes.get("/startupz").status == 503
    assert nodes.get("/v1/status/ready").body == b'{"status":"booting"}\n'
    assert nodes.get("/livez").status == 200
    assert nodes.get("/other").status == 404


def test_a_node_that_does_not_run_is_not_asked() -> None:
    nodes = Nodes()
    nodes.supervision.ended(2, -9, 0)
    reasons = json.loads(nodes.get("/readyz").body)["reasons"]
    assert reasons == ["node 2: its process has ended, and is started again (exit code -9)"]
    assert nodes.get("/livez").status == 200
    found = samples(nodes.get("/metrics").body.decode())
    assert found["barnabas_cores_node_up", "2"] == 0
    assert ("plain", "2") not in found


def test_a_node_that_does_not_answer_is_not_waited_for() -> None:
    nodes = Nodes()
    nodes.listeners[2].serve = lambda request: None  # type: ignore[method-assign]
    together = [nodes.begin("/livez"), nodes.begin("/livez"), nodes.begin("/metrics")]
    nodes.runtime.advance(ANSWER_S + 1)
    assert [each.status for each in together] == [503, 503, 200]
    assert json.loads(together[0].body)["reasons"] == ["node 2: it has not answered within 3 s"]
    assert samples(together[2].body.decode())["barnabas_cores_node_up", "2"] == 0
    nodes.listeners[2].close()
    assert json.loads(nodes.get("/readyz").body)["reasons"][0].startswith("node 2: it does not answer: ")


def test_families_that_one_node_alone_has() -> None:
    one = b"# HELP a A.\n# TYPE a gauge\na 1\n"
    two = b'# HELP b B.\n# TYPE b gauge\nb{x="y"} 2\n# HELP a A.\n# TYPE a gauge\na 3\n'
    assert merged({1: one, 2: two}).decode().splitlines() == [
        *("# HELP a A.", "# TYPE a gauge", 'a{node="1"} 1', 'a{node="2"} 3'),
        *("# HELP b B.", "# TYPE b gauge", 'b{node="2",x="y"} 2'),
    ]


@pytest.mark.parametrize("group", ["a\r#", "a\rb", "a\x0b# HELP x", "a\u2028"])
def test_a_label_with_other_line_ends_stays_in_its_line(group: str) -> None:
    """A group may have any id."""
    family = Family("kafka_consumergroup_lag", GAUGE, "Records behind")
    family.add(5, {"consumergroup": group})
    page = b"".join(exposition([family], openmetrics=False))
    (sample,) = [line for line in merged({1: page}).split(b"\n") if line and not line.startswith(b"# ")]
    assert sample == b'kafka_consumergroup_lag{node="1",consumergroup="%s"} 5' % group.encode()
