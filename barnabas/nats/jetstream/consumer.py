"""Reads a binding's stream into the topic, through JetStream consumers that it sets up as often as necessary.

`StreamConsumer` is what both acknowledgement policies share: exactly_once.py (a consumer without acknowledgements, positions
in the logs) and at_least_once.py (a durable consumer, acknowledged once the records are committed).

A run is one JetStream consumer and the messages pulled from it. A failure ends the run, and another one is set up: at once,
then after growing pauses. A `Blocked` failure needs an administrator; it is tried again every five seconds. Without a
connection nothing is tried.

    idle --start--> connecting --connected--> setting up --> running
                        ^  disconnected          |  ^  fails    | restart
                        +------------------------+  +--(timer)--+
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.nats.announcements import reading
from barnabas.nats.client.client import ClientListener
from barnabas.nats.client.errors import NatsError, NoResponders
from barnabas.nats.jetstream.ack_subject import parse_ack_subject
from barnabas.nats.jetstream.api import JetStreamApi, JetStreamError
from barnabas.nats.jetstream.pull import PullConsumer
from barnabas.nats.jetstream.setup import Blocked, find_stream, unmatched_patterns
from barnabas.runtime.backoff import Backoff
from barnabas.runtime.procedures import Procedure
from barnabas.runtime.repeated_warnings import RepeatedWarnings
from barnabas.storage.errors import StorageError

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.client.errors import Cause
    from barnabas.nats.client.protocol import ServerInfo
    from barnabas.nats.dead_letters import DeadLetterTopic
    from barnabas.nats.jetstream.ack_subject import Delivery
    from barnabas.nats.jetstream.api import StreamInfo
    from barnabas.nats.jetstream.appender import StreamAppender
    from barnabas.nats.jetstream.pull import PullLimits
    from barnabas.runtime.interface import Runtime, Timer
    from barnabas.wire.errors import ErrorCode

log = logging.getLogger("barnabas.nats")

BLOCKED_RETRY_S: Final = 5.0
STATE_CHARACTERS_MAX: Final = 1000

IDLE: Final = "idle"
CONNECTING: Final = "connecting"
STARTING: Final = "starting"
RUNNING: Final = "running"
NO_JETSTREAM: Final = (
    "the server has no JetStream for this account: start it with -js, allow it for the account, or name its domain with "
    "nats.jetstream.domain"
)


class Source(Protocol):
    """The connection that messages come on. `closers` are called after each piece of data that was read."""

    client: NatsClient
    closers: list[Callable[[], object]]


class StreamConsumer(ClientListener, ABC):
    """A Carrier; its subclasses are the acknowledgement policies. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        source: Source,
        binding: Binding,
        appender: StreamAppender,
        dead_letters: DeadLetterTopic | None,
    ) -> None:
        """`dead_letters` is closed with it."""
        client = source.client
        self.binding = binding
        self.stats = appender.stats
        self.resets = 0  # failures, after each of which messages are read again
        self.leading: Mapping[int, Partition] = {}
        self._runtime = runtime
        self._source = source
        self._client = client
        self._api = JetStreamApi(client, client.settings.jetstream_domain)
        self._appender = appender
        self._dead_letters = dead_letters
        self._name = f"topic {binding.topic}"
        self._state = IDLE
        self._is_started = False
        self._set_up_procedure: Procedure | None = None
        self._timer: Timer | None = None  # for the next set-up
        self._backoff = Backoff(runtime)
        self._warnings = RepeatedWarnings(runtime, log)
        self._has_warned = False  # since the stream was read last
        self._logged_stream = ""
        # of the run
        self._run: PullConsumer | None = None
        self._stream = ""
        # received since the last `on_read`
        self._count = self._bytes = 0
        self._last_reply = b""

    # -- as a Carrier

    @property
    def state(self) -> str:
        """ "running", "starting", "connecting: <why>", "waiting: <why>" or "blocked: <what to do>"."""
        cause = self._client.last_cause
        return f"{CONNECTING}: {cause}" if self._state == CONNECTING and cause is not None else self._state

    def start(self, leading: Mapping[int, Partition]) -> None:
        self._is_started = True
        self.leading = dict(leading)
        self._client.listeners.append(self)
        self._source.closers.append(self.on_read)
        self._state = CONNECTING
        log.info("%s %s", self._name, reading(self.binding, leading))
        if self._client.is_connected:
            self._begin_set_up()

    def roles_changed(self, leading: Mapping[int, Partition]) -> None:
        self.leading = dict(leading)
        if self._is_started:
            self._start_over()

    def stop(self) -> None:
        if not self._is_started:
            return
        self._is_started = False
        self._client.listeners.remove(self)
        self._cancel_set_up()
        self._end_run()
        self._source.closers.remove(self.on_read)
        self._stopped()
        if self._dead_letters is not None:
            self._dead_letters.close()
        self._state = IDLE

    # -- as a ClientListener

    def connected(self, info: ServerInfo) -> None:  # noqa: ARG002
        if self._is_started:
            self.stats.reconnects = self._client.stats.reconnects
            self._backoff.reset()
            self._start_over()

    def disconnected(self, cause: Cause) -> None:  # noqa: ARG002
        if self._is_started:
            self._cancel_set_up()
            self._end_run()
            self._state = CONNECTING

    # -- setting up

    def _start_over(self) -> None:
        """Ends the run and sets up another one at once, if there is a connection."""
        self._cancel_set_up()
        self._end_run()
        self._state = CONNECTING
        if self._client.is_connected:
            self._begin_set_up()

    def _begin_set_up(self) -> None:
        self._timer = None
        if not self._state.startswith("blocked"):
            self._state = STARTING
        self._set_up_procedure = Procedure(self._set_up(), self._set_up_ended)
        self._set_up_procedure.start()

    def _set_up_ended(self, error: Exception | None) -> None:
        self._set_up_procedure = None
        if error is None:
            self._state = RUNNING
            if self._has_warned:
                self._has_warned = False
                log.info("%s: its stream is read again", self._name)
            return
        self._end_run()
        if isinstance(error, Blocked):
            self._block(str(error))
        elif isinstance(error, NoResponders):
            self._restart(NO_JETSTREAM)
        elif isinstance(error, NatsError | StorageError):
            text = error.description if isinstance(error, JetStreamError) else str(error) or repr(error)
            self._restart(text)
        else:
            line = f"{self._name}: reading its stream has failed"
            self._warnings.warn(self._name, "bug", line, level=logging.ERROR, error=error)
            self._restart(repr(error))

    def _restart(self, why: str) -> None:
        """Ends the run and sets up another one after a pause."""
        if self._is_started:
            self.resets += 1
            self._set_up_later(f"waiting: {why}", self._backoff.next_s())

    def _block(self, why: str) -> None:
        """Ends the run after a failure that an administrator must correct, as `why` says."""
        if self._is_started:
            delay_s = BLOCKED_RETRY_S * self._runtime.random.uniform(0.75, 1.25)
            self._set_up_later(f"blocked: {why}", delay_s)

    def _set_up_later(self, state: str, delay_s: float) -> None:
        self._cancel_set_up()
        self._end_run()
        state = self._state = state[:STATE_CHARACTERS_MAX]  # names and subjects in it are the server's
        if self._warnings.warn(self._name, state, f"{self._name}: {state}"):
            self._has_warned = True
        self._timer = self._runtime.call_later(delay_s, self._begin_set_up)

    def _cancel_set_up(self) -> None:
        procedure, self._set_up_procedure = self._set_up_procedure, None
        if procedure is not None:
            procedure.cancel()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    async def _find_stream(self) -> StreamInfo:
        """The binding's stream; logs it when it is another one than before. Blocked."""
        info = await find_stream(self._api, self.binding)
        if info.config.name != self._logged_stream:
            self._logged_stream = info.config.name
            log.info("%s: its stream is %s", self._name, info.config.name)
            for pattern in unmatched_patterns(info, self.binding.patterns):
                text = "%s: %s is no subject of the stream %s, which takes %s"
                log.warning(
                    text, self._name, pattern, info.config.name, ", ".join(info.config.subjects or ())
                )
        return info

    # -- the run

    def _begin_run(self, consumer: str, limits: PullLimits) -> None:
        """Pulls from this consumer of `_stream` from now on."""
        self._run = PullConsumer(
            self._runtime,
            self._client,
            self._api,
            self._stream,
            consumer,
            self.binding.buffer_bytes,
            limits,
            self._take,
            self._pull_failed,
        )
        self._refill()

    def on_read(self) -> None:
        """A piece of data has been read: appends the messages in it, and pulls more."""
        self._close_read()
        self._refill()

    def _close_read(self) -> None:
        count, size = self._count, self._bytes
        if count:
            self._count = self._bytes = 0
            if self._run is not None:
                self._run.puller.received(count, size)
            self._received(count, size, parse_ack_subject(self._last_reply))

    def _append(self, size: int) -> None:
        """Appends the gathered records, which came in messages of `size` bytes."""
        self._appender.append(size, self._appended, self._refused, self._refill)

    def _refill(self) -> None:
        if self._run is not None:
            self._run.puller.refill(self._room)

    @property
    def _room(self) -> int:
        """How many bytes more may be in flight."""
        return self._appender.room

    def _end_run(self) -> None:
        """Ends the run, if there is one."""
        run = self._run
        if run is not None:
            run.stop()
            self._close_read()
            self._run = None
            self._run_ended()

    # -- the policy

    @abstractmethod
    async def _set_up(self) -> None:
        """Creates a consumer and begins a run. An exception ends the attempt; it may be cancelled wherever it waits."""

    @abstractmethod
    def _take(self, subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
        """Takes a message, or a status of the server."""

    @abstractmethod
    def _received(self, count: int, size: int, last: Delivery | None) -> None:
        """Appends `count` messages of `size` bytes; `last` is the delivery of the last one."""

    def _appended(self, index: int, first: int, count: int, base_offset: int) -> None:
        """Of the records gathered for a partition, `count` from number `first` on are appended at `base_offset`."""

    @abstractmethod
    def _refused(self, index: int, count: int, error: ErrorCode, why: str) -> None:
        """The partition does not take the last `count` records that were gathered for it."""

    @abstractmethod
    def _pull_failed(self, why: str) -> None:
        """The consumer delivers no more messages. Called while data is read, or by a timer."""

    @abstractmethod
    def _run_ended(self) -> None:
        """The run has ended, and its messages are appended."""

    @abstractmethod
    def _stopped(self) -> None:
        """The carrier ends."""
