"""The differences from Apache Kafka that are meant, each with its reason. Keep it short.

(What no two brokers can share - cluster id, ports, topic, member and producer ids, the clock - is replaced by
names in transcript.py and needs no entry here.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from compat_tests.conform.transcript import ABSENT, Tree


class Difference(NamedTuple):
    """One leaf where the brokers disagree."""

    title: str
    version: int
    path: str
    ours: Tree
    theirs: Tree


class Allowed(NamedTuple):
    """A named kind of difference, why it is right, and how to recognise it."""

    name: str
    reason: str
    matches: Callable[[Difference], bool]


def _api_not_served(difference: Difference) -> bool:
    return difference.title.startswith("ApiVersions") and difference.ours == ABSENT


ALLOWED: tuple[Allowed, ...] = (
    Allowed(
        "API not served yet",
        "an API is advertised only when it is implemented and tested; the README's table lists what is missing",
        _api_not_served,
    ),
)


def reason_for(difference: Difference) -> str | None:
    """The name of the allowed difference that covers this one, or None."""
    return next((entry.name for entry in ALLOWED if entry.matches(difference)), None)


def strip_indexes(path: str) -> str:
    """A path without array positions, to group differences of one kind."""
    return re.sub(r"\[\d+\]", "[]", path)
