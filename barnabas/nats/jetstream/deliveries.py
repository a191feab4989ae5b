"""What a durable consumer has delivered, from its arrival to its acknowledgement.

A delivery is open until its record is committed; then it is acknowledged. While it is open for long the server is told
that it is in progress. What failed is kept until it is given back (`give_back`): all at once and in the stream's order,
after everything that was asked for has come, because the server delivers in the order in which it was given back.

Acknowledgements may get lost with a connection, or with a server that is killed. So those that the server may not have had
are sent again on the next connection, and a message that comes again though its record is there is only acknowledged.
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

REMEMBERED: Final = 50_000  # settled messages, twice: they may come again
CONFIRM_EVERY_S: Final = 0.5

_LAST: Final = b" %d\r\n%b\r\n" % (len(ACK), ACK)
_NEXT: Final = _LAST + b"PUB "

Delivered = tuple[int, bytes]  # sequence in the stream, reply subject


class Deliveries:
    """Those of one durable consumer. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, client: NatsClient) -> None:
        self.open: dict[
            int, tuple[bytes, float]
        ] = {}  # by sequence: where to acknowledge, since when it is here
        self.failed: dict[int, bytes] = {}
        self._runtime = runtime
        self._client = client
        self._settled: set[int] = set()
        self._settled_before: set[int] = set()
        self._unsent: list[bytes] = []
        self._unconfirmed: list[bytes] = []  # sent, but the server may not have read them
        self._timer: Timer | None = None
        self._is_stopped = False

    def came(self, sequence: int, reply: bytes) -> bool:
        """A message is here. False when it was here before and need not be taken again."""
        if sequence in self.open:
            self.open[sequence] = reply, self._runtime.monotonic()
            return False
        if sequence in self._settled or sequence in self._settled_before:
            self._acknowledge((reply,))
            return False
        self.open[sequence] = reply, self._runtime.monotonic()
        return True

    def settled(self, delivered: Iterable[Delivered]) -> None:
        """Their records are committed, or they need none."""
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
        """No records have come of them: they are to be given back."""
        for sequence, reply in delivered:
            found = self.open.pop(sequence, None)
            if found is not None or sequence not in self._settled:
                self.failed[sequence] = reply if found is None else found[0]

    def terminate(self, sequence: int) -> None:
        """The server is not to deliver it again, whatever became of it."""
        reply = self.failed.pop(sequence, b"")
        if reply:
            self._publish(reply, TERM)

    def give_back(self) -> int:
        """Have what failed delivered again, in the stream's order; how many."""
        failed, self.failed = self.failed, {}
        for sequence in sorted(failed):
            self._publish(failed[sequence], NAK)
        return len(failed)

    def hand_back(self) -> None:
        """Returns all deliveries without a committed record, so that the stream delivers them to another consumer."""
        self.failed.update((sequence, reply) for sequence, (reply, _) in self.open.items())
        self.open.clear()
        self.give_back()

    def say_in_progress(self, after_s: float) -> None:
        """Of what has been here for so long without an end."""
        now = self._runtime.monotonic()
        for reply, since in self.open.values():
            if now - since < after_s:
                break  # they came in this order
            self._publish(reply, IN_PROGRESS)
        for reply in self.failed.values():
            self._publish(reply, IN_PROGRESS)

    def connected(self) -> None:
        """There is another connection."""
        again, self._unconfirmed, self._unsent = self._unconfirmed + self._unsent, [], []
        self._acknowledge(again)

    def forget(self) -> None:
        """It is another stream now, whose numbers are those of other messages."""
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
        # One piece of protocol for all of them: PUB <reply> 4, +ACK, and so on.
        data = b"PUB " + _NEXT.join(replies) + _LAST
        try:
            self._client.publish_encoded(data, len(replies))
            self._unconfirmed += replies
        except NatsError:
            self._unsent += replies
        if self._timer is None and not self._is_stopped:
            self._timer = self._runtime.call_later(CONFIRM_EVERY_S, self._confirm)

    def _confirm(self) -> None:
        """Ask the server for a sign that it has read all of this."""
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
            log.debug("a word to the server is lost: %s", error)
