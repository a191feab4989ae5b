"""What decisions ask of an image: the rules of a topic, who may lead, and partitions by what a broker is to them.

Partitions are found by going through all of them, which takes a millisecond for 10,000: no index has to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from barnabas.controller.metadata.image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    BrokerRegistration,
    MetadataImage,
    PartitionState,
    TopicImage,
)
from barnabas.controller.operations.features import MIN_ISR, with_elr
from barnabas.controller.operations.partition_change import NO_LEADER, TopicRules
from barnabas.controller.operations.settings import ControllerSettings
from barnabas.wire.primitives import ZERO_UUID

UNASSIGNED: Final = ZERO_UUID  # DirectoryId.UNASSIGNED: not reported yet
LOST: Final = bytes(15) + b"\x01"  # DirectoryId.LOST: in one that is offline
MIGRATING: Final = bytes(15) + b"\x02"  # DirectoryId.MIGRATING: while ZooKeeper was left

Place = tuple[TopicImage, int, PartitionState]  # a partition: its topic, its index, its state

_UNCLEAN: Final = "unclean.leader.election.enable"


class Rules:
    """The rules of each topic in an image; made for one decision."""

    def __init__(self, image: MetadataImage, settings: ControllerSettings) -> None:
        self._image = image
        self._with_elr = with_elr(image)
        brokers = [image.configs.get((BROKER_RESOURCE, name), {}) for name in (str(settings.node_id), "")]
        self._defaults = {
            name: next((broker[name] for broker in brokers if name in broker), settings.value(name))
            for name in (MIN_ISR, _UNCLEAN)
        }

    def of(self, topic: TopicImage) -> TopicRules:
        configs = self._image.configs.get((TOPIC_RESOURCE, topic.name), {})
        min_isr = configs.get(MIN_ISR, self._defaults[MIN_ISR])
        unclean = configs.get(_UNCLEAN, self._defaults[_UNCLEAN])
        replication_factor = len(topic.partitions[0].replicas) if 0 in topic.partitions else 1
        return TopicRules(
            min_isr=min(int(min_isr or 1), replication_factor),
            unclean=(unclean or "").lower() == "true",
            with_elr=self._with_elr,
        )


def directory_of(state: PartitionState, broker_id: int) -> bytes:
    """The id of the directory that holds the broker's replica, UNASSIGNED when unknown."""
    if broker_id not in state.replicas:
        return UNASSIGNED
    index = state.replicas.index(broker_id)
    return state.directories[index] if index < len(state.directories) else UNASSIGNED


def has_directory(broker: BrokerRegistration, directory: bytes) -> bool:
    """Whether the directory works, as far as the metadata knows."""
    if directory in (UNASSIGNED, MIGRATING):
        return True
    return directory != LOST and (not broker.log_dirs or directory in broker.log_dirs)


def default_directory(broker: BrokerRegistration | None) -> bytes:
    """The directory of a replica that is added: known where there is only one that takes new replicas."""
    if broker is None or len(broker.log_dirs) != 1:
        return UNASSIGNED
    return broker.log_dirs[0]


def leadership_test(image: MetadataImage, state: PartitionState) -> Callable[[int], bool]:
    """Who may lead this partition: a broker that is there, does not leave, and whose directory works."""
    brokers = image.brokers

    def may_lead(broker_id: int) -> bool:
        broker = brokers.get(broker_id)
        return (
            broker is not None and broker.is_active and has_directory(broker, directory_of(state, broker_id))
        )

    return may_lead


def partitions(image: MetadataImage, chosen: Callable[[PartitionState], bool]) -> Iterator[Place]:
    """Every partition whose state is `chosen`."""
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
