"""Leaders and ISRs follow the brokers: one comes, goes, is about to go, or comes back without its memory.

Each function gives the records for the partitions that it concerns; the record about the broker itself is the
caller's. Kafka's ReplicationControlManager.generateLeaderAndIsrUpdates is one function for all of them as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from barnabas.controller.metadata.image import BrokerRegistration, MetadataImage, PartitionState
from barnabas.controller.operations.cluster_view import (
    Place,
    Rules,
    directory_of,
    eligible_on,
    has_directory,
    in_sync_on,
    without_leader,
)
from barnabas.controller.operations.partition_change import Election, TopicRules, Wanted, change_partition
from barnabas.controller.operations.settings import ControllerSettings
from barnabas.wire.messages.metadata_records import PartitionChangeRecord

_NO_BROKER: Final = -1


def broker_gone(
    image: MetadataImage, settings: ControllerSettings, broker_id: int
) -> list[PartitionChangeRecord]:
    """The broker is fenced or about to stop: it leaves every ISR and leads nothing any more."""
    return _update(image, settings, in_sync_on(image, broker_id), gone=broker_id)


def broker_forgot(
    image: MetadataImage, settings: ControllerSettings, broker_id: int
) -> list[PartitionChangeRecord]:
    """The broker starts without a sign that it had stopped cleanly: the ends of its logs may be lost, so that it
    is neither in sync nor, where that counts, eligible."""
    return [
        *_update(image, settings, in_sync_on(image, broker_id), gone=broker_id, forgot=True),
        *_update(image, settings, eligible_on(image, broker_id), gone=broker_id, forgot=True),
    ]


def broker_removed(
    image: MetadataImage, settings: ControllerSettings, broker_id: int
) -> list[PartitionChangeRecord]:
    """The broker is not registered any more."""
    return [
        *_update(image, settings, in_sync_on(image, broker_id), gone=broker_id),
        *_update(image, settings, eligible_on(image, broker_id), gone=broker_id),
    ]


def broker_there(
    image: MetadataImage, settings: ControllerSettings, broker: BrokerRegistration
) -> list[PartitionChangeRecord]:
    """The broker is unfenced: partitions without a leader may get it as leader."""
    return _update(image, settings, without_leader(image), there=broker)


def directories_gone(
    image: MetadataImage, settings: ControllerSettings, broker_id: int, is_gone: Callable[[bytes], bool]
) -> list[PartitionChangeRecord]:
    """Directories of the broker do not work any more: their replicas leave ISR and leadership."""
    places = (place for place in in_sync_on(image, broker_id) if is_gone(directory_of(place[2], broker_id)))
    return _update(image, settings, places, gone=broker_id)


def _update(
    image: MetadataImage,
    settings: ControllerSettings,
    places: Iterable[Place],
    *,
    gone: int = _NO_BROKER,
    forgot: bool = False,
    there: BrokerRegistration | None = None,
) -> list[PartitionChangeRecord]:
    active = {broker_id: broker for broker_id, broker in image.brokers.items() if broker.is_active}
    active.pop(gone, None)
    if there is not None:
        active[there.broker_id] = there
    return list(_changes(Rules(image, settings), places, active, gone, forgot))


def _changes(
    rules: Rules,
    places: Iterable[Place],
    active: dict[int, BrokerRegistration],
    gone: int,
    forgot: bool,
) -> Iterator[PartitionChangeRecord]:
    topic_rules: TopicRules | None = None
    last_topic = None
    unclean_shutdown = (gone,) if forgot else ()
    for topic, index, state in places:
        if topic is not last_topic or topic_rules is None:
            topic_rules, last_topic = rules.of(topic), topic
        change = change_partition(
            topic.topic_id,
            index,
            state,
            topic_rules,
            partial(_may_lead, active, state),
            Wanted(
                isr=[replica for replica in state.isr if replica != gone],
                election=Election.UNCLEAN if topic_rules.unclean else Election.ONLINE,
                unclean_shutdown=unclean_shutdown,
            ),
        )
        if change is not None:
            yield change


def _may_lead(active: dict[int, BrokerRegistration], state: PartitionState, broker_id: int) -> bool:
    broker = active.get(broker_id)
    return broker is not None and has_directory(broker, directory_of(state, broker_id))
