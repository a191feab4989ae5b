"""What a topic may be called, with Kafka's texts."""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import Final

NAME_LENGTH_MAX: Final = 249
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"

_LEGAL: Final = frozenset(string.ascii_letters + string.digits + "._-")


def invalid_topic_name(name: str) -> str | None:
    """Why this is no name for a topic, in Kafka's words; None when it is one."""
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


def colliding_topic(name: str, topics: Iterable[str]) -> str | None:
    """A topic whose metric names would be the same: `.` becomes `_` in them."""
    if "." not in name and "_" not in name:
        return None
    metric_name = name.replace(".", "_")
    return next((other for other in topics if other.replace(".", "_") == metric_name), None)
