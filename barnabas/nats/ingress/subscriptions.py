"""Subscriptions of a core binding.

While a binding is changed no message may be missed, and none may be received twice. A server delivers a message once for each
matching subscription, and at the moment at which one subscription replaces another it is unknown which messages
both receive. So none is replaced: a subscription to some of the wanted subjects stays, with a filter where it receives more
than those, and new ones receive the subjects that the others do not. Subscriptions that stay only for this reason end with
the connection, when there is a gap anyway.

A server that refuses a subscription may allow it later without notice, so it is retried, after pauses that get longer.
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
    """The subscriptions that follow those to `current`, as (pattern, filter of its subjects or None). Together they take every
    wanted subject exactly once; where patterns overlap, an earlier one takes the subject."""
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


RETRY_S: Final = 2.0  # and then twice as long each time
RETRY_MAX_S: Final = 60.0


class CoreSubscriptions:
    """The subscriptions of one binding. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        intake: Intake,
        queue: str,
        sink: Callable[[Filter | None], Sink],
        on_confirmed: Callable[[], object],
    ) -> None:
        """`sink(filter)` makes the sink of a subscription; `on_confirmed()` is called when the server has answered `confirm`."""
        self._runtime = runtime
        self._intake = intake
        self._queue = queue
        self._sink = sink
        self._on_confirmed = on_confirmed
        self._subscriptions: list[Subscription] = []
        self._is_draining = False
        self._confirmation: object = None  # the latest; answers to earlier ones say nothing
        self._retry: Timer | None = None
        self._retry_s = RETRY_S

    @property
    def patterns(self) -> list[str]:
        return [each.subject for each in self._subscriptions]

    @property
    def refused(self) -> str:
        """Why the server refuses one of them, "" when it refuses none."""
        return next((each.refused for each in self._subscriptions if each.refused), "")

    def replace(self, wanted: Sequence[tuple[str, Filter | None]]) -> None:
        """Subscribes to these patterns, with these filters. Subscriptions that are among them stay; new ones begin before others
        end. While draining this does nothing."""
        if self._is_draining:
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

    def unsubscribe(self) -> None:
        """Ends all of them, until `replace`."""
        self.replace(())
        self._confirmation = None

    def confirm(self) -> None:
        """Asks the server, if there is a connection, whether it has the subscriptions."""

        def flushed(error: NatsError | None) -> None:
            if confirmation is self._confirmation and error is None:
                self._on_confirmed()

        confirmation = self._confirmation = object()
        if self._intake.client.is_connected:
            self._intake.client.flush(flushed)

    def drain(self, drained: Callable[[], object]) -> None:
        """Drains all of them; `drained()` when the server delivers no more messages, or there is no connection."""
        self._is_draining = True
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
        self._confirmation = None
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        for subscription in self._subscriptions:
            subscription.unsubscribe()

    def retry_later(self) -> None:
        """The server refuses some of them."""
        if self._retry is None:
            self._retry = self._runtime.call_later(self._retry_s, self._try_again)
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    def accepted(self) -> None:
        """The server refuses none of them: the pause before a retry is short again."""
        self._retry_s = RETRY_S

    def _try_again(self) -> None:
        self._retry = None
        if self._intake.client.is_connected:
            for subscription in self._subscriptions:
                if subscription.refused:
                    subscription.again()
            self.confirm()
