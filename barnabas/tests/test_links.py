"""Links in the documentation lead to files and headings that are there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from barnabas.tests.product import ROOT

PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*/**/README.md"))
    if not any(part.startswith(".") or part == "node_modules" for part in path.relative_to(ROOT).parts)
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
IN_LINE = re.compile(r"`[^`\n]*`")


@cache
def anchors(path: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.+)$", CODE.sub("", path.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def links_of(page: Path) -> Iterator[tuple[Path, str]]:
    """The file that each relative link of a page leads to, and the heading in it."""
    for link in LINK.findall(IN_LINE.sub("", CODE.sub("", page.read_text()))):
        if "://" not in link and not link.startswith("mailto:"):
            path, _, anchor = link.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links(page: Path) -> None:
    wrong = [
        f"{target}#{anchor}"
        for target, anchor in links_of(page)
        if not target.is_file() or (anchor and target.suffix == ".md" and anchor not in anchors(target))
    ]
    assert not wrong


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = (ROOT / "docs" / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"[\w/-]+\.md", navigation)
    assert sorted(listed) == sorted(str(page.relative_to(ROOT)) for page in PAGES)


def test_readme_is_a_first_screen() -> None:
    assert (ROOT / "README.md").read_text().count("\n") <= 120
