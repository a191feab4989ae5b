"""Subscriptions of a core binding.

While a binding is changed no message may be missed, and none may come twice. A server delivers a message once for each
matching subscription, and at the moment in which one subscription replaces another it can't be told from outside which
messages both have received. So none is replaced: a subscription that brings some of the wanted subjects stays, with a filter
where it brings more than those, and new ones bring the subjects that the others do not. Subscriptions that stay only for
this reason end with the connection, when there is a gap anyway.

A subscription that the server refuses may be allowed later, without notice: so it is made again, after pauses that get
longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from barnabas.nats.binding.subjects import (
    Filter,
    compile_filter,
    compile_subscriptions,
    covers,
    overlap,
    without_covered,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.nats.client.client import Subscription
    from barnabas.nats.client.errors import NatsError
    from barnabas.nats.client.protocol import Sink
    from barnabas.nats.connections import Intake
    from barnabas.runtime.interface import Runtime, Timer


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


ASK_REFUSED_AGAIN_S: Final = 2.0  # and then twice as long each time
ASK_REFUSED_AGAIN_S_MAX: Final = 60.0


class Subscribed:
    """Of one binding. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        intake: Intake,
        queue: str,
        sink: Callable[[Filter | None], Sink],
        asked_again: Callable[[NatsError | None], object],
    ) -> None:
        """`sink(filter)` makes the one for a subscription; `asked_again(error)`: the server has answered, or never will."""
        self._runtime = runtime
        self._intake = intake
        self._queue = queue
        self._sink = sink
        self._asked_again = asked_again
        self._subscriptions: list[Subscription] = []
        self._is_leaving = False
        self._retry: Timer | None = None  # of what the server has refused
        self._ask_again_s = ASK_REFUSED_AGAIN_S

    @property
    def patterns(self) -> list[str]:
        return [each.subject for each in self._subscriptions]

    @property
    def refused(self) -> str:
        """What the server says against one of them, "" when it has them all."""
        return next((each.refused for each in self._subscriptions if each.refused), "")

    def to(self, wanted: Sequence[tuple[str, Filter | None]]) -> None:
        """To these patterns, with these filters. What there is of them stays; what is new comes before what is old goes.
        Nothing changes any more for who has taken leave."""
        if self._is_leaving:
            return
        current = {each.subject: each for each in self._subscriptions}
        subscriptions: list[Subscription] = []
        for pattern, is_taken in wanted:
            take = self._sink(is_taken)
            subscription = current.pop(pattern, None)
            if subscription is None:
                subscription = self._intake.client.subscribe(pattern, take, queue=self._queue)
            else:
                subscription.hand_over(take)
            subscriptions.append(subscription)
        for subscription in current.values():
            subscription.unsubscribe()
        self._subscriptions = subscriptions
        self._intake.subscriptions_changed()

    def drain(self, drained: Callable[[], object]) -> None:
        """Take leave of all; `drained()` when the server delivers nothing more, or there is no connection."""
        self._is_leaving = True
        missing = len(self._subscriptions)
        if not missing:
            drained()

        def one_is(_error: NatsError | None) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                drained()

        for subscription in self._subscriptions:
            subscription.drain(one_is)

    def stop(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        for subscription in self._subscriptions:
            subscription.unsubscribe()

    def ask_again_later(self) -> None:
        """Some are refused."""
        if self._retry is None:
            self._retry = self._runtime.call_later(self._ask_again_s, self._ask_again)
            self._ask_again_s = min(2 * self._ask_again_s, ASK_REFUSED_AGAIN_S_MAX)

    def are_in_force(self) -> None:
        """The next refusal is a first one."""
        self._ask_again_s = ASK_REFUSED_AGAIN_S

    def _ask_again(self) -> None:
        self._retry = None
        client = self._intake.client
        if client.is_connected:
            for subscription in self._subscriptions:
                if subscription.refused:
                    subscription.again()
            client.flush(self._asked_again)
