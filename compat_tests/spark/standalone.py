"""A Spark cluster on this machine: a standalone master and workers out of pyspark's own jars, as processes on loopback.

    with SparkCluster(folder) as spark:          # two workers with a core each
        run(..., "--master", spark.master, environment=spark.environment)
        spark.kill_worker(0)

Executors are processes that a worker starts, in its process group: killing a worker kills them as well, as a machine's end does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import pyspark

from barnabas.testing.ports import free_port
from compat_tests.harness.eventually import eventually

HOME = Path(pyspark.__file__).parent
# Short-lived JVMs, as spark_session.py has them
_SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class SparkCluster:
    """Started by `with`; `workers` of one core each."""

    def __init__(self, folder: Path, workers: int = 2, memory: str = "1g") -> None:
        self.folder = folder
        self.master = f"spark://127.0.0.1:{free_port()}"
        self._page = free_port()
        self._memory = memory
        self._count = workers
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> Mapping[str, str]:
        """For programs that use it: loopback, and this Python for theirs."""
        return {
            **os.environ,
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _SMALL,
            "SPARK_LOCAL_DIRS": str(self.folder / "scratch"),
            "PYSPARK_PYTHON": sys.executable,
        }

    @property
    def options(self) -> list[str]:
        """Arguments of an example that runs there."""
        small = (
            "--conf",
            "spark.executor.memory=512m",
            "--conf",
            f"spark.executor.extraJavaOptions={_SMALL}",
        )
        return ["--master", self.master, "--folder", str(self.folder / "shared"), *small]

    def __enter__(self) -> SparkCluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        port = self.master.rsplit(":", 1)[1]
        listening = ("--host", "127.0.0.1", "--port", port, "--webui-port", str(self._page))
        self._master = self._launch("master", "org.apache.spark.deploy.master.Master", *listening)
        try:
            eventually(lambda: self.alive_workers() == 0, retry_on=(OSError,), message=self.log_text)
            for _ in range(self._count):
                self.add_worker()
            eventually(lambda: self.alive_workers() == self._count, message=self.log_text)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def add_worker(self) -> None:
        """One more, which the master knows a moment later."""
        name = f"worker-{len(self._workers)}"
        given = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", self._memory)
        place = ("--work-dir", str(self.folder / name))
        self._workers.append(
            self._launch(name, "org.apache.spark.deploy.worker.Worker", *given, *place, self.master)
        )

    def alive_workers(self) -> int:
        """As the master sees it."""
        return int(self._state()["aliveworkers"])

    def kill_worker(self, worker: int) -> None:
        """kill -9 of the worker and of its executors, and wait until the master has noticed."""
        before = self.alive_workers()
        _kill(self._workers[worker])
        eventually(lambda: self.alive_workers() == before - 1, message=self.log_text)

    def close(self) -> None:
        """kill -9 of all that runs."""
        for process in [*self._workers, *([self._master] if self._master else [])]:
            if process.poll() is None:
                _kill(process)

    def log_text(self) -> str:
        """The end of each process' output."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.log"))
        )

    def _state(self) -> Mapping[str, int]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=30) as answer:
            state: Mapping[str, int] = json.load(answer)
            return state

    def _launch(self, name: str, main_class: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = (str(HOME / "bin" / "spark-class"), main_class, *arguments)
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def _kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
