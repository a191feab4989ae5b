"""Changes of leaders and ISRs that follow from the state of a broker.

Each function yields the records for the partitions concerned; the caller adds the record about the broker itself. In Kafka one
function decides all of these as well: ReplicationControlManager.generateLeaderAndIsrUpdates.
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
from barnabas.controller.operations.partition_change import Wanted
from barnabas.controller.operations.settings import ControllerSettings
from barnabas.wire.messages.metadata_records import PartitionChangeRecord

_NO_BROKER: Final = -1


def broker_fenced(
    image: MetadataImage, settings: ControllerSettings, broker_id: int
) -> Iterator[PartitionChangeRecord]:
    """The broker is fenced or about to stop: it leaves every ISR and leads nothing."""
    return _update(image, settings, in_sync_on(image, broker_id), leaving=broker_id)


def broker_unclean_shutdown(
    image: MetadataImage, settings: ControllerSettings, broker_id: int
) -> Iterator[PartitionChangeRecord]:
    """The broker starts and had not stopped cleanly: the ends of its logs may be lost, so it is neither in sync nor, with
    eligible leader replicas, eligible."""
    yield from _update(image, settings, in_sync_on(image, broker_id), leaving=broker_id, is_unclean=True)
    yield from _update(image, settings, eligible_on(image, broker_id), leaving=broker_id, is_unclean=True)


def broker_unregistered(
    image: MetadataImage, settings: ControllerSettings, broker_id: int
) -> Iterator[PartitionChangeRecord]:
    """The broker is unregistered."""
    yield from _update(image, settings, in_sync_on(image, broker_id), leaving=broker_id)
    yield from _update(image, settings, eligible_on(image, broker_id), leaving=broker_id)


def broker_unfenced(
    image: MetadataImage, settings: ControllerSettings, broker: BrokerRegistration
) -> Iterator[PartitionChangeRecord]:
    """The broker is unfenced: it may lead partitions that have no leader."""
    return _update(image, settings, without_leader(image), returning=broker)


def directories_failed(
    image: MetadataImage, settings: ControllerSettings, broker_id: int, is_gone: Callable[[bytes], bool]
) -> Iterator[PartitionChangeRecord]:
    """Directories of the broker have failed: their replicas leave the ISR and lead nothing."""
    places = (place for place in in_sync_on(image, broker_id) if is_gone(directory_of(place[2], broker_id)))
    return _update(image, settings, places, leaving=broker_id)


def _update(
    image: MetadataImage,
    settings: ControllerSettings,
    places: Iterable[Place],
    *,
    leaving: int = _NO_BROKER,
    is_unclean: bool = False,
    returning: BrokerRegistration | None = None,
) -> Iterator[PartitionChangeRecord]:
    active = {broker_id: broker for broker_id, broker in image.brokers.items() if broker.is_active}
    active.pop(leaving, None)
    if returning is not None:
        active[returning.broker_id] = returning
    rules = Rules(image, settings)
    changes = (
        rules.change(
            place,
            Wanted(
                isr=[replica for replica in place[2].isr if replica != leaving],
                election=rules.of(place[0]).election,
                unclean_shutdown=(leaving,) if is_unclean else (),
            ),
            partial(_may_lead, active, place[2]),
        )
        for place in places
    )
    return (change for change in changes if change is not None)


def _may_lead(active: dict[int, BrokerRegistration], state: PartitionState, broker_id: int) -> bool:
    broker = active.get(broker_id)
    return broker is not None and has_directory(broker, directory_of(state, broker_id))
