"""The Pythons of this machine, and an environment of each in .cache with what requirements.lock pins."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


class InstallFailed(Exception):
    """A package could not be installed; the message has the end of pip's output."""


def find(version: str) -> Path | None:
    """The interpreter of this version on the PATH, or pyenv's newest; None without one that runs and can make environments."""
    for path in _candidates(version):
        code = "import sys, ensurepip, ssl, venv; print('%d.%d' % sys.version_info[:2])"
        # pyenv's commands of versions that are not switched on are there, and end with 127
        done = subprocess.run((path, "-c", code), capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return path
    return None


def full_version(python: Path) -> str:
    """As "3.12.1"."""
    code = "import platform; print(platform.python_version())"
    return subprocess.check_output((python, "-c", code), text=True).strip()


def _candidates(version: str) -> Iterator[Path]:
    found = shutil.which(f"python{version}")
    if found:
        yield Path(found)
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders = (root / "versions").glob(f"{version}.*")
    patch = len(version) + 1
    released = [each for each in folders if each.name[patch:].isdigit()]
    for folder in sorted(released, key=lambda each: int(each.name[patch:]), reverse=True):
        yield folder / "bin" / f"python{version}"


def pip(python: Path, *arguments: str | Path) -> None:
    """`pip install` of that environment. Raises InstallFailed."""
    command = (python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *arguments)
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise InstallFailed(f"{' '.join(map(str, command))}:\n{done.stdout[-4000:]}")


def environment(version: str, interpreter: Path) -> Path:
    """The Python of .cache/python-VERSION, made or brought up to date. Raises InstallFailed."""
    folder = CACHE / f"python-{version}"
    python, stamp = folder / "bin" / "python", folder / ".installed"
    pins = (ROOT / "requirements.lock").read_bytes() + (ROOT / "pyproject.toml").read_bytes()
    wanted = f"{interpreter} {hashlib.sha256(pins).hexdigest()}\n"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"python-{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == wanted:
            return python
        subprocess.run((interpreter, "-m", "venv", "--clear", folder), check=True)
        # As `make setup` does it, and why is in the Makefile
        pip(python, "--no-deps", "--require-hashes", "-r", "requirements.lock")
        pip(python, "--no-deps", "--no-build-isolation", "--editable", ".")
        stamp.write_text(wanted)
    return python
