"""Rules for names of topics, with Kafka's texts."""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import Final

NAME_LENGTH_MAX: Final = 249
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"

_LEGAL: Final = frozenset(string.ascii_letters + string.digits + "._-")


def invalid_topic_name(name: str) -> str | None:
    """Kafka's text for the reason why a name is invalid; None when it is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in {".", ".."}:
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    if not _LEGAL.issuperset(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics, "
            f"'.', '_' and '-'"
        )
    return None


class CollidingTopics:
    """Finds topics with the same metric name, in which `.` becomes `_`. Reads all names once."""

    def __init__(self, topics: Iterable[str]) -> None:
        self._topics = topics
        self._by_metric_name: dict[str, str] | None = None

    def of(self, name: str) -> str | None:
        """The first topic that collides with one of this name."""
        if "." not in name and "_" not in name:
            return None
        if self._by_metric_name is None:
            self._by_metric_name = {}
            for other in self._topics:
                self._by_metric_name.setdefault(other.replace(".", "_"), other)
        return self._by_metric_name.get(name.replace(".", "_"))
