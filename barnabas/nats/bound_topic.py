"""A bound topic on this broker: the carriers of its binding, and the state that outlives them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import Carrier, CarrierStats
    from barnabas.nats.ingress.barrier import BindingChange
    from barnabas.nats.ingress.core_binding import CoreBinding
    from barnabas.nats.ingress.gap_tracker import GapLog
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.nats")

HEARS_WITHIN_S: Final = 1.0
AWAKE: Final = "awake"
ASKING: Final = "asking"
HEARD: Final = "heard"
# What of a core binding concerns the messages that come in alone.
_OF_TAKING: Final = (
    *("subjects", "excludes", "key", "partitioner", "acks", "dedup_window_ms", "buffer_bytes"),
    *("topic_template", "topic_max", "dead_letter_topic"),
)


class BoundTopic:
    """A topic with a binding. `missed`: why messages may be missing that were published before it is carried out, ""
    when it is new; `since_ms`: since when, if that is known."""

    def __init__(self, topic_id: bytes, binding: Binding, gaps: GapLog, stats: CarrierStats) -> None:
        self.topic_id = topic_id
        self.gaps = gaps
        self.core_stats = stats  # of `core`, and of those before it
        self.missed = ""
        self.since_ms = 0
        self.binding = binding
        self.partition_count = -1
        self.leading: Mapping[int, Partition] = {}
        self.core: CoreBinding | None = (
            None  # while this broker leads a partition, or may have to at any time
        )
        self.carriers: list[Carrier] = []  # the others, while it leads one
        self.size_warning = ""  # as it was logged last, and what it followed from
        self.sizes_seen: tuple[Binding, object, int] | None = None
        self._rest = AWAKE  # ASKING the server what has come before a pause, or HEARD

    def all(self) -> list[Carrier]:
        return [*self.carriers, self.core] if self.core is not None else self.carriers

    def change(self, binding: Binding, partition_count: int, change: BindingChange | None) -> None:
        """What goes on as it is goes on; what can't stops, to be made anew."""
        before, count = self.binding, self.partition_count
        self.binding, self.partition_count = binding, partition_count
        if self.core is None or binding.paused or not self.core.rebind(binding, partition_count, change):
            self.stop("the binding is paused" if binding.paused else "the binding was changed")
        elif count != partition_count or not _publish_alike(before, binding):
            for carrier in self.carriers:
                carrier.stop()
            self.carriers = []

    def stop(self, cause: str = "", why: str = "") -> None:
        """`cause`: why messages are missed from now on; "" when other brokers take them or the binding ends, then `why` is
        for the log."""
        if self.core is not None or self.carriers:
            log.info("topic %s: its binding to NATS stops here: %s", self.binding.topic, cause or why)
        if self.core is not None:
            self.core.stop(cause)
        for carrier in self.carriers:
            carrier.stop()
        self.core = None
        self.carriers = []

    def waits_to_rest(
        self,
        binding: Binding,
        leading: Mapping[int, Partition],
        runtime: Runtime,
        again: Callable[[], object],
    ) -> bool:
        """Before a pause the server is asked once more until when all has come: the gap begins there. `again` is called when
        it has answered. There is no waiting when partitions come or go meanwhile."""
        core = self.core
        if core is None or not binding.paused or self._rest == HEARD or leading != self.leading:
            self._rest = AWAKE
            return False
        if self._rest == AWAKE:
            self._rest = ASKING

            def heard() -> None:
                timer.cancel()
                if self._rest == ASKING and self.core is core:
                    self._rest = HEARD
                    again()

            timer = runtime.call_later(HEARS_WITHIN_S, heard)
            core.hear(heard)
        return True


def _publish_alike(first: Binding, second: Binding) -> bool:
    """Whether core bindings do the same but for what they take."""
    return first == msgspec.structs.replace(second, **{name: getattr(first, name) for name in _OF_TAKING})
