"""Redelivery of a durable consumer's messages that could not be stored.

The server delivers in the order in which messages are given back, and new ones after them. So after a failure pulling
stops, messages that were asked for are received and put with those that failed, open ones are settled, a pause follows
(longer after each failure in a row), and then all of them are given back at once, in the stream's order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.nats.dead_letters import shown_subject
from barnabas.nats.jetstream.consumer import BACKOFF_MAX_S, FIRST_BACKOFF_S, LOG_AGAIN_S
from barnabas.nats.jetstream.deliveries import Delivered, Deliveries
from barnabas.nats.jetstream.durable import SETTLES_S

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
    """Of one durable consumer. `why` is not empty while no messages may be stored."""

    def __init__(
        self,
        runtime: Runtime,
        client: NatsClient,
        deliveries: Deliveries,
        name: str,
        over: Callable[[int], object],
    ) -> None:
        """`over(count)` is called when `count` messages have been given back and pulling may go on."""
        self.why = ""
        self._runtime = runtime
        self._client = client
        self._deliveries = deliveries
        self._name = name
        self._over = over
        self._puller: Puller | None = None
        self._in_row = 0
        self._log_again_at = 0.0
        self._timer: Timer | None = None

    def begin(self, why: str, puller: Puller | None) -> None:
        """Something has failed. Without a puller the next run begins with giving back."""
        self.why = why
        now = self._runtime.monotonic()
        if self._in_row == 0 and now >= self._log_again_at:
            self._log_again_at = now + LOG_AGAIN_S
            log.warning("%s: what comes of its stream waits: %s", self._name, why)
        longest = min(FIRST_BACKOFF_S * 2 ** min(self._in_row, 10), BACKOFF_MAX_S)
        self._in_row += 1
        if puller is not None:
            puller.hold()
            self._puller = puller
            self._timer = self._runtime.call_later(
                longest * self._runtime.random.uniform(0.5, 1), self._give_back
            )

    def went_well(self) -> None:
        """A record is committed: the next failure is a first one."""
        self._in_row = 0

    def cancel(self) -> None:
        """The run has ended."""
        self._puller = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Another run begins, which has given back what failed."""
        self.cancel()
        self.why = ""

    def _give_back(self) -> None:
        """Once the server owes nothing and nothing is open."""
        self._timer = None
        puller = self._puller
        if puller is None:
            return
        if not puller.is_idle or self._deliveries.open:
            self._timer = self._runtime.call_later(SETTLES_S, self._give_back)
            return
        count = self._deliveries.give_back()

        def flushed(error: NatsError | None) -> None:
            if error is None and self._puller is puller:
                self._timer = self._runtime.call_later(SETTLES_S, lambda: self._go_on(count))

        self._client.flush(flushed)

    def _go_on(self, count: int) -> None:
        self.end()
        self._over(count)


class DeliveryAttempts:
    """Counts how often each message of a durable consumer was refused, and decides what follows: `fail(delivered, why)` has it
    delivered again; after nats.max.deliver attempts it goes to the dead letters, or without a topic for those is given up, with
    a line in the log. With -1 there is no limit."""

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
        """It was refused once more."""
        self._attempts[sequence] = self._attempts.get(sequence, 0) + 1

    def is_last(self, sequence: int) -> bool:
        """Whether it was refused as often as nats.max.deliver allows."""
        return self._attempts.get(sequence, 0) >= self._binding.max_deliver > 0

    def forget(self, delivered: Iterable[Delivered]) -> None:
        """Their records are committed."""
        if self._attempts:
            for sequence, _ in delivered:
                self._attempts.pop(sequence, None)

    def refuse(self, letter: StreamMessage, delivered: Delivered) -> None:
        """A message can't be stored. Without a reason in it, it was refused in attempts before."""
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
            "topic %s: message %d of the stream %s was refused %d times and is given up: %s",
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
