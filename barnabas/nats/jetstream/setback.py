"""What a durable consumer does when something fails: nothing more is taken, then all that failed is delivered again.

The server delivers in the order in which messages are given back, and what is new after them. So fetching stops, what was
asked for comes and is put with what failed, what is open comes to its end, a while passes (longer each time that nothing
went well in between), and then everything is given back at once, in the stream's order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.nats.jetstream.carrier import BACKOFF_MAX_S, FIRST_BACKOFF_S, LOG_AGAIN_S
from barnabas.nats.jetstream.durable import SETTLES_S

if TYPE_CHECKING:
    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.client.errors import NatsError
    from barnabas.nats.jetstream.deliveries import Deliveries
    from barnabas.nats.jetstream.pull import Puller
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")


class Setback:
    """Of one durable. `why` is not empty while nothing may be taken."""

    def __init__(
        self,
        runtime: Runtime,
        client: NatsClient,
        deliveries: Deliveries,
        name: str,
        over: Callable[[int], object],
    ) -> None:
        """`over(count)`: so many have been given back, and it goes on."""
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
