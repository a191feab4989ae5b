"""Makes the root file system of the image deploy/image/Dockerfile without a container engine: debootstrap in place of the base image,
then the same install script.

`python -m compat_tests.image.root` fills .cache/image/root; debootstrap and root's rights are needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "image"
BASE = CACHE / "base"
IMAGE = CACHE / "root"
WHEELS = CACHE / "wheels"
RELEASE = "bookworm"  # as in the Dockerfile
PYTHON = "3.11"  # of that release
USER = "1000:1000"


def run(*command: str | Path) -> None:
    print("+", *command, flush=True)
    subprocess.run(command, check=True)


def make_base() -> None:
    if not (BASE / "bin").exists():
        shutil.rmtree(BASE, ignore_errors=True)
        run("debootstrap", "--variant=minbase", "--include=python3,python3-venv", RELEASE, BASE)


def make_wheels() -> None:
    """With a Python of the image's version: some of the wheels are made of sources."""
    python = sys.executable
    if f"{sys.version_info.major}.{sys.version_info.minor}" != PYTHON:
        found = shutil.which(f"python{PYTHON}")
        if found is None:
            raise SystemExit(f"make test-image needs python{PYTHON}, which the image has")
        python = found
    shutil.rmtree(WHEELS, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:  # setuptools leaves its folders beside the sources
        source = Path(folder) / "barnabas"
        source.mkdir()
        names = (
            "pyproject.toml",
            "README.md",
            "LICENSE",
            "wire",
            "storage",
            "controller",
            "broker",
            "barnabas",
        )
        run("cp", "-r", *(ROOT / name for name in names), source)
        run(python, "-m", "pip", "wheel", "--quiet", "--wheel-dir", WHEELS, f"{source}[cli,security]")


def make_image() -> None:
    shutil.rmtree(IMAGE, ignore_errors=True)
    run("cp", "-a", BASE, IMAGE)
    shutil.copytree(ROOT / "deploy", IMAGE / "deploy")
    shutil.copytree(WHEELS, IMAGE / "wheels")
    run("chroot", IMAGE, "/deploy/image/install.sh", "/wheels", "/")
    (IMAGE / "etc/hosts").write_text("127.0.0.1 localhost\n")  # as engines write it
    for made in ("deploy", "wheels"):
        shutil.rmtree(IMAGE / made)


def main() -> int:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        print("make test-image needs root's rights and debootstrap (Debian: debootstrap)", file=sys.stderr)
        return 1
    CACHE.mkdir(parents=True, exist_ok=True)
    make_base()
    make_wheels()
    make_image()
    return 0


if __name__ == "__main__":
    sys.exit(main())
