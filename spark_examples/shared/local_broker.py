"""A broker for the time that a program runs: a subprocess on a free port, with its files in a folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def local_broker(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield `HOST:PORT` of a running broker whose data and output are in `folder`; `settings` are further
    properties.

    Raises RuntimeError with the end of the broker's own log when it does not start or does not stop cleanly.
    """
    said = folder / "broker.log"
    command = [sys.executable, "-m", "barnabas.cli", "start"]
    own = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder / "logs")}
    for name, value in {**own, **(settings or {})}.items():
        command += ["--set", f"{name}={value}"]
    with said.open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()  # the first and only line before it serves, with the real port
        if not ready.startswith("ready PLAINTEXT://"):
            raise RuntimeError(f"the broker did not start: {ready}{_tail(said)}")
        yield ready.split()[1].split(",")[0].removeprefix("PLAINTEXT://")
    finally:
        process.terminate()
        try:
            status = process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"the broker did not stop within 20 s: {_tail(said)}") from None
    if status != 0:
        raise RuntimeError(f"the broker ended with status {status}: {_tail(said)}")


def _tail(path: Path) -> str:
    return "\n".join(path.read_text().splitlines()[-20:])
