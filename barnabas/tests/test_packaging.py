"""The package as it is shipped: nothing left out of the wheel, and the wheel starts without the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from barnabas.tests.product import ROOMS, ROOT, imported_as, product_files


def modules() -> set[str]:
    """The product's files, as they are imported."""
    return {"/".join(imported_as(path)) for path in product_files()}


def test_every_folder_with_code_is_a_package() -> None:
    files = modules()
    assert {str(Path(file).parent / "__init__.py") for file in files} <= files


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of the source distribution, which is made of a copy: setuptools leaves its folders beside the sources."""
    source = tmp_path_factory.mktemp("source")
    wanted = ["pyproject.toml", "README.md", "LICENSE", *ROOMS]
    subprocess.run(["cp", "-r", *[str(ROOT / name) for name in wanted], str(source)], check=True)
    build = "import sys, setuptools.build_meta as build; build.build_sdist(sys.argv[1])"
    sdist = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-c", build, str(sdist)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=110)
    (archive,) = sdist.glob("*.tar.gz")
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        + ["--wheel-dir", str(directory), str(archive)],
        check=True,
        timeout=110,
    )
    (built,) = directory.glob("*.whl")
    return built


@pytest.mark.sockets
def test_the_wheel_has_every_module_once(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py")]
    assert len(names) == len(set(names))
    assert set(names) == modules()


@pytest.mark.sockets
def test_the_wheel_has_the_page_of_the_console(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith("barnabas/console/page/")}
    page = ROOT / "barnabas" / "console" / "page"
    assert names == {str(path.relative_to(ROOT)) for path in page.iterdir()}


@pytest.mark.sockets
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
    for folder, parts in ((ROOT, ROOT / "barnabas"), (tmp_path, site / "barnabas")):
        code = "import barnabas.broker.node as node, barnabas.cli; print(node.__file__)"
        found = subprocess.check_output([str(python), "-c", code], text=True, cwd=folder)
        assert Path(found.strip()) == parts / "broker" / "node.py"
