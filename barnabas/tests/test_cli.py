"""`barnabas start` as its users run it: a process with exit code, standard output and standard error."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sockets

READY = re.compile(r"ready PLAINTEXT://127\.0\.0\.1:(\d+) node=1 cluster=[A-Za-z0-9_-]{22} logs=(.+)\n")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "barnabas.cli", *arguments]


def clean_environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "BARNABAS_"))}
    return {**kept, **extra}


def start_settings(directory: Path, *more: str) -> list[str]:
    settings = ["listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={directory}", *more]
    return ["start", *(part for setting in settings for part in ("--set", setting))]


def refused(*arguments: str, **environment: str) -> str:
    """The one line with which a start that must fail fails."""
    done = subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environment(**environment),
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("barnabas: ")]
    return line


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
def test_ready_line_and_clean_stop(tmp_path: Path, loop: str, stop_signal: signal.Signals) -> None:
    with subprocess.Popen(
        command(*start_settings(tmp_path / "logs", f"barnabas.event.loop={loop}")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    ) as broker:
        assert broker.stdout is not None
        first = broker.stdout.readline()
        ready = READY.fullmatch(first)
        assert ready is not None, first
        assert ready[2] == str(tmp_path / "logs")
        with socket.create_connection(("127.0.0.1", int(ready[1])), timeout=60):
            broker.send_signal(stop_signal)
            rest, log = broker.communicate(timeout=60)
    assert broker.returncode == 0
    assert rest == ""
    assert f"running on {loop}" in log


def test_a_second_broker_on_the_directory_or_the_port_is_refused(tmp_path: Path) -> None:
    with subprocess.Popen(
        command(*start_settings(tmp_path / "logs")),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=clean_environment(),
    ) as broker:
        assert broker.stdout is not None
        ready = READY.fullmatch(broker.stdout.readline())
        assert ready is not None
        try:
            line = refused(*start_settings(tmp_path / "logs"))
            assert str(tmp_path / "logs") in line
            line = refused(*start_settings(tmp_path / "other", f"listeners=PLAINTEXT://127.0.0.1:{ready[1]}"))
            assert f"127.0.0.1:{ready[1]}" in line
            assert "in use" in line
            # One of several, which opens the one listener at once and the other when there is a quorum.
            taken, free = f"127.0.0.1:{ready[1]}", "127.0.0.1:0"
            for clients, controllers in (free, taken), (taken, free):
                line = refused(
                    *start_settings(
                        tmp_path / "voter",
                        f"listeners=PLAINTEXT://{clients},CONTROLLER://{controllers}",
                        "controller.quorum.voters=1@127.0.0.1:3,2@127.0.0.1:1,3@127.0.0.1:2",
                    )
                )
                assert line.startswith(f"barnabas: cannot listen on {taken}: a port is in use")
        finally:
            broker.terminate()
            broker.wait(20)


def test_an_illegal_value_is_refused_by_name(tmp_path: Path) -> None:
    line = refused(*start_settings(tmp_path, "num.partitions=x"))
    assert line == "barnabas: Invalid value x for configuration num.partitions: Not a number of type INT"


def test_a_variable_is_a_setting(tmp_path: Path) -> None:
    line = refused(*start_settings(tmp_path), KAFKA_NUM_PARTITIONS="0")
    assert line == "barnabas: Invalid value 0 for configuration num.partitions: Value must be at least 1"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "server.properties"
    assert refused("start", str(missing)) == f"barnabas: cannot read {missing}: No such file or directory"


def test_a_log_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "logs"
    file.write_text("")
    assert str(file) in refused(*start_settings(file))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_log_directory_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert str(tmp_path) in refused(*start_settings(tmp_path / "logs"))


def test_help_says_which_source_wins() -> None:
    done = subprocess.run(command("start", "--help"), capture_output=True, text=True, timeout=60, check=True)
    text = " ".join(done.stdout.split())
    order = [
        text.index(word) for word in ("--set name=value; a KAFKA_*", "the properties file;", "the default.")
    ]
    assert order == sorted(order)


def test_wrong_usage_exits_with_2() -> None:
    done = subprocess.run(command("stop"), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
