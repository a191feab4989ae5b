"""The deliveries of a durable consumer, from arrival to acknowledgement.

A delivery is open until its record is committed; then it is acknowledged. Deliveries that are open for long are reported to
be in progress. Failed ones are kept until `return_failed` returns them (NAK), all at once and in the stream's order, because
the server redelivers in the order of the returns.

Acknowledgements may be lost with a connection or a killed server. So those that the server may not have read are sent again on
the next connection, and a message that is redelivered though its record is committed is only acknowledged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.nats.client.errors import NatsError
from barnabas.nats.jetstream.ack_subject import ACK, IN_PROGRESS, NAK, TERM

if TYPE_CHECKING:
    from barnabas.nats.client.client import NatsClient
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

REMEMBERED: Final = 50_000  # settled messages in each of two sets: they may be redelivered
CONFIRM_EVERY_S: Final = 0.5

_LAST: Final = b" %d\r\n%b\r\n" % (len(ACK), ACK)
_NEXT: Final = _LAST + b"PUB "

Delivered = tuple[int, bytes]  # sequence in the stream, reply subject


class Deliveries:
    """Tracks the deliveries of one durable consumer. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, client: NatsClient) -> None:
        self.open: dict[int, tuple[bytes, float]] = {}  # by sequence: reply subject, time of arrival
        self.failed: dict[int, bytes] = {}
        self._runtime = runtime
        self._client = client
        self._settled: set[int] = set()
        self._settled_before: set[int] = set()
        self._unsent: list[bytes] = []
        self._unconfirmed: list[bytes] = []  # sent, but the server may not have read them
        self._timer: Timer | None = None
        self._is_stopped = False

    def received(self, sequence: int, reply: bytes) -> bool:
        """A message has arrived. False when it arrived before and need not be taken again."""
        if sequence in self.open:
            self.open[sequence] = reply, self._runtime.monotonic()
            return False
        if sequence in self._settled or sequence in self._settled_before:
            self._acknowledge((reply,))
            return False
        self.open[sequence] = reply, self._runtime.monotonic()
        return True

    def settled(self, delivered: Iterable[Delivered]) -> None:
        """Acknowledges messages whose records are committed, or that become no record."""
        replies = []
        for sequence, _ in delivered:
            found = self.open.pop(sequence, None)
            if found is not None:
                replies.append(found[0])
                self._settled.add(sequence)
        if len(self._settled) > REMEMBERED:
            self._settled_before, self._settled = self._settled, set()
        self._acknowledge(replies)

    def fail(self, delivered: Iterable[Delivered]) -> None:
        """Keeps messages that could not be stored, for `return_failed`."""
        for sequence, reply in delivered:
            found = self.open.pop(sequence, None)
            if found is not None or sequence not in self._settled:
                self.failed[sequence] = reply if found is None else found[0]

    def terminate(self, sequence: int) -> None:
        """Tells the server not to redeliver a failed message."""
        reply = self.failed.pop(sequence, b"")
        if reply:
            self._publish(reply, TERM)

    def return_failed(self) -> int:
        """Returns the failed messages for redelivery, in the stream's order, and returns their number."""
        failed, self.failed = self.failed, {}
        for sequence in sorted(failed):
            self._publish(failed[sequence], NAK)
        return len(failed)

    def return_all(self) -> None:
        """Returns all messages without a committed record, so that the server delivers them to another owner."""
        self.failed.update((sequence, reply) for sequence, (reply, _) in self.open.items())
        self.open.clear()
        self.return_failed()

    def report_in_progress(self, after_s: float) -> None:
        """Extends the ack wait of the messages that arrived `after_s` ago or earlier, and of failed ones."""
        now = self._runtime.monotonic()
        for reply, since in self.open.values():
            if now - since < after_s:
                break  # they are in the order of arrival
            self._publish(reply, IN_PROGRESS)
        for reply in self.failed.values():
            self._publish(reply, IN_PROGRESS)

    def connected(self) -> None:
        """Sends acknowledgements again on a new connection."""
        again, self._unconfirmed, self._unsent = self._unconfirmed + self._unsent, [], []
        self._acknowledge(again)

    def forget(self) -> None:
        """The stream was recreated: its sequences are of other messages."""
        self.open.clear()
        self.failed.clear()
        self._settled.clear()
        self._settled_before.clear()
        self._unsent.clear()
        self._unconfirmed.clear()

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- acknowledgements

    def _acknowledge(self, replies: Sequence[bytes]) -> None:
        if not replies:
            return
        # One piece of protocol for all: PUB <reply> 4, +ACK, and so on.
        data = b"PUB " + _NEXT.join(replies) + _LAST
        try:
            self._client.publish_encoded(data, len(replies))
            self._unconfirmed += replies
        except NatsError:
            self._unsent += replies
        if self._timer is None and not self._is_stopped:
            self._timer = self._runtime.call_later(CONFIRM_EVERY_S, self._confirm)

    def _confirm(self) -> None:
        """Flushes, to learn that the server has read the acknowledgements."""
        self._timer = None
        if not self._client.is_connected:
            return
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._acknowledge(unsent)
        count = len(self._unconfirmed)

        def answered(error: NatsError | None) -> None:
            if error is None:
                del self._unconfirmed[:count]
            if self._timer is None and not self._is_stopped and (self._unconfirmed or self._unsent):
                self._timer = self._runtime.call_later(CONFIRM_EVERY_S, self._confirm)

        if count:
            self._client.flush(answered)

    def _publish(self, reply: bytes, word: bytes) -> None:
        try:
            self._client.publish(reply, word)
        except NatsError as error:
            log.debug("a message to the server is lost: %s", error)
