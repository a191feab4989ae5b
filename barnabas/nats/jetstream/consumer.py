"""Reads a binding's stream into the topic, through consumers of JetStream that it sets up as often as necessary.

Two acknowledgement policies make it whole: exactly_once.py (a consumer without acknowledgements, positions in the logs) and
at_least_once.py (a durable consumer whose messages are acknowledged once their records are committed).

A run is one consumer and what is pulled from it. A failure ends the run (`restart`), and a new one is set up: at once the
first time, then after random pauses that get longer. Without a connection nothing is tried. `Blocked` is what only an
administrator can correct: it is tried again too, seldom, and shown in `state`.

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
from barnabas.nats.carrier import CarrierStats
from barnabas.nats.client.client import ClientListener
from barnabas.nats.client.errors import NatsError, NoResponders
from barnabas.nats.jetstream.ack_subject import parse_ack_subject
from barnabas.nats.jetstream.api import JetStreamApi, JetStreamError
from barnabas.nats.jetstream.intake import Intake
from barnabas.nats.jetstream.pull import PullConsumer
from barnabas.nats.jetstream.setup import Blocked, find_stream, unmatched_patterns
from barnabas.nats.jetstream.steps import Steps
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
    from barnabas.nats.jetstream.intake import ValueOf
    from barnabas.nats.jetstream.pull import PullLimits
    from barnabas.nats.records.keys import KeyFunction
    from barnabas.runtime.interface import Runtime, Timer
    from barnabas.wire.errors import ErrorCode

log = logging.getLogger("barnabas.nats")

FIRST_BACKOFF_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0
BLOCKED_S: Final = 5.0  # between looks at whether it is mended
STATE_CHARACTERS_MAX: Final = 1000
LOG_AGAIN_S: Final = 60.0  # the same reason

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
    """See the module; a Carrier. The subclasses are the acknowledgement policies. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        source: Source,
        binding: Binding,
        *,
        partition_count: Callable[[], int],
        cluster_id: str,
        dead_letters: DeadLetterTopic | None,
        key_of: KeyFunction | None = None,
        value_of: ValueOf | None = None,
    ) -> None:
        """`source` calls `on_read` after each piece of data that was read; `dead_letters` is closed with it. `key_of` and
        `value_of`: see Intake."""
        client = source.client
        self.binding = binding
        self.stats = CarrierStats()
        self.resets = 0  # runs that ended before their time
        self.leading: Mapping[int, Partition] = {}
        self._runtime = runtime
        self._source = source
        self._client = client
        self._api = JetStreamApi(client, client.settings.jetstream_domain)
        self._state = IDLE
        self._is_started = False
        self._steps: Steps | None = None
        self._timer: Timer | None = None
        self._failures = 0  # in a row
        self._logged = ("", 0.0)
        self._trace_again_at = 0.0
        self._is_in_trouble = False  # as the log has it
        self._logged_stream = ""
        self._partition_count = partition_count
        self._dead_letters = dead_letters
        self._intake = Intake(
            binding,
            self.stats,
            cluster_id,
            on_refused=self._refused,
            on_committed=self._refill,
            key_of=key_of,
            value_of=value_of,
        )
        # of the run
        self._run: PullConsumer | None = None
        self._stream = ""
        # received since the last `on_read`
        self._count = self._bytes = 0
        self._last_reply = b""

    # -- what the bridge calls

    @property
    def state(self) -> str:
        """In words: running, `connecting: <why>`, starting, `waiting: <why>`, `blocked: <what to do>`."""
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
            self._begin()

    def roles_changed(self, leading: Mapping[int, Partition]) -> None:
        self.leading = dict(leading)
        if self._is_started:
            self._begin_anew()

    def stop(self) -> None:
        if not self._is_started:
            return
        self._is_started = False
        self._client.listeners.remove(self)
        self._rest()
        self._end_run()
        self._source.closers.remove(self.on_read)
        self._stopped()
        if self._dead_letters is not None:
            self._dead_letters.close()
        self._state = IDLE

    # -- what the client tells

    def connected(self, info: ServerInfo) -> None:  # noqa: ARG002 - the listener's shape
        if self._is_started:
            self.stats.reconnects = self._client.stats.reconnects
            self._failures = 0
            self._begin_anew()

    def disconnected(self, cause: Cause) -> None:  # noqa: ARG002 - the listener's shape
        if self._is_started:
            self._rest()
            self._end_run()
            self._state = CONNECTING

    # -- runs

    def _begin_anew(self) -> None:
        """What is under way is no more of use: begin, if there is a connection."""
        self._rest()
        self._end_run()
        self._state = CONNECTING
        if self._client.is_connected:
            self._begin()

    def _begin(self) -> None:
        self._timer = None
        if not self._state.startswith("blocked"):
            self._state = STARTING
        is_over = False

        def ended(error: Exception | None) -> None:
            nonlocal is_over
            is_over = True
            self._steps = None
            self._set_up_ended(error)

        steps = Steps(self._set_up(), ended)
        if not is_over:
            self._steps = steps

    def _set_up_ended(self, error: Exception | None) -> None:
        if error is None:
            self._state = RUNNING
            if self._is_in_trouble:
                self._is_in_trouble = False
                log.info("%s: its stream is read again", self._name)
            return
        self._end_run()
        if isinstance(error, Blocked):
            self.block(str(error))
        elif isinstance(error, NoResponders):
            self.restart(NO_JETSTREAM)
        elif isinstance(error, NatsError | StorageError):
            text = error.description if isinstance(error, JetStreamError) else str(error) or repr(error)
            self.restart(text)
        else:
            now = self._runtime.monotonic()
            if now >= self._trace_again_at:
                self._trace_again_at = now + LOG_AGAIN_S
                log.error("%s: reading its stream has failed", self._name, exc_info=error)
            self.restart(repr(error))

    def restart(self, why: str) -> None:
        """End the run and set up another one, soon."""
        if not self._is_started:
            return
        longest = min(FIRST_BACKOFF_S * 2 ** min(self._failures, 10), BACKOFF_MAX_S)
        self._failures += 1
        self.resets += 1
        self._again(f"waiting: {why}", longest * self._runtime.random.uniform(0.5, 1))

    def block(self, why: str) -> None:
        """End the run: it can't go on before somebody does what `why` says."""
        if self._is_started:
            self._again(f"blocked: {why}", BLOCKED_S * self._runtime.random.uniform(0.75, 1.25))

    def went_well(self) -> None:
        """Something has come of the run: the next failure is a first one."""
        self._failures = 0

    def _again(self, state: str, delay_s: float) -> None:
        self._rest()
        self._end_run()
        state = self._state = state[:STATE_CHARACTERS_MAX]  # names and subjects in it are the server's
        now = self._runtime.monotonic()
        if state != self._logged[0] or now - self._logged[1] >= LOG_AGAIN_S:
            self._logged = state, now
            self._is_in_trouble = True
            log.warning("%s: %s", self._name, state)
        self._timer = self._runtime.call_later(delay_s, self._begin)

    def _rest(self) -> None:
        """Nothing is tried any more until somebody says so."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.cancel()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    @property
    def _name(self) -> str:
        return f"topic {self.binding.topic}"

    async def _find_stream(self) -> StreamInfo:
        """The stream that is read, told of when it is another one than before. Blocked."""
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
        self._close()
        self._refill()

    def _close(self) -> None:
        count, size = self._count, self._bytes
        if count:
            self._count = self._bytes = 0
            if self._run is not None:
                self._run.puller.received(count, size)
            self._received(count, size, parse_ack_subject(self._last_reply))

    def _refill(self) -> None:
        if self._run is not None:
            self._run.puller.refill(self._room)

    @property
    def _room(self) -> int:
        """How many bytes more may be in flight."""
        return self._intake.room

    def _end_run(self) -> None:
        """Ends the run, if there is one."""
        run = self._run
        if run is not None:
            run.stop()
            self._close()
            self._run = None
            self._run_ended()

    # -- the policy

    @abstractmethod
    async def _set_up(self) -> None:
        """Makes a consumer and begins a run. An exception ends the attempt; it may be cancelled wherever it waits."""

    @abstractmethod
    def _take(self, subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
        """A message, or a status of the server."""

    @abstractmethod
    def _received(self, count: int, size: int, last: Delivery | None) -> None:
        """Appends `count` messages of `size` bytes; `last` is the delivery of the last one."""

    @abstractmethod
    def _refused(self, index: int, count: int, error: ErrorCode, why: str) -> None:
        """The partition does not take the last `count` messages of those that were gathered for it."""

    @abstractmethod
    def _pull_failed(self, why: str) -> None:
        """The consumer delivers no more messages. Called while data is read, or by a timer."""

    @abstractmethod
    def _run_ended(self) -> None:
        """The run has ended, and its messages are appended."""

    @abstractmethod
    def _stopped(self) -> None:
        """It ends for good."""
