"""All partitions of a topic, as a member of a queue group serves them: each message is given to one member, so whoever is
given it sees that it reaches the log, wherever that is (groups/lane.py).

Partitions that have their only replica here are not among them: what is in their log stays there, so the member appends to
it as if it were alone. A partition that becomes one of those, or ceases to be one, changes over; what is under way for it
arrives all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.nats.cluster.foreign import ForeignProducer
from barnabas.nats.groups.lane import NOBODY, GroupLane
from barnabas.nats.ingest.acks import AckSender, AckStats

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.cluster.foreign import Placed
    from barnabas.nats.ingest.acks import Send
    from barnabas.nats.ingest.lane import OnRefused

_SIZE_MAX: Final = 1_048_588  # max.message.bytes, unless a log here knows it


class GroupLanes:
    """Of one binding. All calls on the loop's thread."""

    def __init__(
        self,
        services: Services,
        topic: str,
        send_acks: Send,
        stats: CarrierStats,
        on_refused: OnRefused,
        on_held: Callable[[], object],
    ) -> None:
        """`on_refused` is called for a record that a log will never take, `on_held` when `held_bytes` has changed."""
        self.ack_stats = AckStats()
        self.lanes: dict[int, GroupLane] = {}  # those that have been served before among them
        self.served: list[int] = []
        self._on_held = on_held
        self._on_refused = on_refused
        self._services = services
        self._topic = topic
        self._send_acks = send_acks
        self._stats = stats
        self.producer = ForeignProducer(services)

    @property
    def held_bytes(self) -> int:
        """What is gathered or under way."""
        return sum(lane.held_bytes for lane in self.lanes.values())

    @property
    def waiting(self) -> int:
        """How many messages are not known to be stored."""
        return sum(lane.waiting for lane in self.lanes.values())

    def serve(self, indices: Iterable[int]) -> None:
        """These partitions, and no others; perhaps their leaders have changed."""
        self.served = sorted(indices)
        for index in self.served:
            if index not in self.lanes:
                self.lanes[index] = self._open(index)
        for lane in tuple(self.lanes.values()):
            lane.leader_changed()

    def send(self) -> None:
        """What was gathered."""
        is_more = False
        for lane in self.lanes.values():
            if lane.builder.tails:
                lane.send()
                is_more = True
        if is_more:
            self._on_held()

    def close(self) -> None:
        """For good: what has not arrived is lost."""
        self.served = []
        for lane in self.lanes.values():
            lane.close()
        self.producer.close()

    def _open(self, index: int) -> GroupLane:
        runtime = self._services.runtime
        return GroupLane(
            f"{self._topic}-{index}",
            runtime,
            self._stats,
            AckSender(self._topic, index, self._send_acks, self.ack_stats, runtime.monotonic),
            partial(self._produce, index),
            partial(self._leader, index),
            self._services.producer_ids.next,
            self._size_max,
            self._on_refused,
            self._on_held,
        )

    def _produce(self, index: int, records: bytearray, done: Placed) -> None:
        self.producer.send(self._topic, index, memoryview(records), done)

    def _leader(self, index: int) -> int:
        topic = self._services.controller.image.topics.get(self._topic)
        state = topic.partitions.get(index) if topic is not None else None
        return state.leader if state is not None else NOBODY

    def _size_max(self) -> int:
        """How large a batch may be: all partitions of a topic have the same configs, and some are here."""
        for partition in self._services.partitions.of_topic(self._topic).values():
            config = partition.log.config
            return min(config.max_message_bytes, config.segment_bytes)
        return _SIZE_MAX
