"""The package as it is shipped: nothing left out of the wheel, and the wheel starts without the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from barnabas import __version__
from barnabas.tests.product import ROOT, imported_as, product_files
from compat_tests.packages.build import build
from compat_tests.packages.contents import expected, faults_of_sdist, faults_of_wheel
from compat_tests.packages.versions import versions


def modules() -> set[str]:
    """The product's files, as they are imported."""
    return {"/".join(imported_as(path)) for path in product_files()}


def test_every_folder_with_code_is_a_package() -> None:
    files = modules()
    assert {str(Path(file).parent / "__init__.py") for file in files} <= files


def test_every_package_has_the_same_version() -> None:
    assert set(versions().values()) == {__version__}


@pytest.mark.parametrize(
    "copy", ["deploy/go/LICENSE", "deploy/npm/LICENSE", "deploy/junit/src/main/resources/META-INF/LICENSE"]
)
def test_every_package_has_the_licence(copy: str) -> None:
    assert (ROOT / copy).read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("name", ["ci", "nightly", "release"])
def test_workflows_call_targets_that_are_there(name: str) -> None:
    """And actions in a version of their own, or a commit. Read line by line, as nothing here reads YAML."""
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
    of_matrix = [
        f"make {each.strip()}" for each in ",".join(re.findall(r"target: \[(.+)\]", text)).split(",") if each
    ]
    commands = [each for each in re.findall(r"- run: (.+)", text) if "matrix.target" not in each] + of_matrix
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert commands
    for command in commands:
        assert re.match(r"make ([a-z-]+)( [A-Z]+=|$)", command), command
        assert command.split()[1] in targets
    actions = re.findall(r"uses: (.+)", text)
    assert actions
    for action in actions:
        assert re.fullmatch(r"actions/[a-z-]+@(v\d+(\.\d+\.\d+)?|[0-9a-f]{40})", action), action


def test_only_the_job_that_publishes_may_do_so() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    build, publish = text.split("\n  publish:\n")
    assert "write" not in build
    assert "id-token: write" in publish
    assert "secrets." not in text
    assert "run: make publish" not in build


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
