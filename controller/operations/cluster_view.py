"""Questions that operations ask of an image: a topic's rules, which brokers may lead, a broker's partitions.

Partitions are found by going through all of them, which takes a millisecond for 10,000: no index has to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from barnabas.controller.config.topic_configs import observers_of
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.metadata.image import (
    BROKER_RESOURCE,
    NO_LEADER,
    TOPIC_RESOURCE,
    BrokerRegistration,
    MetadataImage,
    PartitionState,
    TopicImage,
)
from barnabas.controller.operations.features import MIN_ISR, with_elr
from barnabas.controller.operations.partition_change import TopicRules, Wanted, change_partition
from barnabas.controller.operations.settings import ControllerSettings
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import PartitionChangeRecord
from barnabas.wire.primitives import ZERO_UUID

UNASSIGNED: Final = ZERO_UUID  # DirectoryId.UNASSIGNED: not reported yet
LOST: Final = bytes(15) + b"\x01"  # DirectoryId.LOST: an offline directory
MIGRATING: Final = bytes(15) + b"\x02"  # DirectoryId.MIGRATING: from ZooKeeper

Place = tuple[TopicImage, int, PartitionState]  # a partition: its topic, its index, its state

_UNCLEAN: Final = "unclean.leader.election.enable"


class Rules:
    """The rules of each topic in an image; made for one decision."""

    def __init__(self, image: MetadataImage, settings: ControllerSettings) -> None:
        self._image = image
        self._last: tuple[TopicImage, TopicRules] | None = None  # what `of` has returned
        self._with_elr = with_elr(image)
        brokers = [image.configs.get((BROKER_RESOURCE, name), {}) for name in (str(settings.node_id), "")]
        self._defaults = {
            name: next((broker[name] for broker in brokers if name in broker), settings.value(name))
            for name in (MIN_ISR, _UNCLEAN)
        }

    def of(self, topic: TopicImage) -> TopicRules:
        if self._last is None or self._last[0] is not topic:
            self._last = topic, self._read(topic)
        return self._last[1]

    def change(
        self, place: Place, wanted: Wanted, may_lead: Callable[[int], bool] | None = None
    ) -> PartitionChangeRecord | None:
        """`change_partition` under the topic's rules. `may_lead(broker)`: by default `leadership_test`."""
        topic, index, state = place
        may_lead = may_lead or leadership_test(self._image, state)
        return change_partition(topic.topic_id, index, state, self.of(topic), may_lead, wanted)

    def _read(self, topic: TopicImage) -> TopicRules:
        configs = self._image.configs.get((TOPIC_RESOURCE, topic.name), {})
        min_isr = configs.get(MIN_ISR, self._defaults[MIN_ISR])
        unclean = configs.get(_UNCLEAN, self._defaults[_UNCLEAN])
        observers = observers_of(configs)
        replicas = topic.partitions[0].replicas if 0 in topic.partitions else []
        replication_factor = len([each for each in replicas if each not in observers]) or 1
        return TopicRules(
            min_isr=min(int(min_isr or 1), replication_factor),
            unclean=(unclean or "").lower() == "true",
            with_elr=self._with_elr,
            observers=observers,
        )


def directory_of(state: PartitionState, broker_id: int) -> bytes:
    """Id of the directory that has the broker's replica, UNASSIGNED when unknown."""
    if broker_id not in state.replicas:
        return UNASSIGNED
    index = state.replicas.index(broker_id)
    return state.directories[index] if index < len(state.directories) else UNASSIGNED


def has_directory(broker: BrokerRegistration, directory: bytes) -> bool:
    """Whether the directory is online, according to the metadata."""
    if directory in (UNASSIGNED, MIGRATING):
        return True
    return directory != LOST and (not broker.log_dirs or directory in broker.log_dirs)


def default_directory(broker: BrokerRegistration | None) -> bytes:
    """The directory of a new replica: known when the broker has only one."""
    if broker is None or len(broker.log_dirs) != 1:
        return UNASSIGNED
    return broker.log_dirs[0]


def leadership_test(image: MetadataImage, state: PartitionState) -> Callable[[int], bool]:
    """Whether a broker may lead this partition: it is active, and the directory of its replica works."""
    brokers = image.brokers

    def may_lead(broker_id: int) -> bool:
        broker = brokers.get(broker_id)
        return (
            broker is not None and broker.is_active and has_directory(broker, directory_of(state, broker_id))
        )

    return may_lead


def check_broker_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerRegistration:
    """The broker registered in this epoch. ApiError: STALE_BROKER_EPOCH."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}"
        )
    if broker.broker_epoch != broker_epoch:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Expected broker epoch {broker.broker_epoch}, but got broker epoch {broker_epoch}",
        )
    return broker


def partitions(image: MetadataImage, chosen: Callable[[PartitionState], bool]) -> Iterator[Place]:
    """Partitions for whose state `chosen` is true."""
    for topic in image.topics.values():
        for index, state in topic.partitions.items():
            if chosen(state):
                yield topic, index, state


def in_sync_on(image: MetadataImage, broker_id: int) -> Iterator[Place]:
    return partitions(image, lambda state: broker_id in state.isr)


def eligible_on(image: MetadataImage, broker_id: int) -> Iterator[Place]:
    return partitions(image, lambda state: broker_id in state.eligible_leader_replicas)


def without_leader(image: MetadataImage) -> Iterator[Place]:
    return partitions(image, lambda state: state.leader == NO_LEADER)


def leads_any(image: MetadataImage, broker_id: int) -> bool:
    return any(True for _ in partitions(image, lambda state: state.leader == broker_id))
