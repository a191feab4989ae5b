"""The subscriptions of a client. They outlive connections: each connection begins with all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from barnabas.nats.client.errors import TOO_MANY_SUBSCRIPTIONS as TOO_MANY
from barnabas.nats.client.lines import sub_line, unsub_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.nats.client.connection import NatsConnection
    from barnabas.nats.client.errors import NatsError
    from barnabas.nats.client.protocol import NatsParser, Sink
    from barnabas.runtime.interface import Runtime


class Subscription:
    """Lives until `unsubscribe`, over as many connections as it takes."""

    __slots__ = ("_owner", "id", "queue", "refused", "sink", "subject")

    def __init__(
        self, owner: Subscriptions, subscription_id: bytes, subject: str, queue: str, sink: Sink
    ) -> None:
        self.id = subscription_id
        self.subject = subject
        self.queue = queue
        self.sink = sink
        self.refused = ""  # what the server says against it
        self._owner = owner

    def line(self) -> bytes:
        return sub_line(self.subject.encode(), self.id, self.queue.encode())

    def hand_over(self, sink: Sink) -> None:
        """From the next message on, another one gets them."""
        self._owner.hand_over(self, sink)

    def again(self) -> None:
        """Ask the server once more, which has refused it."""
        self._owner.again(self)

    def unsubscribe(self) -> None:
        """Its sink gets nothing any more."""
        self._owner.remove(self)

    def drain(self, done: Callable[[NatsError | None], object]) -> None:
        """Take leave: the sink gets what the server has sent until it knows, then `done(None)`; `done(error)` when the
        connection ends before."""
        self._owner.drain(self, done)


class HasConnection(Protocol):
    """The client, as far as it matters here."""

    parser: NatsParser

    @property
    def greeted(self) -> NatsConnection | None:
        """The connection, when the server has been told of the subscriptions."""
        ...


class Subscriptions:
    """All subscriptions of one client, by the number that the server knows them by."""

    def __init__(self, client: HasConnection, runtime: Runtime) -> None:
        self._client = client
        self._runtime = runtime
        self._by_id: dict[bytes, Subscription] = {}
        self._count = 0

    def add(self, subject: str, queue: str, sink: Sink) -> Subscription:
        """ValueError for a subject or queue group with blanks."""
        self._count += 1
        subscription = Subscription(self, b"%d" % self._count, subject, queue, sink)
        line = subscription.line()
        self._by_id[subscription.id] = subscription
        self._client.parser.add_sink(subscription.id, sink)
        connection = self._client.greeted
        if connection is not None:
            connection.output.send_line(line)
        return subscription

    def hand_over(self, subscription: Subscription, sink: Sink) -> None:
        """See Subscription.hand_over."""
        subscription.sink = sink
        if subscription.id in self._by_id:
            self._client.parser.add_sink(subscription.id, sink)

    def remove(self, subscription: Subscription) -> None:
        """Also one that has been removed before."""
        if self._by_id.pop(subscription.id, None) is not None:
            self._client.parser.remove_sink(subscription.id)
            connection = self._client.greeted
            if connection is not None:
                connection.output.send_line(unsub_line(subscription.id))

    def again(self, subscription: Subscription) -> None:
        """See Subscription.again."""
        connection = self._client.greeted
        if subscription.id in self._by_id and connection is not None:
            subscription.refused = ""
            connection.output.send_line(subscription.line())

    def drain(self, subscription: Subscription, done: Callable[[NatsError | None], object]) -> None:
        """See Subscription.drain."""
        parser = self._client.parser
        connection = self._client.greeted
        if self._by_id.pop(subscription.id, None) is None or connection is None:
            parser.remove_sink(subscription.id)
            self._runtime.call_soon(lambda: done(None))
            return

        def drained(error: NatsError | None) -> None:
            parser.remove_sink(subscription.id)
            done(error)

        connection.output.send_line(unsub_line(subscription.id))
        connection.ping(drained)

    def lines(self) -> bytes:
        """What a connection begins with, after CONNECT. Whether the server refuses one is seen anew."""
        for subscription in self._by_id.values():
            subscription.refused = ""
        return b"".join(subscription.line() for subscription in self._by_id.values())

    def refused(self, text: str) -> None:
        """The server has refused something; if it was a subscription, let it know. Where there are too many, the server
        does not say which, and it is the newest ones."""
        if text.lower().startswith(TOO_MANY):
            newest = next((each for each in reversed(self._by_id.values()) if not each.refused), None)
            if newest is not None:
                newest.refused = text
            return
        for subscription in self._by_id.values():
            if f'subscription to "{subscription.subject}"'.lower() in text.lower():
                subscription.refused = text
