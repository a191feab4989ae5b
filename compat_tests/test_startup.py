"""Start of this broker, its ready line, and its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.testing.ports import free_port
from compat_tests.harness.barnabas_broker import READY_LINE
from compat_tests.harness.clients import CLIENTS, PLAIN, Sample
from compat_tests.harness.fixture_types import BrokerFactory

pytestmark = pytest.mark.barnabas_only


def _start_expecting_failure(
    *settings: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "barnabas.cli", "start"]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode not in (0, -signal.SIGKILL)
    assert done.stdout == "", "standard output stays empty unless the broker serves"
    assert "Traceback" not in done.stderr
    return done


def test_a_signal_right_after_the_ready_line_ends_the_broker(tmp_path: Path) -> None:
    settings = ["--set", "listeners=PLAINTEXT://127.0.0.1:0", "--set", f"log.dirs={tmp_path}"]
    for _ in range(10):
        with subprocess.Popen(
            [sys.executable, "-m", "barnabas.cli", "start", *settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"ready ")
            process.send_signal(signal.SIGTERM)
            try:
                assert process.wait(60) == 0
            finally:
                process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_line_and_clean_end(fresh_broker: BrokerFactory, number: signal.Signals) -> None:
    broker = fresh_broker()
    [line] = broker.stdout_text().splitlines()
    match = READY_LINE.match(line)
    assert match is not None
    assert match["listeners"] == f"PLAINTEXT://{broker.bootstrap}"
    assert match["node"] == "1"
    assert match["logs"] == str(broker.log_dir)
    assert broker.process is not None
    PLAIN.produce(broker.bootstrap, "topic", [Sample(None, b"v")])
    broker.process.send_signal(number)
    assert broker.process.wait(60) == 0
    assert broker.stdout_text().splitlines() == [line]
    assert "Traceback" not in broker.log_text()


def test_cluster_id_survives_a_restart(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker()
    first = broker.stdout_text()
    broker.restart()
    assert broker.stdout_text() == first


def test_stops_with_clients_connected(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker()
    idle = [socket.create_connection((broker.host, broker.port)) for _ in range(20)]
    assert broker.stop() == 0  # the broker does not wait for the clients
    for one in idle:
        one.close()


def test_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = _start_expecting_failure(
            f"listeners=PLAINTEXT://127.0.0.1:{port}", f"log.dirs={tmp_path / 'data'}"
        )
    assert str(port) in done.stderr


def test_log_directory_held_by_another(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker()
    done = _start_expecting_failure("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={broker.log_dir}")
    assert str(broker.log_dir) in done.stderr
    assert broker.alive()
    assert CLIENTS[0].produce(broker.bootstrap, "topic", [Sample(None, b"v")]) == [0]


def test_a_file_in_place_of_the_log_directory(tmp_path: Path) -> None:
    occupied = tmp_path / "data"
    occupied.write_text("not a directory")
    done = _start_expecting_failure("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={occupied}")
    assert f"{occupied} (log.dirs) is a file, not a directory" in done.stderr
    assert occupied.read_text() == "not a directory"


def test_log_directory_without_permission(tmp_path: Path) -> None:
    """Root ignores file modes, so the test uses a file system that refuses the directory."""
    folder = tmp_path / "sealed"
    folder.mkdir()
    if os.geteuid() == 0:
        # procfs takes no new folders
        folder = Path("/proc/barnabas-data")
    else:
        folder.chmod(0o500)
        folder = folder / "data"
    done = _start_expecting_failure("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={folder}")
    assert f"{folder} (log.dirs) can't be created: " in done.stderr


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    """192.0.2.0/24 is reserved (RFC 5737); the error names only the listener with that address."""
    done = _start_expecting_failure(
        "listeners=PLAINTEXT://127.0.0.1:0,OTHER://192.0.2.1:0",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
        f"log.dirs={tmp_path / 'data'}",
    )
    assert done.stderr.splitlines()[-1] == "barnabas: 192.0.2.1 is no address of this machine (listeners)"


def test_an_unknown_option_shows_the_usage_and_the_option_to_use() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "barnabas.cli", "start", "--port", "9093"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("usage: barnabas start ")
    assert "unrecognized arguments: --port" in done.stderr
    assert "--set listeners=PLAINTEXT://127.0.0.1:9093" in done.stderr


def test_unknown_property_is_warned_about_once(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker({"no.such.property": "1"})
    assert broker.log_text().count("no.such.property") == 1


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("num.partitions=many", "num.partitions"),
        ("num.partitions=0", "num.partitions"),
        ("log.segment.bytes=1", "log.segment.bytes"),
        ("log.cleanup.policy=shred", "log.cleanup.policy"),
        ("auto.create.topics.enable=perhaps", "auto.create.topics.enable"),
        ("listeners=PLAINTEXT:/127.0.0.1", "listeners"),
        ("listeners=NOWHERE://127.0.0.1:0", "listener"),
    ],
)
def test_illegal_value_is_refused_by_name(tmp_path: Path, setting: str, name: str) -> None:
    defaults = [f"log.dirs={tmp_path / 'data'}"]
    if not setting.startswith("listeners"):
        defaults.append(f"listeners=PLAINTEXT://127.0.0.1:{free_port()}")
    assert name in _start_expecting_failure(*defaults, setting).stderr


def test_environment_variables(tmp_path: Path) -> None:
    done = _start_expecting_failure(
        "listeners=PLAINTEXT://127.0.0.1:0",
        f"log.dirs={tmp_path / 'data'}",
        environment={"KAFKA_NUM_PARTITIONS": "lots"},
    )
    assert "num.partitions" in done.stderr


def test_several_listeners_in_the_ready_line(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
        }
    )
    assert list(broker.listeners) == ["PLAINTEXT", "OTHER"]
    assert len(set(broker.listeners.values())) == 2
    broker.wait_until_accepting(5)
