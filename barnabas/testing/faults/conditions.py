"""What a rule may ask for: a slip that would make one that never acts is refused where it is written."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from barnabas.testing.faults.shapes import names_groups, names_topics
from barnabas.wire.registry import API_NAMES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def check_count(what: str, value: object, least: int) -> None:
    """ValueError: `value` is a whole number from `least` on. `what` begins the text."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{what} is a whole number, {least} or more, and not {value!r}")


def check_amount(what: str, value: object, *, above_zero: bool = False) -> None:
    """ValueError: `value` is a number from zero on, or above zero."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        is_right = False
    else:
        is_right = value > 0 or (value == 0 and not above_zero)
    if not is_right:
        raise ValueError(
            f"{what} is a number, {'more than 0' if above_zero else '0 or more'}, and not {value!r}"
        )


def check_probability(value: object) -> None:
    """ValueError: from 0 to 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError(f"probability is a number from 0 to 1, and not {value!r}")


def check_node(node: int | None, nodes: Collection[int] | None) -> None:
    """ValueError where these are the nodes and it is none of them."""
    if node is not None and nodes is not None and node not in nodes:
        known = ", ".join(map(str, sorted(nodes)))
        raise ValueError(f"there is no node {node!r}; known are {known}")


def check_names(api_key: int, topic: str | None, partition: int | None, group: str | None) -> None:
    """ValueError where requests of the API name no topics, or no groups, and the condition is about one."""
    if (topic is not None or partition is not None) and not names_topics(api_key):
        what = "topic" if topic is not None else "partition"
        raise ValueError(f"{API_NAMES[api_key]} requests name no topics: a rule without {what}= meets them")
    if group is not None and not names_groups(api_key):
        raise ValueError(f"{API_NAMES[api_key]} requests name no groups: a rule without group= meets them")


def nearest(name: str, names: Iterable[str]) -> str:
    """ "; did you mean ...?", or nothing where none is like it."""
    import difflib  # only a mistake needs it, and it takes milliseconds to import

    wanted, known = name.upper(), {each.upper(): each for each in names}
    begun = [each for key, each in known.items() if wanted and key.startswith(wanted)]
    close = begun[:3] or [known[key] for key in difflib.get_close_matches(wanted, known, n=1, cutoff=0.65)]
    return f"; did you mean {' or '.join(close)}?" if close else ""
