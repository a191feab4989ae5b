"""A worker of Kafka Connect, distributed, and its REST API."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually

CONFLICT = 409
WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"


class Rest:
    """Client of the worker's REST API."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> object:
        """The decoded answer; None while there is none."""
        try:
            with urllib.request.urlopen(self._base + path, timeout=10) as answer:
                return json.load(answer)
        except (OSError, urllib.error.URLError):
            return None

    def put(self, path: str, body: Mapping[str, str]) -> None:
        """PUT JSON; repeated while the worker refuses it because of a rebalance."""
        request = urllib.request.Request(
            self._base + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )

        def is_taken() -> bool:
            try:
                urllib.request.urlopen(request, timeout=60).close()
            except urllib.error.HTTPError as error:
                if error.code != CONFLICT:
                    raise
                return False
            return True

        eventually(is_taken)

    def runs(self, connector: str) -> bool:
        """Whether the connector and its task run."""
        status = self.get(f"/connectors/{connector}/status")
        if not isinstance(status, dict):
            return False
        tasks = [task["state"] for task in status["tasks"]]
        return status["connector"]["state"] == "RUNNING" and tasks == ["RUNNING"]


def worker_properties(broker: Broker, group: str, port: int, directory: Path, **further: str) -> Path:
    """The file of a worker's settings: its topics have names that begin with `group`."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.flush.interval.ms": "500",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "1000",
        "scheduled.rebalance.max.delay.ms": "0",
        "plugin.discovery": "service_load",
        "listeners": f"http://127.0.0.1:{port}",
        **{f"{kind}.storage.topic": f"{group}-{kind}s" for kind in ("config", "offset")},
        "status.storage.topic": f"{group}-status",
        **{f"{kind}.storage.replication.factor": "1" for kind in ("config", "offset", "status")},
        **further,
    }
    path = directory / "worker.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path
