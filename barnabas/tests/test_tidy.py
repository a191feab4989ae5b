"""What reviews found too often, counted: the numbers in tidy.toml may fall and never rise.

Lower a number when you have removed cases; a number that is zero is a rule.
"""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.tests.product import (
    ROOMS,
    ROOT,
    files_of,
    imported_as,
    nodes_of,
    product_files,
    statements_of,
    text_of,
)

LIMITS = tomllib.loads(Path(__file__).with_name("tidy.toml").read_text())
SHORT = 100  # lines


def product() -> Iterator[Path]:
    """The modules that are shipped, without the generated messages."""
    return (path for path in product_files() if "messages" not in path.parts)


def suite() -> Iterator[Path]:
    return (
        path
        for path in files_of(*ROOMS, "compat_tests")
        if {"tests", "compat_tests"} & {*path.relative_to(ROOT).parts}
    )


def texts() -> Iterator[Path]:
    """All that is written in English here."""
    yield from product()
    yield from suite()
    yield from ROOT.glob("*.md")
    yield from (ROOT / "docs").glob("*.md")


def name(path: Path) -> str:
    return ".".join(imported_as(path.with_suffix(""))).removesuffix(".__init__")


@functools.cache
def imports() -> dict[str, set[str]]:
    """Which module imports which, imports for types included."""
    names = {name(path): path for path in product()}
    found: dict[str, set[str]] = {}
    for module, path in names.items():
        wanted = set()
        for node in statements_of(path):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    submodule = f"{node.module}.{alias.name}"
                    wanted.add(submodule if submodule in names else node.module)
            elif isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
        found[module] = {each for each in wanted if each in names and each != module}
    return found


def circles() -> list[list[str]]:
    """Sets of modules that import each other (Tarjan's strongly connected components), the largest first."""
    graph = imports()
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        stack.append(module)
        for other in graph[module]:
            if other not in numbers:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == numbers[module]:
            circle = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for module in graph:
        if module not in numbers:
            visit(module)
    return sorted(found, key=len, reverse=True)


def split_for_length() -> list[str]:
    """Short modules with a single importer. Handlers are files of their own, whatever their length."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module, others in imports().items():
        for other in others:
            importers[other].add(module)
    lengths = {name(path): text_of(path).count("\n") for path in product() if path.name != "__init__.py"}
    return sorted(
        module
        for module, length in lengths.items()
        if length < SHORT and len(importers[module]) == 1 and not module.startswith("barnabas.broker.api.")
    )


def test_no_more_circles() -> None:
    found = circles()
    assert len(found) <= LIMITS["circles"], found
    assert sum(map(len, found)) <= LIMITS["modules_in_circles"], found


def test_no_more_modules_split_for_length() -> None:
    found = split_for_length()
    assert len(found) <= LIMITS["split_for_length"], found


@functools.cache
def words_found() -> dict[str, Counter[str]]:
    """For each word of the list, how often each file has it."""
    words: list[str] = list(LIMITS["words"])
    pattern = re.compile(rf"\b(?:{'|'.join(f'({word})' for word in words)})\b")
    found: dict[str, Counter[str]] = {word: Counter() for word in words}
    for path in texts():
        if path != Path(__file__):
            for match in pattern.finditer(text_of(path).lower()):
                assert match.lastindex is not None
                found[words[match.lastindex - 1]][str(path.relative_to(ROOT))] += 1
    return found


@pytest.mark.parametrize("word", LIMITS["words"])
def test_plain_words(word: str) -> None:
    found = words_found()[word]
    assert found.total() <= LIMITS["words"][word], found.most_common(20)


@functools.cache
def sleeps() -> list[tuple[str, bool]]:
    """Where a test sleeps, and whether a comment beside it says why. Benchmarks and `eventually` itself do not count, nor do
    turns of a loop."""
    found = []
    for path in suite():
        where = str(path.relative_to(ROOT))
        if where.startswith("compat_tests/bench/") or where == "compat_tests/harness/eventually.py":
            continue
        text = text_of(path)
        if "sleep(" not in text:
            continue
        lines = text.splitlines()
        for node in nodes_of(path):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) in ("time.sleep", "asyncio.sleep")
                and ast.unparse(node) != "asyncio.sleep(0)"
            ):
                own = lines[node.lineno - 1 : node.end_lineno]
                found.append((f"{where}:{node.lineno}", any(" # " in line for line in own)))
    return found


def test_no_more_sleeps_in_tests() -> None:
    found = [where for where, _ in sleeps()]
    assert len(found) <= LIMITS["sleeps_in_tests"], found


def test_no_more_sleeps_without_a_reason() -> None:
    found = [where for where, has_reason in sleeps() if not has_reason]
    assert len(found) <= LIMITS["sleeps_without_a_reason"], found
