"""Observers of a topic (`barnabas.observers`): replicas that never join the ISR, for reads far away.

Kafka has none. The config names brokers; each holds a replica of every partition of the topic, behind the other replicas in the
order of preference. The config alone says which replicas are observers, and one batch of records changes both: a broker that
has a replica already does not become an observer, and an observer that is no longer named loses its replica.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from barnabas.controller.config.topic_configs import OBSERVERS, observers_of
from barnabas.controller.config.validators import ConfigError
from barnabas.controller.metadata.image import MetadataImage, TopicImage
from barnabas.controller.operations.cluster_view import Rules, default_directory, leadership_test
from barnabas.controller.operations.partition_change import Wanted, change_partition

if TYPE_CHECKING:
    from barnabas.controller.operations.settings import ControllerSettings
    from barnabas.wire.messages.metadata_records import PartitionChangeRecord


def check_registered(image: MetadataImage, observers: Collection[int]) -> None:
    """ConfigError when a broker is not registered: it could hold no replica."""
    unknown = sorted(broker for broker in observers if broker not in image.brokers)
    if unknown:
        raise ConfigError(f"{OBSERVERS} includes broker {unknown[0]}, but no such broker is registered.")


def with_observers(
    image: MetadataImage, replicas: Sequence[int], observers: Collection[int], present: Collection[int] = ()
) -> list[int]:
    """The replicas with all observers behind the others. `present`: brokers that have a replica now; another one that has been
    unregistered since the config was set gets none."""
    voters = [broker for broker in replicas if broker not in observers]
    return voters + [broker for broker in sorted(observers) if broker in image.brokers or broker in present]


def change_observers(
    image: MetadataImage,
    settings: ControllerSettings,
    topic: TopicImage,
    current: Mapping[str, str],
    wanted: Mapping[str, str],
) -> list[PartitionChangeRecord]:
    """The changes of replicas that go with a change of the topic's configs from `current` to `wanted`. ConfigError when they
    can't be made."""
    before, after = observers_of(current), observers_of(wanted)
    if before == after:
        return []
    added, removed = after - before, before - after
    check_registered(image, added)
    rules = msgspec.structs.replace(Rules(image, settings).of(topic), observers=before | after)
    records = []
    for index, state in topic.partitions.items():
        taken = added.intersection(state.replicas)
        if taken:
            raise ConfigError(
                f"{OBSERVERS} includes broker {min(taken)}, which has a replica of {topic.name}-{index} that may be in "
                f"the ISR. Reassign the partition to other brokers first."
            )
        # A controller of an earlier release may have let an observer into the ISR: it stays, as a replica like the others.
        kept = [broker for broker in state.replicas if broker not in removed or broker in state.isr]
        record = change_partition(
            topic.topic_id,
            index,
            state,
            rules,
            leadership_test(image, state),
            Wanted(replicas=[*kept, *sorted(added)]),
            lambda broker: default_directory(image.brokers.get(broker)),
        )
        records += [record] if record is not None else []
    return records
