"""Subscriptions and requests of a client.

Subscriptions outlive connections: each connection begins with all of them. One subscription, to a wildcard inbox, receives
the replies to all requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
    """Requests without a reply so far. `prefix` is that of the replies' subjects, with its last dot."""

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
        """The sink of the inbox. Drops a reply to no known request."""
        request = self._waiting.pop(subject, None)
        if request is None:
            return
        request.timer.cancel()
        if not payload and header_block.startswith(NO_RESPONDERS):
            request.done(None, NoResponders("no subscriber to the subject of the request"))
        else:
            request.done(Message(subject, reply, header_block, payload), None)

    def fail(self, subject: bytes, error: NatsError) -> None:
        request = self._waiting.pop(subject, None)
        if request is not None:
            request.timer.cancel()
            request.done(None, error)

    def fail_all(self, error: NatsError) -> None:
        """The connection has ended: no reply will arrive."""
        for subject in tuple(self._waiting):
            self.fail(subject, error)

    def _too_late(self, subject: bytes, timeout_s: float) -> None:
        self.fail(subject, RequestTimedOut(f"no reply within {timeout_s:g} s"))


class Subscription:
    """A subscription of a client, from `Subscriptions.add` until `unsubscribe`, over any number of connections."""

    __slots__ = ("_all", "id", "queue", "refused", "sink", "subject")

    def __init__(
        self, of: Subscriptions, subscription_id: bytes, subject: str, queue: str, sink: Sink
    ) -> None:
        self.id = subscription_id
        self.subject = subject
        self.queue = queue
        self.sink = sink
        self.refused = ""  # the server's error
        self._all = of

    def line(self) -> bytes:
        return sub_line(self.subject.encode(), self.id, self.queue.encode())

    def hand_over(self, sink: Sink) -> None:
        """Another sink gets the messages, from the next one on."""
        self.sink = sink
        if self.id in self._all.by_id:
            self._all.parser.add_sink(self.id, sink)

    def again(self) -> None:
        """Sends SUB again to a server that has refused it."""
        connection = self._all.greeted()
        if self.id in self._all.by_id and connection is not None:
            self.refused = ""
            connection.output.send_line(self.line())

    def unsubscribe(self) -> None:
        """The sink gets nothing any more. A second call has no effect."""
        if self._all.by_id.pop(self.id, None) is not None:
            self._all.parser.remove_sink(self.id)
            connection = self._all.greeted()
            if connection is not None:
                connection.output.send_line(unsub_line(self.id))

    def drain(self, done: Callable[[NatsError | None], object]) -> None:
        """Unsubscribes without losing messages: the sink gets what the server sends until it has read UNSUB, then
        `done(None)` is called; `done(error)` when the connection ends before."""
        parser = self._all.parser
        connection = self._all.greeted()
        if self._all.by_id.pop(self.id, None) is None or connection is None:
            parser.remove_sink(self.id)
            self._all.runtime.call_soon(lambda: done(None))
            return

        def drained(error: NatsError | None) -> None:
            parser.remove_sink(self.id)
            done(error)

        connection.output.send_line(unsub_line(self.id))
        connection.ping(drained)


class Subscriptions:
    """All subscriptions of one client, by the number that the server knows them by. `greeted` returns the connection whose
    server knows the subscriptions."""

    def __init__(
        self, parser: NatsParser, runtime: Runtime, greeted: Callable[[], NatsConnection | None]
    ) -> None:
        self.parser = parser
        self.runtime = runtime
        self.greeted = greeted
        self.by_id: dict[bytes, Subscription] = {}
        self._count = 0

    def add(self, subject: str, queue: str, sink: Sink) -> Subscription:
        """ValueError for a subject or queue group with blanks."""
        self._count += 1
        subscription = Subscription(self, b"%d" % self._count, subject, queue, sink)
        line = subscription.line()
        self.by_id[subscription.id] = subscription
        self.parser.add_sink(subscription.id, sink)
        connection = self.greeted()
        if connection is not None:
            connection.output.send_line(line)
        return subscription

    def lines(self) -> bytes:
        """The SUBs that a connection begins with, after CONNECT. The server decides anew which ones it refuses."""
        for subscription in self.by_id.values():
            subscription.refused = ""
        return b"".join(subscription.line() for subscription in self.by_id.values())

    def note_refusal(self, text: str) -> None:
        """Notes the server's error at the subscription that it is about, if it is about one. "Maximum Subscriptions
        Exceeded" names none: it is the newest."""
        if text.lower().startswith(TOO_MANY):
            newest = next((each for each in reversed(self.by_id.values()) if not each.refused), None)
            if newest is not None:
                newest.refused = text
            return
        for subscription in self.by_id.values():
            if f'subscription to "{subscription.subject}"'.lower() in text.lower():
                subscription.refused = text
