"""The group coordinator: finds the shard of a group, and keeps the shards in step with the partitions of
__consumer_offsets that this broker leads.

A group belongs to partition abs(hash(group id)) % partitions, with Java's string hash, so that every Kafka
client, tool and broker agrees. Everything here runs on the loop's thread; replies go out through one outbox
after the state has settled, so that a reply that brings the next request finds a consistent group.

A partition is loaded when this broker becomes its leader and let go when it is not any more, by leader epoch.
While it is loaded its groups answer COORDINATOR_LOAD_IN_PROGRESS. One that is led on in the next epoch stays: no other
broker can have led it in between. After a gap in the epochs another may have, and it is loaded anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from barnabas.broker.groups.member import GroupUsage
from barnabas.broker.groups.offsets import DeletedTopic
from barnabas.broker.groups.settings import GroupSettings
from barnabas.controller.operations.internal_topics import GROUP_METADATA_TOPIC, group_metadata_topic
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.groups.shard import CoordinatorLog, Shard
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.image import MetadataImage, PartitionState, TopicImage
    from barnabas.controller.operations.topics import NewTopic
    from barnabas.runtime.interface import Runtime, Timer
    from barnabas.storage.wall_clock import WallClock

    CreateTopic = Callable[[NewTopic, Callable[[ErrorCode], object]], object]

log = logging.getLogger(__name__)

R = TypeVar("R")


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: int32, over UTF-16 code units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for(group_id: str, partition_count: int) -> int:
    """The partition of __consumer_offsets that holds the group."""
    value = java_string_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count


class _Led(msgspec.Struct, eq=False):
    """A partition that this broker leads."""

    shard: Shard
    topic_id: bytes
    leader_epoch: int
    loading: bool = True
    deleted: list[DeletedTopic] = []  # while it was loaded


class OffsetsTopic:
    """__consumer_offsets as the metadata has it, and its creation on first use."""

    def __init__(
        self,
        controller: Controller,
        config: BrokerConfig,
        create_topic: Callable[[NewTopic, Callable[[ErrorCode], object]], object],
    ) -> None:
        self._controller = controller
        self._config = config
        self._create_topic = create_topic

    def image(self) -> TopicImage | None:
        """None when it does not exist."""
        return self._controller.image.topics.get(GROUP_METADATA_TOPIC)

    def partition_count(self) -> int:
        """0 when the topic does not exist."""
        topic = self.image()
        return 0 if topic is None else len(topic.partitions)

    def leader(self, partition_index: int) -> int:
        """Node id of the partition's leader, -1 when there is none."""
        topic = self.image()
        state = None if topic is None else topic.partitions.get(partition_index)
        return -1 if state is None else state.leader

    def create(self, done: Callable[[ErrorCode], object]) -> None:
        """Have it created by the offsets.topic.* settings; NONE also when it exists by now. `done` may be called
        before this returns."""
        self._create_topic(group_metadata_topic(self._config), done)


class GroupCoordinator:
    """All groups whose partitions this broker leads."""

    def __init__(
        self,
        coordinator_log: CoordinatorLog,
        config: BrokerConfig,
        runtime: Runtime,
        controller: Controller,
        wall_clock: WallClock,
        create_topic: CreateTopic,
    ) -> None:
        """`create_topic(topic, done)` has the controller create a topic, and calls `done(error)` once this broker
        knows it."""
        self._log = coordinator_log
        self._settings = GroupSettings.from_config(config)
        self._usage = GroupUsage()
        self._runtime = runtime
        self._controller = controller
        self._wall_clock = wall_clock
        self._topic = OffsetsTopic(controller, config, create_topic)
        self._node_id = config.node_id
        self._topic_names: dict[bytes, str] = {}  # to know the name of a topic that was deleted
        self._led: dict[int, _Led] = {}
        self._failed: dict[int, tuple[bytes, int]] = {}  # that could not be loaded: topic id, leader epoch
        self._partition_count = 0
        self._expiry: Timer | None = None
        self._outbox: list[Callable[[], None]] = []
        self._creating: list[Callable[[ErrorCode], None]] = []
        self._creation_error = ErrorCode.NONE  # that has been logged

    # -- life

    def start(self) -> None:
        """Begin to load what is ours, follow the metadata and start to expire offsets."""
        image = self._controller.image
        self._follow_partitions()
        self._topic_names = {topic.topic_id: topic.name for topic in image.topics.values()}
        self._controller.add_listener(self.metadata_changed)
        self._schedule_expiry()

    def stop(self) -> None:
        """No timer fires and no request is answered afterwards but with NOT_COORDINATOR."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        for index in tuple(self._led):
            self._led.pop(index).shard.unload()

    def metadata_changed(
        self, image: MetadataImage, topic_ids: Iterable[bytes], _config_topics: set[str]
    ) -> None:
        """These topics changed. Partitions of __consumer_offsets that became ours are loaded, those that went
        let go; offsets of deleted topics go. The partitions themselves are open by now."""
        deleted = []
        for topic_id in sorted(topic_ids):
            topic = image.topic_by_id(topic_id)
            if topic is not None:
                self._topic_names[topic_id] = topic.name
            elif topic_id in self._topic_names:
                deleted.append(DeletedTopic(self._topic_names.pop(topic_id), topic_id))
        if any(self._topic_names.get(topic_id) == GROUP_METADATA_TOPIC for topic_id in topic_ids) or any(
            topic.name == GROUP_METADATA_TOPIC for topic in deleted
        ):
            self._follow_partitions()
        if deleted:
            for led in tuple(self._led.values()):
                if led.loading:
                    led.deleted += deleted
                else:
                    led.shard.offset_requests.topics_deleted(deleted)

    def _follow_partitions(self) -> None:
        topic = self._topic.image()
        partitions = {} if topic is None else topic.partitions
        topic_id = b"" if topic is None else topic.topic_id
        self._partition_count = len(partitions)
        for index in tuple(self._led):
            self._lead_on(index, topic_id, partitions.get(index))
        for index, state in partitions.items():
            epoch = topic_id, state.leader_epoch
            if state.leader == self._node_id and index not in self._led and self._failed.get(index) != epoch:
                self._load(index, topic_id, state.leader_epoch)

    def _lead_on(self, index: int, topic_id: bytes, state: PartitionState | None) -> None:
        """Keep a partition if it is ours still and has been all the time."""
        led = self._led[index]
        is_ours = state is not None and state.leader == self._node_id and led.topic_id == topic_id
        if state is not None and is_ours and state.leader_epoch - led.leader_epoch in (0, 1):
            led.leader_epoch = state.leader_epoch
            return
        if not is_ours:
            log.info("%s-%d is no longer led here", GROUP_METADATA_TOPIC, index)
        del self._led[index]
        led.shard.unload()

    def _load(self, index: int, topic_id: bytes, leader_epoch: int) -> None:
        from barnabas.broker.groups.shard import Shard  # late: a broker without groups does without

        shard = Shard(index, self._log, self._runtime, self._settings, self._usage)
        led = self._led[index] = _Led(shard, topic_id, leader_epoch)
        shard.load(partial(self._loaded, index, led))

    def _loaded(self, index: int, led: _Led, error: Exception | None) -> None:
        if error is None:
            led.loading = False
            if led.shard.groups:
                log.info(
                    "%s-%d, leader epoch %d, has %d groups",
                    GROUP_METADATA_TOPIC,
                    index,
                    led.leader_epoch,
                    len(led.shard.groups),
                )
            if led.deleted:
                led.shard.offset_requests.topics_deleted(led.deleted)
            return
        # As Kafka: its groups hear NOT_COORDINATOR. To serve half of the offsets would be worse.
        log.error("%s-%d can't be loaded: %s", GROUP_METADATA_TOPIC, index, error)
        if not isinstance(error, StorageError) or error.error != ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._failed[index] = led.topic_id, led.leader_epoch
        del self._led[index]
        led.shard.unload()

    def _schedule_expiry(self) -> None:
        interval_s = self._settings.offsets_retention_check_interval_ms / 1000
        self._expiry = self._runtime.call_later(interval_s, self._expire)

    def _expire(self) -> None:
        self._schedule_expiry()
        now_ms = self._wall_clock.deletion_time_ms()
        if now_ms is not None:
            for shard in self.shards():
                shard.offset_requests.expire(now_ms)

    # -- routing

    def shard_of(self, group_id: str) -> Shard | ErrorCode:
        """The shard that holds the group, or the error to answer: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""
        if not self._partition_count:
            return ErrorCode.NOT_COORDINATOR
        led = self._led.get(partition_for(group_id, self._partition_count))
        if led is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if led.loading else led.shard

    def shards(self) -> Sequence[Shard]:
        """All that are loaded."""
        return [led.shard for led in self._led.values() if not led.loading]

    @property
    def is_loading(self) -> bool:
        """Whether groups are being loaded."""
        return any(led.loading for led in self._led.values())

    def set_loading(self, index: int, *, is_loading: bool) -> None:
        """Have a partition that is led here answer as while it loads, or no more: a test's wish."""
        led = self._led.get(index)
        if led is not None:
            led.loading = is_loading

    def find(self, group_id: str, reply: Callable[[ErrorCode, int], None]) -> None:
        """(error, node id) of the group's coordinator. The first one to ask has the topic created, and is
        answered when this broker knows it: one round trip where Kafka's clients need two or more."""
        if self._topic.partition_count():
            reply(*self._locate(group_id))
            return
        self._creating.append(lambda error: reply(error, -1) if error else reply(*self._locate(group_id)))
        if len(self._creating) == 1:
            self._topic.create(self._created)

    def _locate(self, group_id: str) -> tuple[ErrorCode, int]:
        count = self._topic.partition_count()
        leader = self._topic.leader(partition_for(group_id, count)) if count else -1
        return (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1) if leader < 0 else (ErrorCode.NONE, leader)

    def _created(self, error: ErrorCode) -> None:
        waiting, self._creating = self._creating, []
        if error:
            if error != self._creation_error:  # clients ask again and again
                log.warning("%s could not be created: %s", GROUP_METADATA_TOPIC, error.name)
            self._creation_error = error
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        for callback in waiting:
            callback(error)

    # -- replies

    def outgoing(self, reply: Callable[[R], None]) -> Callable[[R], None]:
        """A reply that leaves when the current work is done: its receiver may send the next request at once."""

        def post(response: R) -> None:
            if not self._outbox:
                self._runtime.call_soon(self._flush)
            self._outbox.append(lambda: reply(response))

        return post

    def _flush(self) -> None:
        replies, self._outbox = self._outbox, []
        for reply in replies:
            try:
                reply()
            except Exception:
                log.exception("a reply could not be sent")
