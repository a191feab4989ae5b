"""The wheel in a clean environment, as a user installs it: a broker starts, and records go in and come out."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from compat_tests.pythons.interpreters import pip

_SECONDS = 60


def try_wheel(wheel: Path, interpreter: Path) -> None:
    """Install it with the commands' dependencies, and use it. Raises InstallFailed, CalledProcessError or RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="barnabas-installed-") as name:
        folder = Path(name)
        subprocess.run((interpreter, "-m", "venv", folder / "env"), check=True)
        pip(folder / "env" / "bin" / "python", f"{wheel.resolve()}[cli]")
        _use(folder / "env" / "bin" / "barnabas", folder)


def _use(command: Path, folder: Path) -> None:
    """Outside of the repository, which would hide what is installed."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    settings = ("--set", "listeners=PLAINTEXT://127.0.0.1:0", "--set", f"log.dirs={folder / 'logs'}")

    def run(*arguments: str, given: str = "") -> str:
        done = subprocess.run(
            (command, *arguments),
            input=given,
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env=environ,
            timeout=_SECONDS,
        )
        if done.returncode:
            raise RuntimeError(f"barnabas {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    with (folder / "broker.log").open("w") as log:
        broker = subprocess.Popen(
            (command, "start", *settings),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env=environ,
        )
    try:
        assert broker.stdout is not None
        ready = broker.stdout.readline()
        if not ready.startswith("ready PLAINTEXT://"):
            raise RuntimeError(f"the broker did not start: {(folder / 'broker.log').read_text()}")
        at = ("--bootstrap-server", ready.split()[1].removeprefix("PLAINTEXT://"), "--topic", "orders")
        run("topics", "--create", *at)
        run("produce", *at, given="12\n13\n")
        values = run("consume", *at, "--from-beginning", "--max-messages", "2")
        if values.split() != ["12", "13"]:
            raise RuntimeError(f"consumed {values!r}")
    finally:
        broker.terminate()
        broker.communicate(timeout=_SECONDS)
    if broker.returncode:
        raise RuntimeError(f"the broker ended with {broker.returncode}")
