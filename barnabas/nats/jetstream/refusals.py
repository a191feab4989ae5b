"""Messages that their partition will never take, of a durable consumer: how often each was tried, and what then.

After nats.max.deliver tries a message goes to the dead letters; without a topic for those it is given up, with a line in
the log. With -1 it is tried for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from barnabas.nats.dead_letters import shown_subject
from barnabas.nats.jetstream.deliveries import Delivered, Deliveries

if TYPE_CHECKING:
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.dead_letters import DeadLetterTopic, StreamMessage

log = logging.getLogger("barnabas.nats")

_NO_REASON = "its partition does not take it"


class Refusals:
    """Of one durable. `fail(delivered, why)`: they are to be delivered again."""

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
        self._tries: dict[int, int] = {}  # by sequence

    def count(self, sequence: int) -> None:
        """It was refused."""
        self._tries[sequence] = self._tries.get(sequence, 0) + 1

    def is_enough(self, sequence: int) -> bool:
        """Whether it has been tried as often as it may be."""
        return self._tries.get(sequence, 0) >= self._binding.max_deliver > 0

    def forget(self, delivered: Iterable[Delivered]) -> None:
        """They have been taken."""
        if self._tries:
            for sequence, _ in delivered:
                self._tries.pop(sequence, None)

    def refuse(self, letter: StreamMessage, delivered: Delivered) -> None:
        """A message that can't be taken: again later, or never. Without a reason it has been tried before."""
        sequence = letter.sequence
        if letter.why:
            self.count(sequence)
        if not self.is_enough(sequence):
            what = f"message {sequence} of the stream, {len(letter.payload)} bytes on {shown_subject(letter.subject)}"
            self._fail([delivered], f"{what}, can't be taken: {letter.why}")
            return
        letter.why = letter.why or _NO_REASON
        if self._dead_letters is not None:
            self._dead_letters.send(
                letter.dead_letter(self._binding.topic), partial(self._is_buried, delivered)
            )
            return
        log.error(
            "topic %s: message %d of the stream %s was refused %d times and is given up: %s",
            self._binding.topic,
            sequence,
            letter.stream,
            self._tries.pop(sequence),
            letter.why,
        )
        self._stats.refused += 1
        self._deliveries.fail((delivered,))
        self._deliveries.terminate(sequence)

    def _is_buried(self, delivered: Delivered, problem: str) -> None:
        if problem:
            self._fail([delivered], f"message {delivered[0]} of the stream can't be taken, and {problem}")
            return
        self._stats.dead_letters += 1
        self._tries.pop(delivered[0], None)
        self._deliveries.settled((delivered,))
