"""`barnabas testbroker` as a process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.ports import free_port
from barnabas.wire.messages.metadata import MetadataRequest
from compat_tests.harness.eventually import eventually

pytestmark = pytest.mark.sockets

COMMAND = [sys.executable, "-m", "barnabas.cli", "testbroker"]
# A parent that starts it, hands on its line, and waits until it is killed.
PARENT = """
import signal, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)
print(process.pid, process.stdout.readline(), end="", flush=True)
signal.pause()
"""


def ready(line: str) -> dict[str, str]:
    assert line.startswith("ready PLAINTEXT://127.0.0.1:"), line
    return dict(part.split("=", 1) for part in line.split()[2:])


def test_it_serves_and_ends_in_order() -> None:
    process = subprocess.Popen([*COMMAND, "--set", "num.partitions=3"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = ready(process.stdout.readline())
    with urllib.request.urlopen(told["control"] + "/status", timeout=30) as answer:
        status = json.load(answer)
    assert status["bootstrap_servers"] == told["bootstrap"]
    assert [node["running"] for node in status["nodes"]] == [True] * int(told["nodes"])
    client = RawClient(int(told["bootstrap"].rpartition(":")[2]))
    assert client.ask(3, 9, MetadataRequest(topics=None)).cluster_id
    client.socket.close()
    host, port = told["control"].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as waiting:
        waiting.sendall(b"GET /requests?api=JoinGroup&timeout_s=250 HTTP/1.1\r\n\r\n")
        with urllib.request.urlopen(told["control"] + "/status", timeout=30):
            pass  # so that the other one waits by now
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert process.stdout.read() == ""


def test_a_secured_one_names_its_protocol_and_needs_users_that_make_sense() -> None:
    options = [
        "--security",
        "SASL_SSL",
        "--user",
        "alice=secret",
        "--mechanism",
        "PLAIN",
        "--super-user",
        "User:alice",
    ]
    process = subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready SASL_SSL://127.0.0.1:"), line
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    process.stdout.close()
    for wrong, reason in (
        (["--security", "SSL", "--user", "alice=secret"], "SSL is without"),
        (["--security", "SASL_SSL", "--user", "alice"], "--user takes NAME=PASSWORD"),
        (["--user", "alice=secret"], "are for a broker with --security"),
    ):
        failed = subprocess.run([*COMMAND, *wrong], capture_output=True, text=True)
        assert failed.returncode != 0
        assert reason in failed.stderr


def test_it_dies_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *COMMAND], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, _, line = parent.stdout.readline().partition(" ")
    ready(line)
    parent.kill()
    parent.wait()
    eventually(lambda: not is_alive(int(pid)))
    parent.stdout.close()


def test_it_serves_in_a_container() -> None:
    """As process 1 of one: other machines reach clients' port and the controls, and it stays without a parent."""
    port, control_port = free_port(), free_port()
    arguments = ["--set", f"listeners=PLAINTEXT://0.0.0.0:{port}", "--stay"]
    arguments += ["--set", f"advertised.listeners=PLAINTEXT://localhost:{port}"]
    arguments += ["--control-host", "0.0.0.0", "--control-port", str(control_port)]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = ready(process.stdout.readline())
    assert told["bootstrap"] == f"127.0.0.1:{port}"
    assert told["control"] == f"http://127.0.0.1:{control_port}"
    # All of 127.0.0.0/8 is this machine, but a listener on 127.0.0.1 is not there.
    with urllib.request.urlopen(f"http://127.0.0.2:{control_port}/status", timeout=30) as answer:
        assert json.load(answer)["bootstrap_servers"] == told["bootstrap"]
    client = RawClient(port)
    (broker,) = client.ask(3, 9, MetadataRequest(topics=None)).brokers
    assert (broker.host, broker.port) == ("localhost", port)
    client.socket.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_it_ends_with_a_process_that_it_is_told_of() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    process = subprocess.run(
        [*COMMAND, "--parent", str(gone.pid)], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0
    assert process.stderr == "barnabas: the process that started it has ended; --stay goes on without it\n"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def test_what_is_wrong_is_said() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    taken = listening.getsockname()[1]
    for arguments, why in (
        (["--nodes", "0"], "one node or more"),
        (["--as-version", "1.2.3.4"], "no release"),
        (["--set", "num.partition=3"], "unknown property num.partition; did you mean num.partitions?"),
        (["--directory", "/proc/x"], "/proc/x (log.dirs) can't be created"),
        (["--port", str(taken)], f"cannot listen on 127.0.0.1:{taken}"),
        (["--port", str(taken), "--nodes", "2"], f"cannot listen on 127.0.0.1:{taken}"),
    ):
        done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, arguments
        assert why in done.stderr
        assert "Traceback" not in done.stderr
    listening.close()
