"""`make cluster`: starts three nodes with one command, stops them on Ctrl-C, and starts them again with their
data."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from barnabas.testing.ports import free_port
from compat_tests.harness import cluster_view
from compat_tests.harness.clients import CLIENTS, Sample
from compat_tests.harness.cluster_local import LocalNode, stop
from compat_tests.harness.eventually import eventually

pytestmark = pytest.mark.barnabas_only
_ROOT = Path(__file__).parents[2]


@contextmanager
def _running(folder: Path, *ports: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the bootstrap string that it printed."""
    command = [sys.executable, "-m", "compat_tests.harness.cluster_local", "--directory", str(folder)]
    command += ports
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=_ROOT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            word, _, bootstrap = process.stdout.readline().strip().partition(" ")
            assert word == "bootstrap"
            yield process, bootstrap
        finally:
            if process.poll() is None:
                process.terminate()


def _free_ports() -> int:
    """The first of three consecutive free ports, where the ports a hundred higher are free as well."""

    def found() -> int:
        first = free_port()
        others = [first + number for number in (1, 2, 100, 101, 102)]
        return first if first < 60_000 and not any(map(_taken, others)) else 0

    return eventually(found)


def _taken(port: int) -> bool:
    return any(f":{port:04X} " in line for line in Path("/proc/net/tcp").read_text().splitlines())


def test_one_command_starts_the_cluster_and_restarts_it(tmp_path: Path) -> None:
    port = _free_ports()
    folder = tmp_path / "data"
    with _running(folder, "--port", str(port)) as (process, bootstrap):
        assert bootstrap == ",".join(f"127.0.0.1:{port + number}" for number in range(3))
        assert CLIENTS[0].produce(bootstrap, "topic", [Sample(None, b"kept")]) == [0]
        view = cluster_view.metadata(bootstrap.split(",")[1])
        assert sorted(view.partitions["topic", 0].replicas) == [1, 2, 3]
        process.send_signal(signal.SIGINT)
        assert process.wait(40) == 0
    assert sorted(os.listdir(folder)) == ["node-1", "node-2", "node-3"]
    assert f"CONTROLLER://127.0.0.1:{port + 100}\n" in (folder / "node-1" / "server.properties").read_text()
    ports = ("--port", str(port), "--controller-port", str(port + 100))
    with _running(folder, *ports) as (process, bootstrap):
        assert [one.sample.value for one in CLIENTS[2].consume(bootstrap, "topic", 1)] == [b"kept"]
        assert process.stderr is not None
        pids = [int(process.stderr.readline().split("is process ")[1].split(";")[0]) for _ in range(3)]
        os.kill(pids[1], signal.SIGKILL)
        assert process.stderr.readline().startswith("node 2 was killed (signal 9); start it again with: ")
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0, "a node whose death was reported does not fail the command"
        assert process.stderr.read() == ""


def test_the_last_log_lines_of_a_node_that_does_not_start(tmp_path: Path) -> None:
    """They come from this run; the exit status is 1 only for a failure that was not reported before."""
    (tmp_path / "log").write_text("of an earlier run\n" * 10)
    node = LocalNode(1, tmp_path, "no.such=value\nlisteners=nonsense\n")
    assert node.process.wait(30) > 0
    words = node.last_words()
    assert "earlier run" not in words
    assert "nonsense" in words
    assert stop([node]) == 1
    node.is_announced = True
    assert stop([node]) == 0
    with node.log.open("a") as log:
        log.writelines(f"line {number}\n" for number in range(1000))
    last = node.last_words().splitlines()[1:]
    assert last == [f"line {number}" for number in range(1000 - len(last), 1000)]
    assert len(last) > 100
