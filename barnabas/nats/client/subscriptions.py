"""Subscriptions and requests of a client.

Subscriptions outlive connections: each connection begins with all of them. One of them, to a wildcard inbox, receives the
replies to all requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from barnabas.nats.client.errors import TOO_MANY_SUBSCRIPTIONS as TOO_MANY
from barnabas.nats.client.errors import NatsError, NoResponders, RequestTimedOut
from barnabas.nats.client.protocol import sub_line, unsub_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.nats.client.connection import NatsConnection
    from barnabas.nats.client.protocol import NatsParser, Sink
    from barnabas.runtime.interface import Runtime, Timer

NO_RESPONDERS: Final = b"NATS/1.0 503"


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message as it came; `header_block` is b"" when it has no headers."""

    subject: bytes
    reply: bytes
    header_block: bytes
    payload: bytes


class _Request(msgspec.Struct):
    done: Callable[[Message | None, NatsError | None], object]
    timer: Timer


class Requests:
    """The requests that wait for their reply. `prefix` is that of the replies' subjects, with its last dot."""

    def __init__(self, runtime: Runtime, prefix: bytes) -> None:
        self.prefix = prefix
        self._runtime = runtime
        self._waiting: dict[bytes, _Request] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, timeout_s: float, done: Callable[[Message | None, NatsError | None], object]) -> bytes:
        """The reply subject of a request; `done` gets its reply, or the error."""
        self._count += 1
        subject = b"%b%d" % (self.prefix, self._count)
        timer = self._runtime.call_later(timeout_s, lambda: self._too_late(subject, timeout_s))
        self._waiting[subject] = _Request(done, timer)
        return subject

    def take(self, subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
        """The sink of the inbox. An answer without a waiting request is dropped."""
        request = self._waiting.pop(subject, None)
        if request is None:
            return
        request.timer.cancel()
        if not payload and header_block.startswith(NO_RESPONDERS):
            request.done(None, NoResponders("nobody is subscribed to the subject of the request"))
        else:
            request.done(Message(subject, reply, header_block, payload), None)

    def fail(self, subject: bytes, error: NatsError) -> None:
        request = self._waiting.pop(subject, None)
        if request is not None:
            request.timer.cancel()
            request.done(None, error)

    def fail_all(self, error: NatsError) -> None:
        """There will be no replies: the connection has ended."""
        for subject in tuple(self._waiting):
            self.fail(subject, error)

    def _too_late(self, subject: bytes, timeout_s: float) -> None:
        self.fail(subject, RequestTimedOut(f"no reply within {timeout_s:g} s"))


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
