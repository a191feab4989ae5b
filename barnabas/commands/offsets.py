"""`barnabas offsets`: prints offsets of partitions, as kafka-get-offsets.sh."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from barnabas.commands.connection import CONNECTION, Cluster, java_text, reason_of, retried
from barnabas.commands.options import ArgumentError, CommandFailed, Option, Options, Tool
from barnabas.commands.terminal import complain, say
from barnabas.commands.topics import topic_pattern

_TIMES: Final = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,  # kafka-python has no -6, earliest-pending-upload
}
_LISTED_TIMES: Final = " / ".join(f"{number} or {name}" for name, number in _TIMES.items())
_PATTERN: Final = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")

_OPTIONS: Final = (
    *CONNECTION,
    Option(
        "topic", "A regular expression that matches the topics' whole names; all topics without it.", "TOPIC"
    ),
    Option("partitions", "Only these partitions.", "NUMBER,..."),
    Option(
        "topic-partitions",
        "Topics with their partitions: topic1:1,topic2:0-3,topic3,topic4:5-,topic5:-3; a range is without its end.",
        "PATTERN,...",
    ),
    Option(
        "time",
        f"The offset of the first record since then, or {_LISTED_TIMES}.",
        "TIMESTAMP",
        default="latest",
    ),
    Option("exclude-internal-topics", "Without internal topics."),
)

_Filter = Callable[[str, int], bool]


def _run(options: Options) -> int:
    try:
        if options.has("topic-partitions") and options.which_of(("topic", "partitions")):
            raise ArgumentError("--topic-partitions cannot be used with --topic or --partitions")
        timestamp = _timestamp(options.value("time"))
        is_wanted = _filter(options)
        with Cluster(options) as cluster:
            try:
                _print(cluster, is_wanted, timestamp, has_internal=not options.has("exclude-internal-topics"))
            except cluster.errors as error:
                raise ArgumentError(java_text(error)) from None
    except ArgumentError as error:
        raise CommandFailed(f"Error occurred: {error}") from None
    return 0


def _timestamp(text: str) -> int:
    try:
        return _TIMES[text] if text in _TIMES else int(text)
    except ValueError:
        raise ArgumentError(
            f"Malformed time argument {text}. Please use {_LISTED_TIMES}, or a specified long format timestamp"
        ) from None


def _filter(options: Options) -> _Filter:
    if options.has("topic-partitions"):
        rules = [_rule(text) for text in options.value("topic-partitions").split(",")]
        return lambda topic, partition: any(rule(topic, partition) for rule in rules)
    pattern = topic_pattern(options.value("topic") or ".*")
    text = options.value("partitions") or ""
    try:
        numbers = {int(each) for each in text.split(",") if text}
    except ValueError:
        raise ArgumentError(
            f"--partitions expects a comma separated list of numeric partition ids, but received: {text}"
        ) from None
    return lambda topic, partition: (
        pattern.fullmatch(topic) is not None and (not numbers or partition in numbers)
    )


def _rule(text: str) -> _Filter:
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise ArgumentError(f"Invalid rule specification: {text}")
    pattern = topic_pattern(found[1] or ".*")
    if found[2]:
        allowed = range(int(found[2]), int(found[2]) + 1)
    else:
        allowed = range(int(found[3] or 0), int(found[4] or 2**31 - 1))
    return lambda topic, partition: pattern.fullmatch(topic) is not None and partition in allowed


def _print(cluster: Cluster, is_wanted: _Filter, timestamp: int, *, has_internal: bool) -> None:
    from kafka import TopicPartition

    by_leader: dict[int, list[Any]] = {}
    for topic in cluster.topics():
        if has_internal or not topic["is_internal"]:
            for partition in topic["partitions"]:
                if is_wanted(topic["name"], partition["partition_index"]):
                    each = TopicPartition(topic["name"], partition["partition_index"])
                    by_leader.setdefault(partition["leader_id"], []).append(each)
    if not by_leader:
        raise ArgumentError("Could not match any topic-partitions with the specified filters")
    offsets: dict[Any, int] = {}
    for leader, partitions in by_leader.items():
        if leader < 0:
            for each in partitions:
                complain(
                    f"Skip getting offsets for topic-partition {each.topic}-{each.partition} due to error: it has no leader"
                )
        else:
            offsets |= _offsets(cluster, partitions, timestamp)
    for each in sorted(offsets, key=lambda one: f"{one.topic}-{one.partition}"):
        say(f"{each.topic}:{each.partition}:{offsets[each]}")


def _offsets(cluster: Cluster, partitions: list[Any], timestamp: int) -> dict[Any, int]:
    """Those that there are."""
    from kafka.errors import BrokerResponseError

    try:
        found = retried(lambda: cluster.admin.list_partition_offsets(dict.fromkeys(partitions, timestamp)))
    except BrokerResponseError as error:
        for each in partitions:
            complain(
                f"Skip getting offsets for topic-partition {each.topic}-{each.partition} due to error: {reason_of(error)}"
            )
        return {}
    return {each: at.offset for each, at in found.items() if at.offset >= 0}


TOOL: Final = Tool(
    "offsets",
    "kafka-get-offsets.sh",
    "Print offsets of partitions as TOPIC:PARTITION:OFFSET.",
    _OPTIONS,
    _run,
)
