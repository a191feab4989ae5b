"""A core binding: subscriptions on subjects, whose messages become records of the partitions led here.

What core NATS does not deliver is gone, so every time in which that may have happened is noted: from the end of a
connection to the subscriptions of the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.broker.nats.carrier import CarrierStats, Gap
from barnabas.broker.nats.client import ClientListener
from barnabas.broker.nats.ingest import Ingest
from barnabas.controller.nats.subjects import compile_subscriptions

if TYPE_CHECKING:
    from barnabas.broker.nats.client import Subscription
    from barnabas.broker.nats.connections import Intake
    from barnabas.broker.nats.errors import Cause
    from barnabas.broker.nats.protocol import ServerInfo
    from barnabas.broker.partition import Partition
    from barnabas.controller.nats.bound import Binding
    from barnabas.storage.runtime import Runtime

log = logging.getLogger("barnabas.nats")

_NOTHING: Final[Mapping[int, Partition]] = {}


class CoreBinding(ClientListener):
    """A Carrier."""

    def __init__(
        self, runtime: Runtime, intake: Intake, binding: Binding, partition_count: int, cluster_id: str
    ) -> None:
        self.binding = binding
        self.stats = CarrierStats()
        self.ingest = Ingest(
            runtime, binding, partition_count, self.stats, cluster_id, intake.client.publish_encoded
        )
        self.ingest.on_full = self._full
        self._runtime = runtime
        self._intake = intake
        self._subscriptions: list[Subscription] = []
        self._is_paused = False

    @property
    def state(self) -> str:
        client = self._intake.client
        if self._is_paused:
            return "paused: the log takes nothing, and more waits than nats.buffer.bytes"
        refused = [each.refused for each in self._subscriptions if each.refused]
        if refused:
            return f"blocked: the server refuses the subscription: {refused[0]}"
        if client.is_connected:
            return "running"
        return f"connecting: {client.last_cause}" if client.last_cause else "connecting"

    def start(self, leading: Mapping[int, Partition], following: Mapping[int, Partition] = _NOTHING) -> None:
        """As `roles_changed`; from here on it listens."""
        binding, intake = self.binding, self._intake
        intake.closers.append(self.ingest.close)
        intake.client.listeners.append(self)
        for pattern, wanted in compile_subscriptions(binding.patterns, binding.unwanted):
            encoder = self.ingest.encoder(wanted)
            self._subscriptions.append(
                intake.client.subscribe(pattern, encoder.take, queue=binding.queue_group)
            )
        self.ingest.serve(leading, following)
        intake.subscriptions_changed()
        log.info(
            "topic %s takes %s for its partitions %s",
            binding.topic,
            ", ".join(binding.patterns),
            ", ".join(map(str, sorted(leading))),
        )

    def roles_changed(
        self, leading: Mapping[int, Partition], following: Mapping[int, Partition] = _NOTHING
    ) -> None:
        """`following`: the partitions that this broker is in sync with, and may have to lead at any time."""
        self.ingest.serve(leading, following)

    def stop(self) -> None:
        for subscription in self._subscriptions:
            subscription.unsubscribe()
        self.ingest.end()
        self._intake.closers.remove(self.ingest.close)
        self._intake.client.listeners.remove(self)
        self._intake.let_go(self)

    def _full(self, is_full: bool) -> None:
        self._is_paused = is_full
        if is_full:
            log.warning(
                "topic %s: more than nats.buffer.bytes=%d wait for the log; nothing is read from NATS until they are less, "
                "and the server cuts slow readers off after 10 s or 64 MiB",
                self.binding.topic,
                self.binding.buffer_bytes,
            )
            self._intake.hold(self)
        else:
            self._intake.let_go(self)

    # -- the connection

    def connected(self, _info: ServerInfo) -> None:
        self.ingest.subscribed_anew()
        if self.stats.gaps and not self.stats.gaps[-1].end_ms:
            gap = self.stats.gaps[-1]
            gap.end_ms = self._runtime.time_ms()
            self.stats.reconnects += 1
            log.warning(
                "topic %s: messages published within %d ms up to now (%d to %d) may be missing: %s",
                self.binding.topic,
                gap.end_ms - gap.begin_ms,
                gap.begin_ms,
                gap.end_ms,
                gap.cause,
            )

    def disconnected(self, cause: Cause) -> None:
        self.stats.gaps.append(Gap(self._runtime.time_ms(), 0, str(cause)))
