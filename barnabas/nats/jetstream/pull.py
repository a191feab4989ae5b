"""Pulls messages from a consumer, as many as there is room for.

A pull requests a number of bytes. The server keeps pulls and serves them as messages come, so a few small overlapping pulls
keep the connection busy, and reading stops when no more are sent. (Measured against push with flow control: the same rate and
the same load on the server.)

Messages do not pass through the Puller. The consumer counts them and reports them after each read (`received`). Statuses of
pulls come on the same inbox, without a reply subject (`status`). Missing heartbeats, or a status that the consumer is gone,
end it: `failed(why)`, once.

Source: ADR-13 (pull subscriptions): status 100 idle heartbeat, 404, 408 and 409 end a pull, 503 no responders.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.client.errors import NatsError
from barnabas.nats.client.headers import MalformedHeaders, find_header, read_status
from barnabas.nats.jetstream.ack_subject import numbers_start, parse_ack_subject
from barnabas.nats.jetstream.api import NANOSECONDS, NextRequest
from barnabas.runtime.repeated_warnings import RepeatedWarnings

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.client.protocol import Sink
    from barnabas.nats.jetstream.api import JetStreamApi
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

PULL_BYTES_MAX: Final = 1 << 20
PULLS: Final = 3  # open at a time
_NO_PREFIX: Final = b"\0"  # no reply subject begins with it
MESSAGES_MAX: Final = 100_000  # of one pull; bytes are the limit
EXPIRES_S: Final = 30.0
HEARTBEAT_S: Final = 5.0
SILENCE_MAX: Final = 2.5  # missing heartbeats

_TOO_LARGE: Final = b"409 Message Size Exceeds MaxBytes"
_COMPLETED: Final = b"409 Batch Completed"
_TOO_MANY_PULLS: Final = b"409 Exceeded MaxWaiting"


class PullLimits:
    """A consumer's limits of a pull, where 0 is none, within those of this module."""

    def __init__(self, messages: int = 0, byte_count: int = 0, expires_ns: int = 0, waiting: int = 0) -> None:
        self.messages = min(messages, MESSAGES_MAX) if messages > 0 else MESSAGES_MAX
        self.bytes = byte_count
        self.expires_ns = int(EXPIRES_S * NANOSECONDS)
        if 0 < expires_ns < self.expires_ns:
            self.expires_ns = expires_ns
        self.pulls = min(PULLS, waiting) if waiting > 0 else PULLS


class Puller:
    """The pulls of one consumer. `refill` sends the first ones."""

    def __init__(
        self,
        runtime: Runtime,
        client: NatsClient,
        next_subject: bytes,
        inbox: bytes,
        budget_bytes: int,
        limits: PullLimits,
        failed: Callable[[str], object],
    ) -> None:
        """At most about `budget_bytes` are requested at a time, or one larger message."""
        self._runtime = runtime
        self._client = client
        self._next_subject = next_subject
        self._inbox = inbox
        self._failed = failed
        self._limits = limits
        self._budget = budget_bytes
        self._pull_bytes = max(1, min(PULL_BYTES_MAX, budget_bytes // PULLS))
        if limits.bytes > 0:
            self._pull_bytes = min(self._pull_bytes, limits.bytes)
        self._asked_messages = 0  # requested and not received
        self._asked_bytes = 0
        self._pulls = 0  # open
        self._one_at_a_time = False  # the next message is larger than the budget
        self._heartbeat_s = min(HEARTBEAT_S, limits.expires_ns / NANOSECONDS / 2)
        self._heard_at = runtime.monotonic()
        self._is_over = False
        self._is_held = False
        self._watch_timer: Timer = runtime.call_later(self._heartbeat_s * SILENCE_MAX, self._watch)

    @property
    def is_idle(self) -> bool:
        """Whether no pull is open."""
        return self._pulls == 0

    def stop(self) -> None:
        """Sends no more pulls, and does not call `failed`. Requested messages may still come."""
        self._is_over = True
        self._watch_timer.cancel()

    def hold(self) -> None:
        """Sends no pulls until `release`. After a while no pull is open (`is_idle`)."""
        self._is_held = True

    def release(self) -> None:
        self._is_held = False

    def refill(self, room: int) -> None:
        """Sends pulls until `room` bytes are requested."""
        while (
            not self._is_over
            and not self._is_held
            and self._pulls < self._limits.pulls
            and self._asked_bytes + self._pull_bytes <= max(room, self._room_min(room))
        ):
            if not self._pull():
                return

    def _room_min(self, room: int) -> int:
        """Makes room for a message that is larger than the budget, when nothing else is in memory."""
        return self._pull_bytes if room >= self._budget and self._pulls == 0 else 0

    def _pull(self) -> bool:
        limits = self._limits
        messages = 1 if self._one_at_a_time else limits.messages
        size = 0 if self._one_at_a_time else self._pull_bytes
        request = NextRequest(
            batch=messages,
            max_bytes=size,
            expires=limits.expires_ns,
            idle_heartbeat=int(self._heartbeat_s * NANOSECONDS),
        )
        try:
            self._client.publish(self._next_subject, msgspec.json.encode(request), reply=self._inbox)
        except NatsError as error:
            self._fail(str(error))
            return False
        if self._pulls == 0:
            self._heard_at = self._runtime.monotonic()
        self._pulls += 1
        self._asked_messages += messages
        self._asked_bytes += self._pull_bytes
        return True

    def received(self, messages: int, byte_count: int) -> None:
        """So many messages have come since the last call, with the bytes of subjects, reply subjects, headers and payloads."""
        self._heard_at = self._runtime.monotonic()
        self._asked_messages -= messages
        self._asked_bytes -= byte_count
        self._one_at_a_time = False
        # All pulls are used up. The server sends a status only when the next message does not fit into a pull, not when the
        # last one has filled it.
        if self._asked_messages <= 0 or self._asked_bytes <= 0:
            self._forget_pulls()

    def _forget_pulls(self) -> None:
        self._pulls = self._asked_messages = self._asked_bytes = 0

    def status(self, block: bytes) -> None:
        """Takes a status of a pull, which is a header block without a payload."""
        if self._is_over:
            return
        self._heard_at = self._runtime.monotonic()
        try:
            status = read_status(block)
        except MalformedHeaders:
            status = b""
        code = status[:3]
        if code == b"100":
            return
        if code == b"404" or code == b"408" or status.startswith(_TOO_LARGE):
            self._ended(block, status)
        elif status.startswith(_COMPLETED):
            self._completed(block)
        elif status.startswith(_TOO_MANY_PULLS):
            self._limits.pulls = max(1, self._pulls - 1)
            self._ended(block, status)
        elif code == b"503":
            self._fail("the consumer is not there")
        else:
            self._fail(status.decode(errors="replace") or "a malformed status")

    def _ended(self, block: bytes, status: bytes) -> None:
        """A pull has ended; the rest of it is not requested any more."""
        messages, byte_count = _count(block, b"Nats-Pending-Messages"), _count(block, b"Nats-Pending-Bytes")
        self._pulls = max(0, self._pulls - 1)
        if status.startswith(_TOO_LARGE) and byte_count >= self._pull_bytes:
            self._enlarge()
        self._asked_messages -= messages if messages else self._limits.messages
        self._asked_bytes = max(0, self._asked_bytes - byte_count)
        if self._pulls == 0 or self._asked_messages <= 0:
            self._forget_pulls()

    def _completed(self, block: bytes) -> None:
        """A pull has got all its messages, and not all its bytes. `received` may have counted them before."""
        if self._pulls:
            self._pulls -= 1
            self._asked_bytes = max(0, self._asked_bytes - _count(block, b"Nats-Pending-Bytes"))
            if self._pulls == 0:
                self._forget_pulls()

    def _enlarge(self) -> None:
        """The next message is larger than a pull."""
        most = min(self._budget, self._limits.bytes or self._budget)
        if self._pull_bytes < most:
            self._pull_bytes = min(2 * self._pull_bytes, most)
        else:
            self._one_at_a_time = True

    def _watch(self) -> None:
        if self._is_over:
            return
        silence = self._runtime.monotonic() - self._heard_at
        allowed = self._heartbeat_s * SILENCE_MAX
        if self._pulls and silence >= allowed:
            self._fail(f"no message and no heartbeat for {silence:.0f} s")
            return
        left = allowed - silence if self._pulls else allowed
        self._watch_timer = self._runtime.call_later(max(left, 0.1), self._watch)

    def _fail(self, why: str) -> None:
        if not self._is_over:
            self.stop()
            self._failed(why)


class PullConsumer:
    """One consumer that is pulled from: its inbox, its pulls, and the prefix of its reply subjects.

    Messages and statuses of pulls go to `take` directly. The reply subjects of all messages begin with `prefix`, and five numbers
    follow it. The first message sets the prefix: `take` asks `accepts` about whatever does not begin with it.
    """

    __slots__ = (
        "_consumer",
        "_stream",
        "_subscription",
        "_unexpected",
        "prefix",
        "puller",
    )

    def __init__(
        self,
        runtime: Runtime,
        client: NatsClient,
        api: JetStreamApi,
        stream: str,
        consumer: str,
        budget_bytes: int,
        limits: PullLimits,
        take: Sink,
        failed: Callable[[str], object],
    ) -> None:
        """`puller.refill` sends the first pulls. `failed(why)`: the consumer delivers no more messages."""
        self.prefix = _NO_PREFIX
        self._stream = stream
        self._consumer = consumer
        self._unexpected = RepeatedWarnings(runtime, log)
        inbox = client.new_inbox()
        self._subscription = client.subscribe(inbox.decode(), take)
        subject = api.next_subject(stream, consumer)
        self.puller = Puller(runtime, client, subject, inbox, budget_bytes, limits, failed)

    def accepts(self, reply: bytes, header_block: bytes) -> bool:
        """Whether something without the prefix is the consumer's first message. Takes it if it is a status."""
        if not reply:
            self.puller.status(header_block)
            return False
        delivery = parse_ack_subject(reply)
        if delivery is None or delivery.stream != self._stream or delivery.consumer != self._consumer:
            name = f"stream {self._stream}, consumer {self._consumer}"
            line = f"{name}: a message that is not the consumer's came: {reply[:200]!r}"
            self._unexpected.warn(name, "message", line)
            return False
        self.prefix = reply[: numbers_start(reply)]
        return True

    def stop(self) -> None:
        """Ends the subscription. No callback is called after that."""
        self.puller.stop()
        self._subscription.unsubscribe()


def _count(block: bytes, name: bytes) -> int:
    text = find_header(block, name)
    return int(text) if text is not None and 0 < len(text) <= 18 and text.isdigit() else 0
