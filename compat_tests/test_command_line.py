"""The commands of clients, as processes beside a broker; test_command_line_beside_kafka.py compares them with Kafka's tools."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.commands import SUMMARIES
from barnabas.testing.ports import free_port
from compat_tests.harness.broker import Broker
from compat_tests.harness.command_line import COMMANDS, barnabas
from compat_tests.harness.fixture_types import UniqueName

SCRIPTS = Path(__file__).resolve().parents[1] / "deploy" / "bin"


def test_topics(broker: Broker, unique: UniqueName) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    name = unique("topic")
    create = (
        "topics",
        *server,
        "--create",
        "--topic",
        name,
        "--partitions",
        "3",
        "--replication-factor",
        "1",
    )
    assert barnabas(*create, "--config", "retention.ms=1000").stdout == f"Created topic {name}.\n"
    assert barnabas(*create, "--if-not-exists").stdout == ""
    assert (
        barnabas(*create, status=1).stdout
        == f"Error while executing topic command : Topic '{name}' already exists.\n"
    )
    assert name in barnabas("topics", *server, "--list").stdout.splitlines()
    barnabas("topics", *server, "--alter", "--topic", name, "--partitions", "4")
    head, *partitions = barnabas("topics", *server, "--describe", "--topic", name).stdout.splitlines()
    assert head.startswith(f"Topic: {name}\tTopicId: ")
    assert "\tPartitionCount: 4\tReplicationFactor: 1\tConfigs: " in head
    assert "retention.ms=1000" in head
    assert (
        partitions[3]
        == f"\tTopic: {name}\tPartition: 3\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: "
    )
    assert len(partitions) == 4
    barnabas("topics", *server, "--delete", "--topic", name)
    assert name not in barnabas("topics", *server, "--list").stdout.splitlines()


@pytest.mark.parametrize("script", sorted(SCRIPTS.iterdir()), ids=lambda path: path.name)
def test_scripts_of_kafka_s_names(script: Path, tmp_path: Path) -> None:
    """Each starts the command of its name, in an image that has `barnabas` on its PATH."""
    barnabas_script = tmp_path / "barnabas"
    barnabas_script.write_text(f'#!/bin/sh\nexec {sys.executable} -m barnabas.cli "$@"\n')
    barnabas_script.chmod(0o700)
    done = subprocess.run(
        [script, "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        timeout=60,
        check=False,
    )
    assert f"(as {script.name})" in done.stdout, done.stderr
    assert done.returncode == 0


def test_every_command_has_a_script() -> None:
    assert {f"{tool}.sh" for tool in COMMANDS.values()} <= {path.name for path in SCRIPTS.iterdir()}
    assert set(COMMANDS) <= set(SUMMARIES)


def test_a_broker_that_does_not_answer(tmp_path: Path) -> None:
    """The command waits as long as Kafka's tool, unless the client's properties say otherwise."""
    file = tmp_path / "client.properties"
    file.write_text("default.api.timeout.ms=300\n")
    server = f"127.0.0.1:{free_port()}"
    done = barnabas("topics", "--list", "--bootstrap-server", server, "--command-config", str(file), status=1)
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == f"no broker answers at {server}"


def test_without_kafka_python(tmp_path: Path) -> None:
    """One line says what to install."""
    (tmp_path / "kafka.py").write_text("raise ModuleNotFoundError(name='kafka')\n")
    done = subprocess.run(
        [sys.executable, "-m", "barnabas.cli", "topics", "--list"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "this command needs kafka-python: pip install 'barnabas[cli]'\n"
