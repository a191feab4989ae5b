"""Builds the source distribution, and the wheel from it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "wire", "storage", "controller", "broker", "barnabas")


def build(folder: Path) -> tuple[Path, Path]:
    """Make both in this folder, which has none; returns source distribution and wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as copy:  # setuptools leaves its folders beside the sources
        subprocess.run(("cp", "-r", *(ROOT / name for name in SOURCES), copy), check=True)
        code = "import sys, setuptools.build_meta as build; build.build_sdist(sys.argv[1])"
        command = (sys.executable, "-c", code, str(folder.resolve()))
        subprocess.run(command, cwd=copy, check=True, capture_output=True, timeout=110)
    (sdist,) = folder.glob("*.tar.gz")
    pip_wheel = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    subprocess.run((*pip_wheel, "--wheel-dir", folder, sdist), check=True, timeout=110)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel
