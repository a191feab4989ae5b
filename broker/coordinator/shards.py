"""The shards of a coordinator: one state machine for each partition of its topic that this broker leads.

A shard is loaded when this broker becomes the leader of its partition, and unloaded when it no longer is, by leader epoch. One
whose partition this broker leads again in the next epoch stays: no other broker can have led it in between. After a gap in
the epochs another may have, and the shard is loaded again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from barnabas.broker.coordinator.topic import partition_for
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.controller.metadata.image import PartitionState, TopicImage

log = logging.getLogger("barnabas.coordinator")


class CoordinatorShard(Protocol):
    """The state machine of one partition."""

    def load(self, done: Callable[[Exception | None], object]) -> None:
        """Rebuild the state from the partition, then `done(None)`, or `done(error)` when that fails; perhaps before this
        returns."""
        ...

    def unload(self) -> None:
        """The partition is not led here any more: answer all waiting requests NOT_COORDINATOR, and append nothing more."""
        ...

    def summary(self) -> str:
        """What the shard holds, for the log; empty if there is nothing."""
        ...


S = TypeVar("S", bound=CoordinatorShard)


class LedPartition(msgspec.Struct, Generic[S], eq=False):
    """A partition that this broker leads, with its shard."""

    shard: S
    topic_id: bytes
    leader_epoch: int
    loading_since: float  # on the monotonic clock
    is_loaded: bool = False

    @property
    def is_loading(self) -> bool:
        """Whether its keys are answered COORDINATOR_LOAD_IN_PROGRESS."""
        return not self.is_loaded


class LoadTimes:
    """How long partitions have taken to load, since the start."""

    __slots__ = ("count", "longest_s", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = self.longest_s = 0.0

    def add(self, duration_s: float) -> None:
        self.count += 1
        self.total_s += duration_s
        self.longest_s = max(self.longest_s, duration_s)


class Shards(Generic[S]):
    """See the module. All calls on the loop's thread."""

    def __init__(
        self, topic: str, node_id: int, make: Callable[[int], S], monotonic: Callable[[], float]
    ) -> None:
        """`make(partition_index)` makes an empty shard."""
        self.topic = topic
        self._node_id = node_id
        self._make = make
        self._monotonic = monotonic
        self.load_times = LoadTimes()
        self.led: dict[int, LedPartition[S]] = {}
        self._failed: dict[int, tuple[bytes, int]] = {}  # that could not be loaded: topic id, leader epoch
        self._partition_count = 0
        self.fixed_count = 0  # the only number of partitions that the topic may have, 0 for any

    def of(self, key: str) -> S | ErrorCode:
        """The shard that holds the key, or the error to answer: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""
        if not self._partition_count:
            return ErrorCode.NOT_COORDINATOR
        led = self.led.get(partition_for(key, self._partition_count))
        if led is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if led.is_loading else led.shard

    def loaded(self) -> list[S]:
        return [led.shard for led in self.led.values() if not led.is_loading]

    @property
    def is_loading(self) -> bool:
        """Whether any shard is being loaded."""
        return any(led.is_loading for led in self.led.values())

    def metadata_changed(self, topic: TopicImage | None) -> None:
        """Load and unload shards as the topic's partitions have moved. The partitions themselves are open by now."""
        partitions = {} if topic is None else topic.partitions
        topic_id = b"" if topic is None else topic.topic_id
        self._partition_count = self.fixed_count or len(partitions)
        for index in tuple(self.led):
            self._keep_or_unload(index, topic_id, partitions.get(index))
        for index, state in partitions.items():
            epoch = topic_id, state.leader_epoch
            if state.leader == self._node_id and index not in self.led and self._failed.get(index) != epoch:
                led = self.led[index] = LedPartition(
                    self._make(index), topic_id, state.leader_epoch, self._monotonic()
                )
                if len(partitions) == self._partition_count:
                    led.shard.load(partial(self._loaded, index, led))
                else:  # as in Kafka its keys are answered COORDINATOR_LOAD_IN_PROGRESS, until a restart
                    log.error(
                        "%s-%d is not loaded: the topic has %d partitions instead of %d, and keys would belong to others",
                        self.topic,
                        index,
                        len(partitions),
                        self._partition_count,
                    )

    def stop(self) -> None:
        """Unload all."""
        for index in tuple(self.led):
            self.led.pop(index).shard.unload()

    def _keep_or_unload(self, index: int, topic_id: bytes, state: PartitionState | None) -> None:
        led = self.led[index]
        if state is None or state.leader != self._node_id or led.topic_id != topic_id:
            log.info("%s-%d is no longer led here", self.topic, index)
        elif state.leader_epoch - led.leader_epoch in (0, 1):
            led.leader_epoch = state.leader_epoch
            return
        del self.led[index]
        led.shard.unload()

    def _loaded(self, index: int, led: LedPartition[S], error: Exception | None) -> None:
        if error is None:
            led.is_loaded = True
            self.load_times.add(self._monotonic() - led.loading_since)
            summary = led.shard.summary()
            if summary:
                log.info("%s-%d, leader epoch %d, has %s", self.topic, index, led.leader_epoch, summary)
            return
        # As in Kafka its keys get NOT_COORDINATOR: half of a state must not be served.
        if isinstance(error, StorageError) and error.error == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            log.info("%s-%d is no longer led here: %s", self.topic, index, error)
        else:
            log.error("%s-%d can't be loaded: %s", self.topic, index, error)
            self._failed[index] = led.topic_id, led.leader_epoch
        del self.led[index]
        led.shard.unload()
