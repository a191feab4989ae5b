"""S3 servers for tests, each a process on loopback with one empty bucket.

moto is a package of this Python, in memory. versitygw (Go; its objects are files) and SeaweedFS are programs that `make test-tier`
installs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

from barnabas.testing.ports import free_port
from compat_tests.harness.eventually import eventually

BUCKET = "tier"
ACCESS_KEY, SECRET_KEY = "access-of-a-test", "secret-of-a-test"
START_SECONDS_MAX = 60.0


def properties_of(port: int, prefix: str = "", bucket: str = BUCKET) -> dict[str, str]:
    """The broker's properties for a bucket of a server here."""
    return {
        "rsm.config.url": f"s3://{bucket}/{prefix}",
        "rsm.config.endpoint.url": f"http://127.0.0.1:{port}",
        "rsm.config.region": "us-east-1",
        "rsm.config.access.key.id": ACCESS_KEY,
        "rsm.config.secret.access.key": SECRET_KEY,
    }


@contextmanager
def moto(folder: Path) -> Iterator[int]:
    """The port of a new moto, which takes any credentials."""
    port = free_port()
    with _process([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], folder):
        made = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        eventually(lambda: _status_of(made), START_SECONDS_MAX, message=lambda: _output(folder))
        yield port


@contextmanager
def versitygw(executable: str, folder: Path) -> Iterator[int]:
    """The port of a new versitygw. A folder in its folder is a bucket."""
    port = free_port()
    (folder / "data" / BUCKET).mkdir(parents=True)
    command = [executable, "--port", f"127.0.0.1:{port}", "--access", ACCESS_KEY, "--secret", SECRET_KEY]
    with _process([*command, "--quiet", "--keep-alive", "posix", str(folder / "data")], folder):
        eventually(
            lambda: _status_of(f"http://127.0.0.1:{port}/"),
            START_SECONDS_MAX,
            message=lambda: _output(folder),
        )
        yield port


@contextmanager
def seaweedfs(executable: str, folder: Path) -> Iterator[int]:
    """The port of a new SeaweedFS, whose telemetry is off."""
    port = free_port()
    data = folder / "data"
    data.mkdir(parents=True)
    others = [
        f"-{name}={free_port()}"
        for name in (
            "master.port",
            "master.port.grpc",
            "volume.port",
            "volume.port.grpc",
            "filer.port",
            "filer.port.grpc",
        )
    ]
    command = [executable, "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-bucket={BUCKET}"]
    switches = ["-master.telemetry=false", "-webdav=false", "-admin.ui=false", f"-s3.port={port}"]
    credentials = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    with _process([*command, *switches, *others], folder, credentials):
        eventually(
            lambda: _status_of(f"http://127.0.0.1:{port}/{BUCKET}") == 403,
            START_SECONDS_MAX,
            message=lambda: _output(folder),
        )
        yield port


@contextmanager
def _process(
    command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None
) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(variables or {})},
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _status_of(request: str | urllib.request.Request) -> int:
    """The status of a reply, 0 where there is none."""
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return int(reply.status)
    except URLError as error:
        return int(getattr(error, "code", 0))


def _output(folder: Path) -> str:
    return (folder / "output").read_text(errors="replace")[-2000:]
