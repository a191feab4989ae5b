"""Public dashboards, as the metric names that their queries ask for (dashboards.toml)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("dashboards.toml")


@dataclass(frozen=True, slots=True)
class Query:
    """`alternatives`: the names of each; one whose names all exist is enough."""

    alternatives: tuple[frozenset[str], ...]

    def is_answered(self, names: Set[str]) -> bool:
        """Whether these metrics are enough."""
        return any(each <= names for each in self.alternatives)

    def missing(self, names: Set[str]) -> frozenset[str]:
        """What it asks for besides these metrics."""
        return frozenset().union(*self.alternatives) - names


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Its file is `path` in a commit of a repository on GitHub. `answered`: how many queries should find all their names, on the page and
    with the rules for other names."""

    name: str
    repository: str
    commit: str
    path: str
    answered: tuple[int, int]
    queries: tuple[Query, ...]

    def count_answered(self, names: Set[str]) -> int:
        """How many queries find all their names."""
        return sum(each.is_answered(names) for each in self.queries)


@dataclass(frozen=True, slots=True)
class Dashboards:
    """`absent`: patterns of names that no query finds, by what would have them."""

    all: tuple[Dashboard, ...]
    absent: dict[str, re.Pattern[str]]

    def unanswered(self, names: Set[str]) -> list[Query]:
        """The queries of all dashboards that do not find all their names."""
        return [query for each in self.all for query in each.queries if not query.is_answered(names)]


def load() -> Dashboards:
    """Those of the file."""
    content = tomllib.loads(FILE.read_text())
    return Dashboards(
        tuple(
            Dashboard(
                each["name"],
                each["repository"],
                each["commit"],
                each["path"],
                (each["answered"], each["answered_with_other_names"]),
                tuple(_query(line) for line in each["queries"].splitlines()),
            )
            for each in content["dashboards"]
        ),
        {reason: re.compile(pattern) for reason, pattern in content["absent"].items()},
    )


def _query(line: str) -> Query:
    return Query(tuple(frozenset(each.split()) for each in line.split(" or ")))
