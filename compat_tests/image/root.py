"""Makes the root file system of the image deploy/image/Dockerfile without a container engine: debootstrap in place of the base image,
then the same install script.

`python -m compat_tests.image.root` fills .cache/image/root; debootstrap and root's rights are needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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
    shutil.rmtree(WHEELS, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", WHEELS, ROOT)
    (own,) = WHEELS.glob("barnabas-*.whl")
    run(
        *pip, "download", "--quiet", "--only-binary=:all:", "--python-version", PYTHON, "--dest", WHEELS,
        f"{own}[cli,security]",
    )  # fmt: skip


def make_image() -> None:
    shutil.rmtree(IMAGE, ignore_errors=True)
    run("cp", "-a", BASE, IMAGE)
    shutil.copytree(ROOT / "deploy", IMAGE / "deploy")
    shutil.copytree(WHEELS, IMAGE / "wheels")
    run("chroot", IMAGE, "/deploy/image/install.sh", "/wheels", "/")
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
