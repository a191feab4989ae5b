"""The files of the product, for tests about all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("wire", "storage", "controller", "broker", "barnabas")  # barnabas/ has links to the others


def files_of(*folders: str) -> Iterator[Path]:
    """The modules in these folders, tests included, each at its real place."""
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).parts
            if not (parts[0] == "barnabas" and parts[1] in ROOMS):
                yield path


def product_files() -> Iterator[Path]:
    """The modules that are shipped."""
    return (path for path in files_of(*ROOMS) if "tests" not in path.relative_to(ROOT).parts)


def imported_as(path: Path) -> tuple[str, ...]:
    """The parts of a product file's path below the package's parent."""
    parts = path.relative_to(ROOT).parts
    return parts if parts[0] == "barnabas" else ("barnabas", *parts)
