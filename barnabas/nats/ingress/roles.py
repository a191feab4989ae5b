"""The roles of this broker for the partitions of a bound topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.broker.partitions.partition import Partition
    from barnabas.controller.metadata.image import TopicImage


_NOTHING: Final[Mapping[int, Partition]] = {}


class Roles(NamedTuple):
    """Partitions by index, ascending."""

    leading: Mapping[int, Partition]
    following: Mapping[int, Partition]  # in sync: this broker may become their leader at any time
    opening: frozenset[int] = frozenset()  # this broker is a replica, and their logs are about to be opened
    joining: Mapping[int, Partition] = _NOTHING  # followed, and not in sync yet

    @property
    def are_none(self) -> bool:
        return not (self.leading or self.following or self.opening or self.joining)


NO_ROLES: Final = Roles({}, {})


def roles_of(host: ExtensionHost, topic: TopicImage, *, is_settled: bool) -> Roles:
    """The current roles. `is_settled`: all logs that can be opened are open."""
    node_id = host.node_id
    hosted = host.partitions.of_topic(topic.name)
    partitions = {
        index: hosted[index] for index in sorted(hosted) if hosted[index].topic_id == topic.topic_id
    }
    leading = {index: partition for index, partition in partitions.items() if partition.is_leader}
    following = {
        index: partition
        for index, partition in partitions.items()
        if index not in leading and node_id in partition.state.isr
    }
    joining = {
        index: partition
        for index, partition in partitions.items()
        if index not in leading and index not in following
    }
    if is_settled or len(partitions) == len(topic.partitions):
        return Roles(leading, following, joining=joining)
    opening = frozenset(
        index
        for index, state in topic.partitions.items()
        if index not in partitions and node_id in state.replicas
    )
    return Roles(leading, following, opening, joining)
