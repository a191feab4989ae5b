"""A bound topic on this broker: starts and stops the carriers of its binding, and keeps what outlives them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.carrier import CarrierStats
from barnabas.nats.ingress.change_barrier import change_of
from barnabas.nats.ingress.gap_tracker import GapLog
from barnabas.nats.ingress.roles import roles_of

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.broker.partitions.partition import Partition
    from barnabas.controller.metadata.image import TopicImage
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import Carrier
    from barnabas.nats.carrier_factory import CarrierFactory
    from barnabas.nats.ingress.change_barrier import BindingChange
    from barnabas.nats.ingress.core_binding import CoreBinding

log = logging.getLogger("barnabas.nats")

SERVER_ANSWERS_WITHIN_S: Final = 1.0
# Configs that concern only the messages that a core binding receives.
_OF_INGEST: Final = (
    *("subjects", "excludes", "key", "partitioner", "acks", "dedup_window_ms", "buffer_bytes"),
    *("topic_template", "topic_max", "dead_letter_topic"),
)


class BoundTopic:
    """`core` carries the messages of a core binding while this broker leads a partition, or may have to at any time;
    `carriers` are the others, while it leads one."""

    def __init__(
        self,
        host: ExtensionHost,
        factory: CarrierFactory,
        topic: TopicImage,
        binding: Binding,
        refresh: Callable[[], object],
        on_known: Callable[[], object],
        *,
        missed: str = "",
        received_until_ms: int = 0,
        since_ms: int = 0,
    ) -> None:
        """`refresh` calls `update` again. `on_known` as in GapLog, whose `until_ms` begins with `received_until_ms`.
        `missed`: why messages may be missing that were published before this broker carries the binding out, "" for a
        new binding; `since_ms`: since when, 0 if that is unknown."""
        self.topic_id = topic.topic_id
        self.binding = binding
        self.core_stats = CarrierStats()  # of `core`, and of those before it
        self.gaps = GapLog(
            binding.topic, self.core_stats, host.runtime.time_ms, on_known, until_ms=received_until_ms
        )
        self.leading: Mapping[int, Partition] = {}
        self.core: CoreBinding | None = None
        self.carriers: list[Carrier] = []
        self._host = host
        self._factory = factory
        self._refresh = refresh
        self._missed = missed
        self._since_ms = since_ms
        self._partition_count = len(topic.partitions)
        self._asked: CoreBinding | None = None  # it has asked the server, before a pause, for `until_ms`
        self._is_answered = False

    def all(self) -> list[Carrier | CoreBinding]:
        return [*self.carriers, self.core] if self.core is not None else [*self.carriers]

    def update(self, topic: TopicImage, binding: Binding, *, is_settled: bool) -> None:
        """Carries the binding out as the metadata has it. `is_settled`: partitions that are new here have been opened."""
        roles = roles_of(self._host, topic, is_settled=is_settled)
        if self._waits_to_pause(binding, roles.leading):
            return
        change, partition_count = None, len(topic.partitions)
        is_newcomer = self.core is None and partition_count != self._partition_count
        if (self.binding, self._partition_count) != (binding, partition_count):
            change = change_of(self._host, topic, binding)
            self._change(binding, partition_count, change)
        self.leading = roles.leading
        if binding.paused and self.leading and self._missed and self.gaps.until_ms:
            self.gaps.begin(self.gaps.until_ms, "the binding is paused")
        if binding.paused or (roles.are_none and not self._ingests_without_partition(topic)):
            self.stop(why="no partition of it is led or followed here")
            return
        if self.core is not None:
            self.core.roles_changed(roles)
        else:
            self.core = self._factory.core(
                binding, partition_count, self.core_stats, self.gaps, self._missed, self._since_ms
            )
            if self.core is not None:
                self.core.start(roles, change if is_newcomer else None)
            self._missed, self._since_ms = "", 0
        self._update_others()

    def stop(self, cause: str = "", why: str = "") -> None:
        """`cause`: why messages are missed from now on; "" when other brokers receive them or the binding ends, and `why` is
        for the log."""
        if self.core is not None or self.carriers:
            log.info("topic %s: its binding to NATS stops here: %s", self.binding.topic, cause or why)
        if self.core is not None:
            self.core.stop(cause)
        self.core = None
        self._stop_others()

    def _update_others(self) -> None:
        if not self.leading:
            if self.carriers:
                log.info("topic %s: other brokers lead its partitions", self.binding.topic)
            self._stop_others()
        elif self.carriers:
            for carrier in self.carriers:
                carrier.roles_changed(self.leading)
        else:
            self.carriers = self._factory.others(self.binding)
            for carrier in self.carriers:
                carrier.start(self.leading)

    def _stop_others(self) -> None:
        for carrier in self.carriers:
            carrier.stop()
        self.carriers = []

    def _change(self, binding: Binding, partition_count: int, change: BindingChange | None) -> None:
        """Stops the carriers that can't go on with these configs; `update` makes new ones."""
        before, count = self.binding, self._partition_count
        self.binding, self._partition_count = binding, partition_count
        if self.core is None or binding.paused or not self.core.rebind(binding, partition_count, change):
            self.stop("the binding is paused" if binding.paused else "the binding was changed")
        elif count != partition_count or not _differ_in_ingest_only(before, binding):
            self._stop_others()

    def _ingests_without_partition(self, topic: TopicImage) -> bool:
        """Whether it receives messages though no partition of the topic is led or followed here."""
        if self.binding.topic_template is not None:
            return True
        node_id = self._host.node_id
        return bool(self.binding.queue_group) and any(
            node_id in state.replicas for state in topic.partitions.values()
        )

    def _waits_to_pause(self, binding: Binding, leading: Mapping[int, Partition]) -> bool:
        """Whether the binding goes on until the server has answered a last PING: the gap of the pause begins there. It does not
        wait when the partitions led here change meanwhile."""
        core = self.core
        if core is None or not binding.paused or self._is_answered or leading != self.leading:
            self._asked, self._is_answered = None, False
            return False
        if self._asked is None:
            self._asked = core

            def answered() -> None:
                timer.cancel()
                if self._asked is core is self.core:
                    self._is_answered = True
                    self._refresh()

            timer = self._host.runtime.call_later(SERVER_ANSWERS_WITHIN_S, answered)
            core.hear(answered)
        return True


def _differ_in_ingest_only(first: Binding, second: Binding) -> bool:
    return first == msgspec.structs.replace(second, **{name: getattr(first, name) for name in _OF_INGEST})
