"""Run kafka-python's integration tests against a broker.

The suite runs as a process of its own in its folder, where `kafka` is the distribution's own client. It wants a
broker with node id 0 (which it assigns partitions to), four partitions for new topics and
`advertised.listeners` in the broker's configs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from barnabas.testing.ports import free_port
from compat_tests.harness.broker import Broker
from compat_tests.suites.sdist import ensure_suite

# the newest release of Kafka that a suite knows; in 3.0.12 the client finds it out from the broker's ApiVersions
_KAFKA_VERSIONS = {"3.0.12": "4.3.0", "2.3.0": "4.0.0"}

SECONDS_MAX = 1800.0  # of all of a suite's tests; they take some minutes

_REPOSITORY = Path(__file__).resolve().parents[2]


def settings() -> dict[str, str]:
    """What the broker needs beside its defaults."""
    listener = f"PLAINTEXT://127.0.0.1:{free_port()}"
    return {
        "node.id": "0",
        "listeners": listener,
        "advertised.listeners": listener,
        "num.partitions": "4",
        "group.min.session.timeout.ms": "500",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }


def allow_list(version: str) -> Path:
    """What a suite does otherwise than pass; plugin.py describes the file."""
    return Path(__file__).with_name(f"kafka_python_{version}.toml")


def run(
    broker: Broker,
    version: str,
    arguments: Sequence[str] = (),
    *,
    capture: bool = False,
    seconds_max: float = SECONDS_MAX,
) -> tuple[int, str]:
    """Run a suite: pytest's exit code, and with `capture` what it printed (else it goes to the terminal). TimeoutExpired
    where it hangs outside of its tests, each of which has a minute."""
    folder = ensure_suite(version)
    command = [sys.executable, "-m", "pytest", "test/integration", "-p", "compat_tests.suites.plugin"]
    command += [
        "--allow-list",
        str(allow_list(version)),
        *(["--nothing-fails"] if broker.kind != "barnabas" else []),
    ]
    # its own options ask for a log at DEBUG; -W: warnings that are its own
    command += ["-o", "addopts=", "--log-level=INFO", "-W", "ignore", "-p", "no:cacheprovider", "--tb=short"]
    command += ["--timeout=60", "--timeout-method=signal", "--durations=5", "-rx", *arguments]
    with tempfile.TemporaryDirectory(prefix="kafka-python-suite-") as empty:
        environment = {
            **os.environ,
            "KAFKA_URI": f"kafka://{broker.bootstrap}",
            "KAFKA_VERSION": _KAFKA_VERSIONS[version],
            "KAFKA_ROOT": empty,
            "PYTHONPATH": str(_REPOSITORY),
        }
        output = subprocess.PIPE if capture else None
        result = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=seconds_max,
        )
    return result.returncode, result.stdout or ""
