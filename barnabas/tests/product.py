"""The files of the product, for tests about all of them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("wire", "storage", "controller", "broker", "barnabas")  # barnabas/ has links to the others


@functools.cache
def text_of(path: Path) -> str:
    """A file's content."""
    return path.read_text()


def nodes_of(path: Path) -> Iterator[ast.AST]:
    """All nodes of a module's syntax tree."""
    return ast.walk(ast.parse(text_of(path)))


def statements_of(path: Path) -> Iterator[ast.AST]:
    """All statements of a module, those in others included: a fraction of its nodes."""
    rest: list[ast.AST] = [ast.parse(text_of(path))]
    while rest:
        node = rest.pop()
        yield node
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            rest.extend(getattr(node, field, ()))


@functools.cache
def files_of(*folders: str) -> tuple[Path, ...]:
    """The modules in these folders, tests included, each at its real place."""
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    links = {("barnabas", room) for room in ROOMS}
    return tuple(path for path in paths if path.relative_to(ROOT).parts[:2] not in links)


def product_files() -> Iterator[Path]:
    """The modules that are shipped."""
    return (path for path in files_of(*ROOMS) if "tests" not in path.relative_to(ROOT).parts)


def imported_as(path: Path) -> tuple[str, ...]:
    """The parts of a product file's path below the package's parent."""
    parts = path.relative_to(ROOT).parts
    return parts if parts[0] == "barnabas" else ("barnabas", *parts)
