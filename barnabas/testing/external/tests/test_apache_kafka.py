"""Apache Kafka as processes, without Apache Kafka: what stays where it does not start. (With it: compat_tests/testing.)"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from barnabas.testing.external.apache_kafka import ApacheKafka

pytestmark = pytest.mark.sockets

JAVA = """#!/bin/sh
case "$*" in *StorageTool*) exit 0;; esac
echo $$ > "$(dirname "$0")/$$.pid"
exec sleep 600
"""


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError, OSError])
def test_a_start_that_fails_leaves_no_process(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    def wait(*_: object) -> None:
        while len(found := list(tmp_path.glob("bin/*.pid"))) < 2 or not all(
            path.read_text() for path in found
        ):
            pass
        pids.extend(int(path.stem) for path in found)
        raise error("while it starts")

    (tmp_path / "kafka-clients-0.jar").touch()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(JAVA)
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("barnabas.testing.external.remote_kafka.RemoteKafka.wait_until_it_serves", wait)
    with pytest.raises((error, RuntimeError), match="while it starts"):
        ApacheKafka(tmp_path, tmp_path / "files", nodes=2).start()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
