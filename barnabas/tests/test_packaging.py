"""The package as it is shipped: nothing left out of the wheel, and the wheel starts without the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from barnabas.tests.product import ROOT, imported_as, product_files
from compat_tests.packages.build import build
from compat_tests.packages.contents import expected, faults_of_sdist, faults_of_wheel


def modules() -> set[str]:
    """The product's files, as they are imported."""
    return {"/".join(imported_as(path)) for path in product_files()}


def test_every_folder_with_code_is_a_package() -> None:
    files = modules()
    assert {str(Path(file).parent / "__init__.py") for file in files} <= files


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Source distribution and wheel."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(distributions: tuple[Path, Path]) -> Path:
    return distributions[1]


@pytest.mark.sockets
def test_both_have_every_module_once_and_the_data_and_no_tests(distributions: tuple[Path, Path]) -> None:
    sdist, wheel = distributions
    assert faults_of_sdist(sdist) == []
    assert faults_of_wheel(wheel) == []
    assert {
        "barnabas/py.typed",
        "barnabas/console/page/index.html",
        "barnabas/wire/record_batch.py",
    } <= expected()


def test_what_is_missing_or_does_not_belong_is_found(tmp_path: Path) -> None:
    """Links, tests and caches among them."""
    names = sorted(expected())
    wheel = tmp_path / "barnabas-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (*names[1:], "barnabas/tests/test_cli.py"):
            archive.writestr(name, "")
    assert faults_of_wheel(wheel) == [
        f"{wheel.name}: {names[0]} is missing",
        f"{wheel.name}: barnabas/tests/test_cli.py does not belong there",
    ]
    sdist = tmp_path / "barnabas-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as tar:
        link = tarfile.TarInfo("barnabas-1/barnabas/wire")
        link.type, link.linkname = tarfile.SYMTYPE, "../wire"
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("barnabas-1/barnabas/__pycache__/cli.cpython-311.pyc"))
    faults = faults_of_sdist(sdist)
    assert f"{sdist.name}: barnabas-1/barnabas/wire is a link" in faults
    assert f"{sdist.name}: barnabas/__pycache__/cli.cpython-311.pyc does not belong there" in faults
    assert f"{sdist.name}: barnabas/cli.py is missing" in faults


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
