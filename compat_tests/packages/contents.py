"""What a source distribution and a wheel must contain: every module once, as a file, with its data, and no tests."""

from __future__ import annotations

import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from barnabas.tests.product import ROOT, imported_as, product_files

_DATA = (ROOT / "barnabas" / "py.typed", *(ROOT / "barnabas" / "console" / "page").iterdir())
_MADE = ("barnabas-", "barnabas.egg-info/")  # the folders in which the build describes the package
_OF_THE_SDIST = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}


def expected() -> set[str]:
    """The files that are installed: the product's modules as they are imported, and its data."""
    modules = {"/".join(imported_as(path)) for path in product_files()}
    return modules | {str(path.relative_to(ROOT)) for path in _DATA}


def faults_of_wheel(wheel: Path) -> list[str]:
    """What is missing, too many, or there twice."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    return _faults(wheel, [name for name in names if not name.startswith(_MADE)], expected())


def faults_of_sdist(sdist: Path) -> list[str]:
    """The same, and links, which a checkout on Windows or a zip would not keep."""
    with tarfile.open(sdist) as archive:
        members = [member for member in archive.getmembers() if not member.isdir()]
    names = [member.name.partition("/")[2] for member in members]
    own = [name for name in names if not name.startswith(_MADE)]
    links = [f"{sdist.name}: {member.name} is a link" for member in members if not member.isfile()]
    return links + _faults(sdist, own, expected() | _OF_THE_SDIST)


def _faults(archive: Path, found: Iterable[str], wanted: set[str]) -> list[str]:
    counted = Counter(found)
    return [
        *(f"{archive.name}: {name} is missing" for name in sorted(wanted - counted.keys())),
        *(f"{archive.name}: {name} does not belong there" for name in sorted(counted.keys() - wanted)),
        *(f"{archive.name}: {name} is there {count} times" for name, count in counted.items() if count > 1),
    ]
