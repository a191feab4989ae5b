"""Conditions of rules: which requests a rule is about.

A condition that no request can meet is a ValueError where the rule is made.
"""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from barnabas.testing.faults.shapes import names_groups, names_topics, names_transactions
from barnabas.wire.registry import API_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from barnabas.testing.faults.call import Call
    from barnabas.testing.faults.shapes import Topic


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """A request meets them when it meets each that is not None. `topic`, `group`, `transactional_id` and
    `client_id` may be patterns (`orders-*`). ValueError."""

    api_key: int | None
    topic: str | None
    topic_id: bytes | None
    partition: int | None
    group: str | None
    transactional_id: str | None
    client_id: str | None
    node: int | None

    def __post_init__(self) -> None:
        if self.api_key is None:
            return
        if not names_topics(self.api_key):
            for name, value in (
                ("topic", self.topic),
                ("topic", self.topic_id),
                ("partition", self.partition),
            ):
                if value is not None:
                    self._refuse("topics", name)
        if self.group is not None and not names_groups(self.api_key):
            self._refuse("groups", "group")
        if self.transactional_id is not None and not names_transactions(self.api_key):
            self._refuse("transactional ids", "transactional_id")

    def _refuse(self, what: str, condition: str) -> None:
        assert self.api_key is not None
        raise ValueError(
            f"{API_NAMES[self.api_key]} requests name no {what}: a rule without {condition}= meets them"
        )

    @property
    def is_single(self) -> bool:
        """Whether they name a topic or a partition."""
        return self.topic is not None or self.topic_id is not None or self.partition is not None

    def is_about(self, topic: Topic | None, partition: int | None, call: Call) -> bool:
        """Whether they include this topic and partition, which a request names."""
        if self.topic is not None:
            name = call.name_of(topic)
            if name is None or not fnmatchcase(name, self.topic):
                return False
        if self.topic_id is not None and self.topic_id != (
            call.id_of(topic) if isinstance(topic, str) else topic
        ):
            return False
        return self.partition is None or partition == self.partition or partition is None

    def may_include(self, call: Call) -> bool:
        """Whether the request's header meets them. Requests of other brokers do so only where a client is named."""
        return (
            (self.api_key is None or self.api_key == call.api_key)
            and (self.node is None or self.node == call.node)
            and (self.client_id is None or fnmatchcase(call.client_id or "", self.client_id))
            and (self.client_id is not None or not call.is_internal)
        )

    def include(self, call: Call) -> bool:
        """Whether the topics, partitions, groups and transactional ids in the request meet them. DecodeError."""
        if self.is_single and not any(
            self.is_about(topic, partition, call) for topic, partition in call.targets()
        ):
            return False
        return _one_matches(self.group, call.groups) and _one_matches(
            self.transactional_id, call.transactional_ids
        )


def _one_matches(pattern: str | None, names: Callable[[], Iterable[str]]) -> bool:
    return pattern is None or any(fnmatchcase(name, pattern) for name in names())


def check_count(what: str, value: object, least: int) -> None:
    """ValueError unless `value` is a whole number and at least `least`. `what` begins the text."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{what} is a whole number, {least} or more, and not {value!r}")


def check_amount(what: str, value: object, *, above_zero: bool = False) -> None:
    """ValueError unless `value` is a finite number and at least zero, or above zero."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        is_right = False
    else:
        is_right = value > 0 or (value == 0 and not above_zero)
    if not is_right:
        raise ValueError(
            f"{what} is a number, {'more than 0' if above_zero else '0 or more'}, and not {value!r}"
        )


def check_probability(value: object) -> None:
    """ValueError unless `value` is a number from 0 to 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError(f"probability is a number from 0 to 1, and not {value!r}")


def check_node(node: int | None, nodes: Collection[int] | None) -> None:
    """ValueError when the nodes are known and `node` is not among them."""
    if node is not None and nodes is not None and node not in nodes:
        known = ", ".join(map(str, sorted(nodes)))
        raise ValueError(f"there is no node {node!r}; known are {known}")


def nearest(name: str, names: Iterable[str]) -> str:
    """ "; did you mean ...?" with names that are like this one, or an empty text."""
    import difflib  # only a mistake needs it, and it takes milliseconds to import

    wanted, known = name.upper(), {each.upper(): each for each in names}
    begun = [each for key, each in known.items() if wanted and key.startswith(wanted)]
    close = begun[:3] or [known[key] for key in difflib.get_close_matches(wanted, known, n=1, cutoff=0.65)]
    return f"; did you mean {' or '.join(close)}?" if close else ""
