"""The topics and tasks of an application, from its topology and the topics that exist. Texts are Kafka's.

A subtopology has a task for each partition of its source topics, the most of them. A repartition topic has as many partitions as feed it
unless the application gives a number; those that are joined have equally many; a changelog topic has one for each task.
Source: InternalTopicManager and its helpers.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.consumer_offsets import (
    StreamsGroupTopologyValue,
    StreamsGroupTopologyValueTopicInfo,
    Subtopology,
)

if TYPE_CHECKING:
    from barnabas.broker.groups.streams.values import Pairs
    from barnabas.controller.metadata.image import MetadataImage

NAMED_MAX: Final = 3
TASKS_MAX: Final = 50_000  # a target of more is more than a record batch holds


class Status(enum.IntEnum):
    """What the answer to a heartbeat says of the application."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class InternalTopic(msgspec.Struct, frozen=True):
    """A repartition or changelog topic. `replication_factor` 0: the broker's default."""

    name: str
    partitions: int
    replication_factor: int
    configs: Pairs


class ConfiguredSubtopology(msgspec.Struct, frozen=True):
    """`sources`: names of the topics that it reads, repartition topics included."""

    task_count: int
    sources: tuple[str, ...]
    repartition_sources: tuple[InternalTopic, ...]
    changelogs: tuple[InternalTopic, ...]

    @property
    def is_stateful(self) -> bool:
        return bool(self.changelogs)


class ConfiguredTopology(msgspec.Struct, frozen=True):
    """`problem`: why no tasks can be assigned, with a text; None: they can. `missing`: topics to create."""

    epoch: int
    subtopologies: Mapping[str, ConfiguredSubtopology] = {}
    missing: tuple[InternalTopic, ...] = ()
    problem: tuple[Status, str] | None = None

    @property
    def is_ready(self) -> bool:
        return self.problem is None

    @property
    def task_count(self) -> int:
        return sum(each.task_count for each in self.subtopologies.values())


class _Unfit(Exception):
    """The topics don't fit the topology."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.problem = status, text


def _sources_of(subtopology: Subtopology) -> list[str]:
    return [*subtopology.source_topics, *(each.name for each in subtopology.repartition_source_topics)]


def source_topics(topology: StreamsGroupTopologyValue) -> dict[str, str]:
    """The subtopology that reads each topic."""
    return {
        topic: subtopology.subtopology_id
        for subtopology in topology.subtopologies
        for topic in _sources_of(subtopology)
    }


def required_topics(topology: StreamsGroupTopologyValue) -> frozenset[str]:
    """Names of all topics that the tasks need."""
    found = set(source_topics(topology))
    for subtopology in topology.subtopologies:
        found.update(each.name for each in subtopology.state_changelog_topics)
    return frozenset(found)


def check_topology(topology: StreamsGroupTopologyValue) -> None:
    """ApiError UNKNOWN_SERVER_ERROR where Kafka's code fails: what no client sends."""
    ids = {each.subtopology_id for each in topology.subtopologies}
    if topology.epoch < 0 or len(ids) != len(topology.subtopologies):
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, None)


def configure(topology: StreamsGroupTopologyValue, image: MetadataImage) -> ConfiguredTopology:
    """ApiError STREAMS_INVALID_TOPOLOGY where no numbers of partitions follow from it."""
    groups = [_joined_topics(each) for each in topology.subtopologies]
    try:
        _check_sources(topology, image)
        counts = _Counts(topology.subtopologies, image)
        counts.decide(groups)
        subtopologies = {
            each.subtopology_id: _configured(each, counts)
            for each in sorted(topology.subtopologies, key=lambda each: each.subtopology_id)
        }
        missing = _missing(subtopologies.values(), image)
    except _Unfit as failure:
        return ConfiguredTopology(topology.epoch, problem=failure.problem)
    if sum(each.task_count for each in subtopologies.values()) > TASKS_MAX:
        raise _invalid(f"The topology has more than {TASKS_MAX} tasks.")
    problem = None
    if missing:
        names = _summary([each.name for each in missing])
        problem = Status.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {names}"
    return ConfiguredTopology(topology.epoch, subtopologies, missing, problem)


def _joined_topics(subtopology: Subtopology) -> list[list[str]]:
    """Topics that need equally many partitions. Indexes out of range fail in Kafka's code."""
    repartition = [each.name for each in subtopology.repartition_source_topics]
    groups = []
    for group in subtopology.copartition_groups:
        names: dict[str, None] = {}
        for indexes, topics in (
            (group.source_topics, subtopology.source_topics),
            (group.repartition_source_topics, repartition),
        ):
            for index in indexes:
                if not 0 <= index < len(topics):
                    raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, None)
                names[topics[index]] = None
        groups.append(list(names))
    return groups


def _check_sources(topology: StreamsGroupTopologyValue, image: MetadataImage) -> None:
    missing = {
        topic
        for subtopology in topology.subtopologies
        for topic in subtopology.source_topics
        if topic not in image.topics
    }
    if missing:
        text = f"Source topics {_summary(sorted(missing))} are missing."
        raise _Unfit(Status.MISSING_SOURCE_TOPICS, text)


class _Counts:
    """Numbers of partitions: of topics that exist, and of those to be."""

    def __init__(self, subtopologies: list[Subtopology], image: MetadataImage) -> None:
        self._subtopologies = subtopologies
        self._image = image
        self.decided: dict[str, int] = {}
        self._fixed = {
            each.name: each.partitions
            for subtopology in subtopologies
            for each in subtopology.repartition_source_topics
            if each.partitions != 0
        }
        self._flexible = {
            each.name
            for subtopology in subtopologies
            for each in subtopology.repartition_source_topics
            if each.partitions == 0
        }

    def of(self, topic: str) -> int:
        found = self._image.topics.get(topic)
        count = self.decided.get(topic) if found is None else len(found.partitions)
        if count is None:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, None)
        return count

    def decide(self, joined: Iterable[list[list[str]]]) -> None:
        self._decide_repartition_topics()
        for groups in joined:
            for group in groups:
                if group:
                    self._join(group)
        for subtopology in self._subtopologies:
            sources = _sources_of(subtopology)
            if not sources:
                raise _invalid(f"No source topics found for subtopology {subtopology.subtopology_id}")
            count = max(map(self.of, sources))
            for changelog in subtopology.state_changelog_topics:
                self.decided[changelog.name] = count

    def _decide_repartition_topics(self) -> None:
        """A subtopology's sinks get a number once one of its sources has one: first what reads topics that exist."""
        counts = dict(self._fixed)
        readers: dict[str, list[Subtopology]] = {}
        for subtopology in self._subtopologies:
            for source in subtopology.repartition_source_topics:
                readers.setdefault(source.name, []).append(subtopology)
        waiting = deque(self._subtopologies)
        undecided = {
            sink
            for each in self._subtopologies
            for sink in each.repartition_sink_topics
            if sink not in counts
        }
        while waiting:
            subtopology = waiting.popleft()
            known = [
                counts[each.name] for each in subtopology.repartition_source_topics if each.name in counts
            ]
            known += [len(self._image.topics[topic].partitions) for topic in subtopology.source_topics]
            if not known:
                continue
            for sink in subtopology.repartition_sink_topics:
                if sink in undecided:
                    undecided.discard(sink)
                    counts[sink] = max(known)
                    waiting += readers.get(sink, ())
        if undecided:
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics. There may be loops in the topology "
                "that cannot be resolved."
            )
        if not counts.keys() >= readers.keys():
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics, because a repartition source topic is "
                "never used as a sink topic."
            )
        self.decided.update(counts)

    def _join(self, topics: list[str]) -> None:
        repartition = {
            topic: self.of(topic) for topic in topics if topic in self._fixed or topic in self._flexible
        }
        others = {topic: self.of(topic) for topic in topics if topic not in repartition}
        if others:
            count = _only(others.values(), others)
        elif self._fixed:
            count = _only([self.of(topic) for topic in self._fixed], repartition)
        else:
            count = max(repartition.values())
        for topic, before in repartition.items():
            self.decided[topic] = count
            if topic in self._fixed and before != count:
                text = (
                    f"Number of partitions [{before}] of repartition topic [{topic}] doesn't match number of partitions "
                    f"[{count}] of the source topic."
                )
                raise _Unfit(Status.INCORRECTLY_PARTITIONED_TOPICS, text)


def _only(counts: Collection[int], topics: Mapping[str, int]) -> int:
    """The count, which is the same of all."""
    first = next(iter(counts))
    if any(count != first for count in counts):
        shown = ", ".join(f"{topic}={count}" for topic, count in sorted(topics.items()))
        text = f"Following topics do not have the same number of partitions: [{{{shown}}}]"
        raise _Unfit(Status.INCORRECTLY_PARTITIONED_TOPICS, text)
    return first


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)


def _configured(subtopology: Subtopology, counts: _Counts) -> ConfiguredSubtopology:
    sources = tuple(dict.fromkeys(_sources_of(subtopology)))
    task_count = max(map(counts.of, sources))
    if task_count <= 0:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, None)

    def internal(
        topics: list[StreamsGroupTopologyValueTopicInfo], decided: Callable[[str], int]
    ) -> tuple[InternalTopic, ...]:
        return tuple(
            InternalTopic(
                each.name,
                each.partitions or decided(each.name),
                each.replication_factor,
                tuple({config.key: config.value for config in each.topic_configs}.items()),
            )
            for each in topics
        )

    decided = counts.decided.__getitem__
    return ConfiguredSubtopology(
        task_count,
        sources,
        internal(subtopology.repartition_source_topics, decided),
        internal(subtopology.state_changelog_topics, decided),
    )


def _missing(
    subtopologies: Iterable[ConfiguredSubtopology], image: MetadataImage
) -> tuple[InternalTopic, ...]:
    wanted = {
        topic.name: topic
        for subtopology in subtopologies
        for topic in (*subtopology.repartition_sources, *subtopology.changelogs)
    }
    missing = []
    for name, topic in sorted(wanted.items()):
        existing = image.topics.get(name)
        if existing is None:
            missing.append(topic)
        elif len(existing.partitions) != topic.partitions:
            text = (
                f"Existing topic {name} has different number of partitions: expected {topic.partitions}, "
                f"found {len(existing.partitions)}"
            )
            raise _Unfit(Status.INCORRECTLY_PARTITIONED_TOPICS, text)
    return tuple(missing)


def _summary(names: list[str]) -> str:
    shown = ", ".join(names[:NAMED_MAX])
    more = len(names) - NAMED_MAX
    return f"{shown} and {more} additional topics" if more > 0 else shown
