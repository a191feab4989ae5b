"""Redelivery of a durable consumer's messages that could not be stored.

The server redelivers messages in the order in which they are returned, and new ones after them. So after a failure pulling
stops, messages that were pulled arrive and join the failed ones, open ones are settled, a pause follows (longer after each
failure in a row), and then all failed messages are returned at once, in the stream's order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.nats.dead_letters import shown_subject
from barnabas.nats.jetstream.deliveries import Delivered, Deliveries
from barnabas.nats.jetstream.durable import SETTLE_S
from barnabas.runtime.backoff import Backoff
from barnabas.runtime.repeated_warnings import RepeatedWarnings

if TYPE_CHECKING:
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.client.errors import NatsError
    from barnabas.nats.dead_letters import DeadLetterTopic, StreamMessage
    from barnabas.nats.jetstream.pull import Puller
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

_NO_REASON: Final = "its partition does not take it"


class Redelivery:
    """Redelivers the failed messages of one durable consumer. `why` is not empty while no message may be stored; `backoff`
    is reset when a record is committed."""

    def __init__(
        self,
        runtime: Runtime,
        client: NatsClient,
        deliveries: Deliveries,
        name: str,
        done: Callable[[int], object],
    ) -> None:
        """`done(count)` is called when `count` messages have been returned and pulling may continue."""
        self.why = ""
        self.backoff = Backoff(runtime)
        self._runtime = runtime
        self._client = client
        self._deliveries = deliveries
        self._name = name
        self._done = done
        self._puller: Puller | None = None
        self._warnings = RepeatedWarnings(runtime, log)
        self._timer: Timer | None = None

    def begin(self, why: str, puller: Puller | None) -> None:
        """Messages have failed. Without a puller the next run returns them when it begins."""
        self.why = why
        if self.backoff.failures == 0:
            line = f"{self._name}: messages of its stream wait for redelivery: {why}"
            self._warnings.warn(self._name, "redelivery", line)
        delay_s = self.backoff.next_s()
        if puller is not None:
            puller.hold()
            self._puller = puller
            self._timer = self._runtime.call_later(delay_s, self._return_failed)

    def hold(self, why: str) -> None:
        """Takes no message until `end`; the failed ones are kept."""
        self.cancel()
        self.why = why

    def cancel(self) -> None:
        """The run has ended."""
        self._puller = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """A new run begins, and has returned the failed messages."""
        self.cancel()
        self.why = ""

    def _return_failed(self) -> None:
        """Returns the failed messages once no pull and no delivery is open."""
        self._timer = None
        puller = self._puller
        if puller is None:
            return
        if not puller.is_idle or self._deliveries.open:
            self._timer = self._runtime.call_later(SETTLE_S, self._return_failed)
            return
        count = self._deliveries.return_failed()

        def flushed(error: NatsError | None) -> None:
            if error is None and self._puller is puller:
                self._timer = self._runtime.call_later(SETTLE_S, lambda: self._end_with(count))

        self._client.flush(flushed)

    def _end_with(self, count: int) -> None:
        self.end()
        self._done(count)


class DeliveryAttempts:
    """Counts the attempts to store each message of a durable consumer. Before nats.max.deliver attempts `fail(delivered, why)`
    has it redelivered; then it goes to the dead letters, or without a topic for them is dropped with a line in the log. With
    -1 there is no limit."""

    def __init__(
        self,
        binding: Binding,
        stats: CarrierStats,
        deliveries: Deliveries,
        dead_letters: DeadLetterTopic | None,
        fail: Callable[[list[Delivered], str], object],
    ) -> None:
        self._binding = binding
        self._stats = stats
        self._deliveries = deliveries
        self._dead_letters = dead_letters
        self._fail = fail
        self._attempts: dict[int, int] = {}  # by sequence

    def count(self, sequence: int) -> None:
        """A message was refused once more."""
        self._attempts[sequence] = self._attempts.get(sequence, 0) + 1

    def is_last(self, sequence: int) -> bool:
        """Whether a message was refused as often as nats.max.deliver allows."""
        return self._attempts.get(sequence, 0) >= self._binding.max_deliver > 0

    def forget(self, delivered: Iterable[Delivered]) -> None:
        """Forgets messages whose records are committed."""
        if self._attempts:
            for sequence, _ in delivered:
                self._attempts.pop(sequence, None)

    def refuse(self, letter: StreamMessage, delivered: Delivered) -> None:
        """A message can't be stored. `letter.why` is empty when it was refused in earlier attempts only."""
        sequence = letter.sequence
        if letter.why:
            self.count(sequence)
        if not self.is_last(sequence):
            what = f"message {sequence} of the stream, {len(letter.payload)} bytes on {shown_subject(letter.subject)}"
            self._fail([delivered], f"{what}, can't be taken: {letter.why}")
            return
        letter.why = letter.why or _NO_REASON
        if self._dead_letters is not None:
            self._dead_letters.send(
                letter.dead_letter(self._binding.topic), partial(self._letter_sent, delivered)
            )
            return
        log.error(
            "topic %s: message %d of the stream %s was refused %d times and is dropped: %s",
            self._binding.topic,
            sequence,
            letter.stream,
            self._attempts.pop(sequence),
            letter.why,
        )
        self._stats.refused += 1
        self._deliveries.fail((delivered,))
        self._deliveries.terminate(sequence)

    def _letter_sent(self, delivered: Delivered, problem: str) -> None:
        if problem:
            self._fail([delivered], f"message {delivered[0]} of the stream can't be taken, and {problem}")
            return
        self._stats.dead_letters += 1
        self._attempts.pop(delivered[0], None)
        self._deliveries.settled((delivered,))
