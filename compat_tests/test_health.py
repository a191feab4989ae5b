"""`barnabas health`, the probes, the log's format and systemd, with real processes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from barnabas.testing.ports import free_port
from compat_tests.harness.cluster_work import create_topic as create_replicated
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory, ClusterFactory
from compat_tests.harness.metrics import LISTENER, address
from compat_tests.harness.topics import create_topic

pytestmark = pytest.mark.barnabas_only


def health(*arguments: str) -> tuple[int, str]:
    """The exit code and the line."""
    command = [sys.executable, "-m", "barnabas.cli", "health", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


def probe(at: str, path: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://{at}{path}", timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_broker(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker({LISTENER: "127.0.0.1:0", "barnabas.log.format": "json"})
    create_topic(broker.bootstrap, "topic", 3)
    assert health("--bootstrap-server", broker.bootstrap) == (
        0,
        "healthy: 1 brokers, controller 1, 3 partitions",
    )
    at = address(broker)
    assert health("--http", at) == (0, "healthy: ready")
    assert probe(at, "/livez") == (200, {"status": "ok"})
    assert probe(at, "/startupz") == (200, {"status": "ok", "reasons": []})
    assert probe(at, "/readyz") == (200, {"status": "ok", "reasons": []})
    assert probe(at, "/v1/status/ready") == (200, {"status": "ready"})
    for line in broker.log_text().splitlines():
        if not line.startswith("ready "):
            assert json.loads(line)["level"] in ("INFO", "WARNING")


def test_what_is_not_there_or_no_broker() -> None:
    at = f"127.0.0.1:{free_port()}"
    code, line = health("--bootstrap-server", at)
    assert (code, line) == (1, f"unhealthy: {at} does not answer: Connection refused")
    assert health("--http", at)[0] == 1
    assert health("--bootstrap-server", "nowhere") == (1, "unhealthy: nowhere must look like HOST:PORT")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        assert health("--bootstrap-server", at, "--timeout", "0.2") == (
            1,
            f"unhealthy: {at} does not answer: timed out",
        )


def test_a_cluster_that_is_not_whole(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(settings={LISTENER: "127.0.0.1:0"})
    create_replicated(cluster, "topic", 3)
    create_topic(cluster.bootstrap, "fragile", 3)  # without replicas
    cluster.wait_until_whole()
    first = cluster.nodes[cluster.live[0]]
    eventually(lambda: health("--bootstrap-server", first.bootstrap)[0] == 0)
    dead = next(node for node in cluster.live if cluster.nodes[node] is not first)
    cluster.kill(dead)

    def lost() -> bool:
        code, line = health("--bootstrap-server", first.bootstrap)
        return code == 1 and "partitions have no leader: " in line

    eventually(lost)
    assert probe(address(first), "/readyz")[0] == 200


def test_a_node_that_waits_for_its_quorum_is_not_ready(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(settings={LISTENER: "127.0.0.1:0"}, start=False)
    first, *others = cluster.nodes
    node = cluster.nodes[first]
    node.launch()
    eventually(lambda: "metrics are at" in node.log_text())
    at = address(node)
    code, answer = probe(at, "/readyz")
    assert (code, answer["reasons"]) == (503, ["the cluster's metadata is not known yet"])
    assert probe(at, "/startupz")[0] == 503
    assert probe(at, "/livez")[0] == 200
    assert health("--http", at) == (1, "unhealthy: the cluster's metadata is not known yet")
    cluster.start(*others, whole=False)
    node.wait()
    eventually(lambda: probe(at, "/readyz")[0] == 200)
