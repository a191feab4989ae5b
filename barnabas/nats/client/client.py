"""A client of a NATS system: one connection at a time, made again whenever it ends, with the subscriptions kept.

What owns what:

- `NatsClient`: whether there should be a connection, counters, listeners, and the calls that others make.
- `ServerPool` (server_pool.py): which server is next, and after which pause. `Reconnect`: the attempt that is being made.
- `NatsConnection` (connection.py): one transport, with its `Session` (states, PINGs), `Output` and `Pausing` (flow control).
- `Subscriptions` and `Requests` (subscriptions.py): what every connection begins with, and the replies that are awaited.
- `NatsParser` (protocol.py): the sink of each subscription, and what has arrived of the next message.

Nothing here raises because a server is down: `publish` raises NotConnected, callbacks get errors, and listeners are called
with the cause when a connection ends (errors.py) and when the next one is ready. Messages that others publish in between
are lost, as in core NATS; ingress/gap_tracker.py records when that was.

Everything runs on the loop's thread. Messages go from the parser to the sinks with nothing in between; `on_read` is
called after each piece of data that was read, so that messages that came together can be handled together.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.client.connection import NatsConnection
from barnabas.nats.client.errors import (
    AUTHORIZATION,
    LAME_DUCK,
    STOPPED,
    Cause,
    NatsError,
    NotConnected,
    cause_of,
)
from barnabas.nats.client.handshake import login_advice
from barnabas.nats.client.protocol import NatsParser, ServerInfo, pub
from barnabas.nats.client.server_pool import Reconnect
from barnabas.nats.client.session import READY
from barnabas.nats.client.subscriptions import Message, Requests, Subscription, Subscriptions
from barnabas.runtime.repeated_warnings import RepeatedWarnings

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.nats.client.connection_settings import ConnectionSettings, ServerAddress
    from barnabas.nats.client.protocol import Sink
    from barnabas.runtime.interface import Runtime

__all__ = ["ClientListener", "ClientStats", "Message", "NatsClient", "Subscription"]

log = logging.getLogger("barnabas.nats")

ERROR_CHARACTERS_MAX: Final = 1000  # of what a server says
LAME_DUCK_LEAVE_S: Final = 2.0  # at the latest, when there is another server


class ClientListener:
    """Callbacks of a client, about its connection. All calls on the loop's thread."""

    def connected(self, info: ServerInfo) -> None:
        """The subscriptions are in force."""

    def disconnected(self, cause: Cause) -> None:
        """A connection that was ready has ended."""

    def unreachable(self, cause: Cause) -> None:
        """An attempt has failed; the next one follows."""

    def slow(self, paused_s: float) -> None:
        """Nothing has been read for `paused_s` because of `pause`. The server ends the connection after ten seconds, or
        when 64 MiB wait."""

    def refused(self, text: str) -> None:
        """The server has refused a subscription or a message; the connection stays."""

    def drained(self) -> None:
        """The output buffer was full, and is empty again."""


class ClientStats(msgspec.Struct):
    """Counters since the start."""

    messages_in: int = 0
    bytes_in: int = 0  # of the protocol
    messages_out: int = 0
    bytes_out: int = 0
    connects: int = 0
    reconnects: int = 0
    sink_errors: int = 0


class NatsClient:
    """See the module. `name` is shown in logs and to the server."""

    def __init__(
        self,
        runtime: Runtime,
        settings: ConnectionSettings,
        name: str,
        on_read: Callable[[], object] = lambda: None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.parser = NatsParser(self)
        self.listeners: list[ClientListener] = []
        self.last_cause: Cause | None = None  # why there is no connection, or was none
        self._runtime = runtime
        self._on_read = on_read
        self._stats = ClientStats()
        self._reconnect = Reconnect(runtime, settings, self._new_connection, self._has_failed)
        self._failures = RepeatedWarnings(runtime, log)  # to connect
        self._refusals = RepeatedWarnings(runtime, log)  # by the server, and by sinks
        self._subscriptions = Subscriptions(self.parser, runtime, self._greeted_connection)
        self._requests: Requests | None = None
        self._connection: NatsConnection | None = None
        self._is_running = False
        self._is_paused = False
        self._is_pool_behind = False  # the next turn updates it

    # -- state

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.session.state is READY

    @property
    def info(self) -> ServerInfo | None:
        """Of the server that the client is connected to."""
        connection = self._connection
        return connection.session.info if connection is not None and self.is_connected else None

    @property
    def server(self) -> str:
        """host:port of the server that the client is connected to, or ""."""
        return str(self._connection.server) if self._connection is not None and self.is_connected else ""

    @property
    def stats(self) -> ClientStats:
        self._stats.messages_in = self.parser.messages
        return self._stats

    @property
    def is_paused(self) -> bool:
        """Whether it reads nothing."""
        return self._is_paused

    @property
    def output_bytes(self) -> int:
        """What waits to be written."""
        return self._connection.output.waiting_bytes if self._connection is not None else 0

    def start(self) -> None:
        """Makes a connection, and another one whenever it ends, until `stop`."""
        if not self._is_running:
            self._is_running = True
            self._reconnect.attempt()

    def stop(self) -> None:
        """Ends the connection; what was published is still written. Subscriptions are kept for another start."""
        self._is_running = False
        self._reconnect.cancel()
        self._failures.forget(self.name)
        self._refusals.forget(self.name)
        if self._connection is not None:
            self._connection.finish(Cause(STOPPED))

    # -- messages

    def subscribe(self, subject: str, sink: Sink, *, queue: str = "") -> Subscription:
        """Calls `sink` with the messages of a subject pattern, from now on or from the next connection on. ValueError for a
        subject or queue group with blanks."""
        return self._subscriptions.add(subject, queue, sink)

    def publish(self, subject: bytes, payload: bytes, *, reply: bytes = b"", headers: bytes = b"") -> None:
        """Sends a message. NotConnected; OutputFull when too much waits to be written; ValueError for an invalid subject.
        The server may still refuse it (ClientListener.refused)."""
        self.publish_encoded(pub(subject, payload, reply, headers), 1)

    def publish_encoded(self, data: bytes, count: int) -> None:
        """Sends `count` messages that are encoded already (`protocol.pub`), all or none: NotConnected, OutputFull."""
        connection = self._connection
        if connection is None or connection.session.state is not READY:
            raise NotConnected(f"{self.name} has no connection: {self.last_cause or 'not yet'}")
        connection.output.send(data)
        stats = self._stats
        stats.messages_out += count
        stats.bytes_out += len(data)

    def request(
        self,
        subject: bytes,
        payload: bytes,
        *,
        headers: bytes = b"",
        timeout_s: float,
        done: Callable[[Message | None, NatsError | None], object],
    ) -> None:
        """Sends a message and calls `done(reply, None)`, or `done(None, error)`: NotConnected (also when the connection
        ends meanwhile), OutputFull, NoResponders, RequestTimedOut. Never calls it before this returns."""
        requests = self._requests
        if requests is None:
            requests = self._requests = Requests(self._runtime, self.new_inbox() + b".")
            self.subscribe((requests.prefix + b"*").decode(), requests.take)
        inbox = requests.add(timeout_s, done)
        try:
            self.publish(subject, payload, reply=inbox, headers=headers)
        except NatsError as error:
            failure = error
            self._runtime.call_soon(lambda: requests.fail(inbox, failure))

    def new_inbox(self) -> bytes:
        """A subject for replies that no other client has."""
        return b"%b.%b" % (self.settings.inbox_prefix.encode(), self._runtime.random_bytes(12).hex().encode())

    def flush(self, done: Callable[[NatsError | None], object]) -> None:
        """`done(None)` when the server has processed all that was sent so far; `done(NotConnected)` if it never will."""
        if self._connection is not None and self.is_connected:
            self._connection.ping(done)
        else:
            self._runtime.call_soon(lambda: done(NotConnected(f"{self.name} has no connection")))

    def pause(self) -> None:
        """Reads no more until `resume`. What has been read already still goes to the sinks."""
        self._is_paused = True
        if self._connection is not None and self.is_connected:
            self._connection.pause()

    def resume(self) -> None:
        self._is_paused = False
        if self._connection is not None:
            self._connection.resume()

    # -- making the connection

    def _new_connection(self, server: ServerAddress) -> NatsConnection:
        return NatsConnection(self, self._runtime, self.settings, server)

    def _has_failed(self, cause: Cause) -> None:
        self.last_cause = cause
        if not self._is_running:
            return
        self._failures.warn(self.name, str(cause), f"{self.name}: {cause}")
        self._reconnect.pool.failed()
        self._reconnect.attempt()
        self._notify(lambda listener: listener.unreachable(cause))

    def _notify(self, call: Callable[[ClientListener], object]) -> None:
        for listener in tuple(self.listeners):
            try:
                call(listener)
            except Exception:
                log.exception("%s: a listener has failed", self.name)

    def _greeted_connection(self) -> NatsConnection | None:
        connection = self._connection
        return connection if connection is not None and connection.session.is_greeted else None

    # -- called by the connection

    def made(self, connection: NatsConnection) -> bool:
        self._reconnect.made()
        if not self._is_running or self._connection is not None:
            return False
        self._connection = connection
        return True

    def subscription_lines(self) -> bytes:
        return self._subscriptions.lines()

    def ready(self, connection: NatsConnection) -> None:
        stats = self._stats
        stats.connects += 1
        stats.reconnects = stats.connects - 1
        self._failures.forget(self.name)
        info = connection.session.info
        self._update_pool()
        log.info("%s: connected to %s, nats-server %s", self.name, connection.server, info.version)
        if self._is_paused:
            connection.pause()
        self._notify(lambda listener: listener.connected(info))

    def has_read(self, byte_count: int) -> None:
        self._stats.bytes_in += byte_count
        try:
            self._on_read()
        except Exception:
            log.exception("%s: processing what was read has failed", self.name)

    def drained(self) -> None:
        self._notify(lambda listener: listener.drained())

    def slow(self, paused_s: float) -> None:
        log.warning(
            "%s: nothing has been read for %.0f s; the server disconnects slow readers", self.name, paused_s
        )
        self._notify(lambda listener: listener.slow(paused_s))

    def ended(self, connection: NatsConnection, cause: Cause) -> None:
        if self._connection is not connection:
            return
        self._connection = None
        self.last_cause = cause
        ready_at = connection.ready_at
        if ready_at is None:
            self._has_failed(cause)
        else:
            if cause.kind == STOPPED:
                log.info("%s: %s", self.name, cause)
            else:
                self._failures.warn(
                    self.name, f"ended: {cause}", f"{self.name}: the connection has ended: {cause}"
                )
            self._reconnect.pool.ended(self._runtime.monotonic() - ready_at)
            if self._is_running:
                self._reconnect.attempt()
        if self._requests is not None:
            self._requests.fail_all(NotConnected(str(cause)))
        if ready_at is not None:
            self._notify(lambda listener: listener.disconnected(cause))

    # -- called by the parser

    def on_info(self, info: ServerInfo) -> None:
        connection = self._connection
        if connection is None:
            return
        self.parser.size_max = info.size_max
        if info.connect_urls and not self._is_pool_behind:  # once a turn, however many lines it brings
            self._is_pool_behind = True
            self._runtime.call_soon(self._update_pool)
        cause = Cause(LAME_DUCK, f"{connection.server} shuts down")
        if connection.session.take_info(info, cause) and len(self._reconnect.pool) > 1:
            delay_s = self._runtime.random.uniform(0, LAME_DUCK_LEAVE_S)
            self._runtime.call_later(delay_s, lambda: connection.finish(cause))

    def _update_pool(self) -> None:
        self._is_pool_behind = False
        connection = self._connection
        if connection is not None and (urls := connection.session.info.connect_urls):
            self._reconnect.pool.discovered(urls, connection.server)

    def on_ping(self) -> None:
        if self._connection is not None:
            self._connection.output.send_line(b"PONG\r\n")

    def on_pong(self) -> None:
        if self._connection is not None:
            self._connection.session.answer_ping()

    def on_ok(self) -> None:
        """Servers send it with verbose=true only."""

    def on_error(self, text: str) -> None:
        text = text[:ERROR_CHARACTERS_MAX]
        cause = cause_of(text)
        connection = self._connection
        if cause is not None:
            if connection is not None:
                detail = f"{connection.server}: {cause.detail}"
                if cause.kind == AUTHORIZATION:
                    detail += f"; {login_advice(self.settings, connection.server)}"
                connection.end(Cause(cause.kind, detail))
            return
        # Of refused messages there may be many, each with its subject.
        what = text if "subscription" in text.lower() else text.partition('"')[0]
        self._refusals.warn(self.name, what, f"{self.name}: the server has refused something: {text}")
        self._subscriptions.note_refusal(text)
        self._notify(lambda listener: listener.refused(text))

    def on_sink_error(self, subject: bytes, error: Exception) -> None:
        self._stats.sink_errors += 1
        line = f"{self.name}: processing a message on {subject[:200]!r} has failed"
        self._refusals.warn(self.name, "sink", line, level=logging.ERROR, error=error)
