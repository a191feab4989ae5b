"""`make cluster`: three nodes in one command, stopped by Ctrl-C, and there again the next time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compat_tests.harness import cluster_view
from compat_tests.harness.broker import free_port
from compat_tests.harness.clients import CLIENTS, Sample
from compat_tests.harness.topics import eventually

pytestmark = pytest.mark.barnabas_only
_ROOT = Path(__file__).parents[2]


@contextmanager
def _running(port: int, controller_port: int, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the bootstrap string it printed."""
    command = [sys.executable, "-m", "compat_tests.harness.cluster_local", "--directory", str(folder)]
    command += ["--port", str(port), "--controller-port", str(controller_port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=_ROOT, text=True) as process:
        try:
            assert process.stdout is not None
            word, _, bootstrap = process.stdout.readline().strip().partition(" ")
            assert word == "bootstrap"
            yield process, bootstrap
        finally:
            if process.poll() is None:
                process.terminate()


def _three_free_ports() -> int:
    """The first of three ports in a row that are free."""

    def found() -> int:
        first = free_port()
        return first if first < 60_000 and not _taken(first + 1) and not _taken(first + 2) else 0

    return eventually(found)


def _taken(port: int) -> bool:
    return any(f":{port:04X} " in line for line in Path("/proc/net/tcp").read_text().splitlines())


def test_one_command_and_again(tmp_path: Path) -> None:
    port, controller_port = _three_free_ports(), _three_free_ports()
    folder = tmp_path / "data"
    with _running(port, controller_port, folder) as (process, bootstrap):
        assert bootstrap == ",".join(f"127.0.0.1:{port + number}" for number in range(3))
        assert CLIENTS[0].produce(bootstrap, "topic", [Sample(None, b"kept")]) == [0]
        view = cluster_view.metadata(bootstrap.split(",")[1])
        assert sorted(view.partitions["topic", 0].replicas) == [1, 2, 3]
        process.send_signal(signal.SIGINT)
        assert process.wait(40) == 0
    assert sorted(os.listdir(folder)) == ["node-1", "node-2", "node-3"]
    with _running(port, controller_port, folder) as (process, bootstrap):
        assert [one.sample.value for one in CLIENTS[2].consume(bootstrap, "topic", 1)] == [b"kept"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0
