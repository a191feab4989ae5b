"""What a binding subscribes to while it is changed: without a gap, and without a message that comes twice.

A server delivers a message once for each subscription that matches, and at the moment in which one subscription takes
another's place, nobody can tell from outside which messages both have got. So none takes another's place: a subscription
that brings something of what is wanted stays, with a filter where it brings more than that, and new ones bring what the
others do not. What stays so for want of a better moment ends with the connection, when there is a gap anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.nats.binding.subjects import (
    Filter,
    compile_filter,
    compile_subscriptions,
    covers,
    overlap,
    without_covered,
)


def changed_subscriptions(
    current: Sequence[str], patterns: Sequence[str], excludes: Sequence[str]
) -> list[tuple[str, Filter | None]]:
    """(pattern, which subjects it takes, None for all) to go on with, where there are subscriptions to `current` (in the
    order in which an earlier one goes before a later one). Together they take every wanted subject exactly once."""
    wanted = without_covered(tuple(patterns))
    kept = [each for each in current if any(overlap(each, pattern) for pattern in wanted)]
    new = [
        pattern
        for pattern in wanted
        if pattern not in kept
        and not any(covers(each, pattern) for each in kept)
        and not any(covers(each, pattern) for each in excludes)
    ]
    if not kept:
        return compile_subscriptions(patterns, excludes)
    is_wanted = compile_filter(patterns, excludes)
    found: list[tuple[str, Filter | None]] = []
    for pattern in (*kept, *new):
        earlier = [each for each, _ in found if overlap(each, pattern)]
        if earlier:
            found.append((pattern, _both(is_wanted, compile_filter((pattern,), earlier))))
        elif any(covers(each, pattern) for each in wanted) and not any(
            overlap(each, pattern) for each in excludes
        ):
            found.append((pattern, None))
        else:
            found.append((pattern, is_wanted))
    return found


def _both(first: Filter, second: Filter) -> Filter:
    return lambda subject: first(subject) and second(subject)
