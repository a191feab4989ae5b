"""The chart deploy/helm/barnabas as helm renders it: the whole text, and that our broker takes the nodes' settings.

Skipped without helm, on the PATH or as .cache/helm/helm (`GOBIN=$PWD/.cache/helm go install helm.sh/helm/v3/cmd/helm@v3.16.4` takes
Go and some minutes). rendered/ has what was rendered before; BARNABAS_WRITE_RENDERED=1 writes it anew.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.tests.product import ROOT

CHART = ROOT / "deploy" / "helm" / "barnabas"
RENDERED = Path(__file__).with_name("rendered")

# Name of the release and values, by the file in rendered/
RELEASES: dict[str, tuple[str, ...]] = {
    "three_nodes": ("kafka",),
    "one_node": (
        "alone",
        "--set",
        "replicas=1,port=19092,storage.className=fast,image.repository=registry/barnabas",
    ),
    "five_nodes": (
        "kafka",
        "--set",
        "replicas=5,settings.KAFKA_MIN_INSYNC_REPLICAS=1,settings.KAFKA_LOG_SEGMENT_BYTES=1048576,maxUnavailable=2",
    ),
}

pytestmark = [pytest.mark.barnabas_only, pytest.mark.sockets]  # it starts a process


@pytest.fixture(scope="module")
def helm() -> str:
    built = ROOT / ".cache" / "helm" / "helm"
    found = shutil.which("helm") or (str(built) if built.exists() else None)
    if found is None:
        pytest.skip("the chart is rendered by helm, which is neither on the PATH nor .cache/helm/helm")
    return found


def render(helm: str, name: str) -> str:
    return subprocess.check_output(
        (helm, "template", *RELEASES[name][:1], CHART, *RELEASES[name][1:]), text=True
    )


def test_helm_finds_no_fault(helm: str) -> None:
    done = subprocess.run((helm, "lint", "--strict", CHART), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", RELEASES)
def test_the_text(helm: str, name: str) -> None:
    text, expected = render(helm, name), RENDERED / f"{name}.yaml"
    if "BARNABAS_WRITE_RENDERED" in os.environ:
        expected.write_text(text)
    assert text == expected.read_text()


# What is rendered, for tests that need no helm: the test above keeps the two the same.


def environment_of(name: str, ordinal: int) -> dict[str, str]:
    """The variables of a pod, those that its command exports as well."""
    text = (RENDERED / f"{name}.yaml").read_text()
    pairs = re.findall(r"- \{ name: (KAFKA_\w+), value: (.+) \}", text)
    environ = {variable: value.strip('"') for variable, value in pairs}
    assert len(environ) == len(pairs) > 10
    command = re.search(r"export KAFKA_NODE_ID=.+?; *\n.*?;", text, re.DOTALL)
    assert command is not None
    pod = {"HOSTNAME": f"{RELEASES[name][0]}-{ordinal}", "PATH": os.environ["PATH"]}
    exported = subprocess.check_output(("/bin/bash", "-c", f"{command.group()} env"), env=pod, text=True)
    lines = [line for line in exported.splitlines() if line.startswith("KAFKA_")]
    return environ | dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("name", RELEASES)
def test_the_broker_takes_the_settings(name: str) -> None:
    release = RELEASES[name][0]
    count = {"one_node": 1, "three_nodes": 3, "five_nodes": 5}[name]
    for ordinal in range(count):
        environ = environment_of(name, ordinal)
        port = "19092" if name == "one_node" else "9092"
        assert (
            environ["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{release}-{ordinal}.{release}-nodes:{port}"
        )
        config = BrokerConfig.load(None, environ, [])
        assert config.node_id == ordinal + 1
        voters = environ["KAFKA_CONTROLLER_QUORUM_VOTERS"].split(",")
        assert voters == [f"{each + 1}@{release}-{each}.{release}-nodes:9093" for each in range(count)]
        copies = int(environ["KAFKA_DEFAULT_REPLICATION_FACTOR"])
        assert int(environ["KAFKA_MIN_INSYNC_REPLICAS"]) <= copies == min(3, count)
        assert environ["KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR"] == str(copies)
    if name == "five_nodes":
        assert environ["KAFKA_MIN_INSYNC_REPLICAS"] == "1"
        assert environ["KAFKA_LOG_SEGMENT_BYTES"] == "1048576"


@pytest.mark.parametrize("name", RELEASES)
def test_the_parts_fit_together(name: str) -> None:
    """Services and the disruption budget select the pods; probes and Prometheus ask a port that the pods have."""
    documents = (RENDERED / f"{name}.yaml").read_text().split("---\n")[1:]
    kinds = re.findall(r"^kind: (\w+)", "".join(documents), re.MULTILINE)
    assert sorted(kinds) == ["PodDisruptionBudget", "Service", "Service", "StatefulSet"]
    (pods,) = (document for document in documents if "kind: StatefulSet" in document)
    labels = f"app.kubernetes.io/name: barnabas\n +app.kubernetes.io/instance: {RELEASES[name][0]}\n"
    for document in documents:
        assert re.search(rf"selector:\s+(matchLabels:\s+)?{labels}", document), document
    assert re.search(rf"template:\s+metadata:\s+labels:\s+{labels}", pods)
    ports = dict(re.findall(r"\{ name: (\w+), containerPort: (\d+) \}", pods))
    assert set(ports) == {"kafka", "controller", "metrics"}
    probes = re.findall(r"(\w+Probe):\s+httpGet: \{ path: (\S+), port: (\w+) \}", pods)
    assert probes == [
        ("startupProbe", "/livez", "metrics"),
        ("livenessProbe", "/livez", "metrics"),
        ("readinessProbe", "/readyz", "metrics"),
    ]
    assert f'prometheus.io/port: "{ports["metrics"]}"' in pods
    for document in documents:
        if "kind: Service" in document:
            assert set(re.findall(r"\{ name: (\w+), port: (\d+) \}", document)) <= set(ports.items())
