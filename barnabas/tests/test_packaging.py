"""The package as it is shipped: nothing left out of the wheel, and the wheel starts without the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("wire", "storage", "controller", "broker", "barnabas")


def listed_packages() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])


def packages_in_the_tree() -> set[str]:
    found = set()
    for room in ROOMS:
        for init in (ROOT / room).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            if "tests" not in parts:
                found.add(".".join(parts if room == "barnabas" else ("barnabas", *parts)))
    return found


def test_every_package_is_listed() -> None:
    assert listed_packages() == packages_in_the_tree()


def test_every_folder_with_code_is_a_package() -> None:
    for room in ROOMS:
        for file in (ROOT / room).rglob("*.py"):
            if "tests" not in file.relative_to(ROOT).parts:
                assert (file.parent / "__init__.py").exists(), file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    # Built from a copy: setuptools leaves its build folder beside the sources.
    source = tmp_path_factory.mktemp("source")
    wanted = ["pyproject.toml", "README.md", "LICENSE", *ROOMS]
    subprocess.run(["cp", "-r", *[str(ROOT / name) for name in wanted], str(source)], check=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        + ["--wheel-dir", str(directory), str(source)],
        check=True,
        timeout=110,
    )
    (built,) = directory.glob("*.whl")
    return built


def test_an_installed_wheel_starts_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    """The environment is new but for the dependencies, which are taken from this one."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    site = Path(
        subprocess.check_output(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], text=True
        ).strip()
    )
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
        ]
        + [str(wheel)],
        check=True,
        timeout=110,
    )
    ours = Path(sysconfig.get_paths()["purelib"])
    for dependency in ("msgspec", "crc32c", "cramjam", "uvloop"):
        for folder in (ours / dependency, *ours.glob(f"{dependency}-*.dist-info")):
            (site / folder.name).symlink_to(folder)
    settings = ["--set", "listeners=PLAINTEXT://127.0.0.1:0", "--set", f"log.dirs={tmp_path / 'logs'}"]
    with subprocess.Popen(
        [str(tmp_path / "env" / "bin" / "barnabas"), "start", *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    ) as broker:
        assert broker.stdout is not None
        ready = broker.stdout.readline()
        broker.terminate()
        _, log = broker.communicate(timeout=60)
    assert ready.startswith("ready PLAINTEXT://127.0.0.1:"), log
    assert broker.returncode == 0
    # In a clone the folder barnabas/ hides what is installed: then all of it is the clone's.
    for folder, parts in ((ROOT, ROOT), (tmp_path, site / "barnabas")):
        code = "import barnabas.broker.node as node, barnabas.cli; print(node.__file__)"
        found = subprocess.check_output([str(python), "-c", code], text=True, cwd=folder)
        assert Path(found.strip()) == parts / "broker" / "node.py"
