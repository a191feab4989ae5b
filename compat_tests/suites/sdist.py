"""Fetch kafka-python's source distributions: they hold its tests, which the wheels leave out.

pip fetches them by version and hash into `.cache/kafka-python-<version>`; nothing of them is in this repository.
An empty `test/__init__.py`, which they lack, is added. What is there already costs nothing.

Run it: `python -m compat_tests.suites.sdist` prints the folders.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

# version -> SHA-256 of the archive. The tests of 2.3.0 are its own, and it speaks older versions of most APIs.
SUITES = {
    "3.0.12": "4ccda3616b9aa5c353d74a97f2770d6cd1b950890d77ab0e8890e09a48eeed65",
    "2.3.0": "de65b596d26b5c894f227c35c7d29a65cea8f8a1c4f0f2b4e3e2ea60d503acc8",
}

_CACHE = Path(__file__).resolve().parents[2] / ".cache"


class SuiteUnavailableError(RuntimeError):
    """The suite can not be fetched here; the message holds what pip said."""


def ensure_suite(version: str) -> Path:
    """The folder that holds `kafka/` and `test/`, fetched first when it is not there."""
    folder = _CACHE / f"kafka-python-{version}"
    if not folder.is_dir():
        _CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE, prefix="sdist-") as temporary:
            unpacked = _unpack(_download(version, Path(temporary)), Path(temporary) / "unpacked")
            (unpacked / "test" / "__init__.py").touch()
            try:
                # whole or not at all: a run that is broken off leaves nothing that looks finished
                os.rename(unpacked, folder)
            except OSError:
                if not folder.is_dir():  # else another run was faster
                    raise
    return folder


def _download(version: str, directory: Path) -> Path:
    requirements = directory / "requirements.txt"
    requirements.write_text(f"kafka-python=={version} --hash=sha256:{SUITES[version]}\n")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    # setuptools, with which pip asks the distribution for its metadata, is pinned in requirements.lock
    command += ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"]
    command += ["--requirement", str(requirements), "--dest", str(directory)]
    print(f"fetching kafka-python {version} with its tests", file=sys.stderr, flush=True)
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if result.returncode != 0:
        raise SuiteUnavailableError(f"pip brought no kafka-python {version}:\n{result.stderr[-3000:]}")
    (archive,) = directory.glob("*.tar.gz")
    return archive


def _unpack(archive: Path, directory: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and newer have it
        tar.extractall(directory)
    (top,) = directory.iterdir()
    return top


def main() -> int:
    """Fetch, and print the folders; exit code 1 with pip's message when that fails."""
    try:
        for version in SUITES:
            print(ensure_suite(version))
    except SuiteUnavailableError as error:
        print(f"kafka-python's tests: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
