"""`barnabas groups --reset-offsets`: which offsets a group gets."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from barnabas.commands.connection import ServerError, java_text, now_ms
from barnabas.commands.group_requests import EARLIEST, LATEST, Groups, TopicPartition
from barnabas.commands.options import ArgumentError, Options, UsageError, whole_number
from barnabas.commands.terminal import complain, print_table, say, say_error
from barnabas.wire.errors import ErrorCode

SCENARIOS: Final = (
    "to-offset",
    "shift-by",
    "to-datetime",
    "by-duration",
    "to-earliest",
    "to-latest",
    "to-current",
    "from-file",
)
_DURATION: Final = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?(?:T(?=\S)(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+(?:\.\d{0,9})?)S)?)?",
    re.IGNORECASE,
)
_TIME: Final = re.compile(r"\d{1,4}-\d{1,2}-\d{1,2}T\d{1,2}:\d{1,2}:\d{1,2}\.\d{1,3}(Z|[-+]\d\d(?::?\d\d)?)")
_UNQUOTED_MAX: Final = 24  # characters; Kafka's CSV writer quotes what is longer without looking at it

Offsets = dict[TopicPartition, int]


def reset(groups: Groups, names: Sequence[str], options: Options) -> None:
    """Print the new offsets, and set them with --execute. UsageError, ArgumentError, ServerError."""
    plans: dict[str, Offsets] = {}
    for name in dict.fromkeys(names):
        try:
            state = groups.described(name).state
        except ServerError as error:
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise ArgumentError(f"java.util.concurrent.ExecutionException: {java_text(error)}") from None
            state = "Dead"
        if state in ("Empty", "Dead"):
            plans[name] = _plan(groups, name, options)
            if options.has("execute"):
                groups.commit(name, plans[name])
        else:
            say_error(
                f"Assignments can only be reset if the group '{name}' is inactive, but the current state is {state}."
            )
            plans[name] = {}
    if options.has("export"):
        say(_exported(plans, has_group=len(options.values("group")) != 1))
    else:
        _print(plans)


def _print(plans: Mapping[str, Offsets]) -> None:
    lines: list[Sequence[object]] = [("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")]
    for group, offsets in plans.items():
        lines += [(group, *partition, offset) for partition, offset in sorted(offsets.items())]
    topics = [str(line[1]) for line in lines]
    widths = [max([15, *map(len, plans)]), max([15, *map(len, topics)]), 10]
    print_table(lines if plans else [], widths)


def _exported(plans: Mapping[str, Offsets], *, has_group: bool) -> str:
    return "".join(
        ",".join([*([_quoted(group)] if has_group else []), _quoted(topic), str(partition), str(offset)])
        + "\n"
        for group, offsets in plans.items()
        for (topic, partition), offset in sorted(offsets.items())
    )


def _quoted(text: str) -> str:
    if len(text) > _UNQUOTED_MAX or any(character < "-" for character in text):
        return '"' + text.replace('"', '""') + '"'
    return text


def _plan(groups: Groups, group: str, options: Options) -> Offsets:
    partitions = _scope(groups, group, options)
    _check_partitions(groups, partitions)
    scenario = next(iter(options.which_of(SCENARIOS)), None)
    plans: dict[str, Callable[[], Offsets]] = {
        "to-offset": lambda: _in_range(groups, dict.fromkeys(partitions, options.value("to-offset"))),
        "to-earliest": lambda: groups.offsets(partitions, EARLIEST),
        "to-latest": lambda: groups.offsets(partitions, LATEST),
        "shift-by": lambda: _shifted(groups, group, partitions, options.value("shift-by")),
        "to-datetime": lambda: _since(groups, partitions, milliseconds_of(options.value("to-datetime"))),
        "by-duration": lambda: _since(
            groups, partitions, now_ms() - duration_ms(options.value("by-duration"))
        ),
        "to-current": lambda: _current(groups, group, partitions),
        "from-file": lambda: _from_file(groups, group, options),
    }
    if scenario is None:
        listed = ", ".join(f"[{name}]" for name in SCENARIOS)
        raise UsageError(f"Option '[reset-offsets]' requires one of the following scenarios: [{listed}]")
    return plans[scenario]()


def _scope(groups: Groups, group: str, options: Options) -> list[TopicPartition]:
    if options.has("all-topics"):
        return [*groups.committed(group)]
    if options.has("topic"):
        partitions, topics = [], []
        for text in options.values("topic"):
            if ":" in text:
                partitions += named_partitions(text)
            else:
                topics.append(text)
        return [*partitions, *groups.leaders(topics)]
    if not options.has("from-file"):
        raise UsageError("One of the reset scopes should be defined: --all-topics, --topic.")
    return []


def named_partitions(text: str) -> list[TopicPartition]:
    """Of `topic:0,1`. UsageError."""
    topic, _, numbers = text.partition(":")
    if not topic or not numbers or ":" in numbers:
        raise UsageError(f"Invalid topic arg '{text}', expected topic name and partitions")
    found = []
    for number in numbers.split(","):
        try:
            found.append(TopicPartition(topic, whole_number(number)))
        except ArgumentError:
            raise UsageError(f"Invalid partition '{number}' specified in topic arg '{text}''") from None
    return found


def _check_partitions(groups: Groups, partitions: Collection[TopicPartition]) -> None:
    try:
        leaders = groups.leaders(partition.topic for partition in partitions)
    except ServerError as error:
        raise ArgumentError(f"java.util.concurrent.ExecutionException: {java_text(error)}") from None
    unknown = [str(each) for each in partitions if each not in leaders]
    if unknown:
        raise ArgumentError(f'The partitions "{",".join(unknown)}" do not exist')
    without = [str(each) for each in partitions if leaders[each] < 0]
    if without:
        raise ArgumentError(f'The partitions "{",".join(without)}" have no leader')


def _in_range(groups: Groups, wanted: Mapping[TopicPartition, int]) -> Offsets:
    """The offsets, or the nearest ones that the partitions have."""
    first, end = groups.offsets(wanted.keys(), EARLIEST), groups.offsets(wanted.keys(), LATEST)
    found = {}
    for each, offset in wanted.items():
        found[each] = max(first[each], min(offset, end[each]))
        if found[each] != offset:
            which = "higher than latest" if offset > end[each] else "lower than earliest"
            complain(
                f"New offset ({offset}) is {which} offset for topic partition {each}. Value will be set to {found[each]}"
            )
    return found


def _shifted(groups: Groups, group: str, partitions: Iterable[TopicPartition], number: int) -> Offsets:
    committed = groups.committed(group)
    wanted = {}
    for each in partitions:
        if each not in committed:
            raise UsageError(
                f"Cannot shift offset for partition {each} since there is no current committed offset"
            )
        wanted[each] = committed[each].offset + number
    return _in_range(groups, wanted)


def _since(groups: Groups, partitions: Collection[TopicPartition], timestamp_ms: int) -> Offsets:
    found = groups.offsets(partitions, timestamp_ms)
    late = [each for each, offset in found.items() if offset < 0]
    for each in sorted(late):
        say(
            f"\nWarn: Partition {each.partition} from topic {each.topic} is empty. Falling back to latest known offset."
        )
    return {**found, **groups.offsets(late, LATEST)}


def _current(groups: Groups, group: str, partitions: Iterable[TopicPartition]) -> Offsets:
    committed = groups.committed(group)
    without = [each for each in partitions if each not in committed]
    known = {each: committed[each].offset for each in partitions if each in committed}
    return {**known, **groups.offsets(without, LATEST)}


def _from_file(groups: Groups, group: str, options: Options) -> Offsets:
    """Lines `topic,partition,offset` of the one group, or `group,topic,partition,offset`."""
    file = options.value("from-file")
    try:
        lines = [*csv.reader(Path(file).read_text(encoding="utf-8").splitlines())]
    except OSError as error:
        raise ArgumentError(f"cannot read {file}: {error.strerror}") from None
    wanted: dict[str, Offsets] = {}
    for line in lines:
        if len(line) == 3 and len(options.values("group")) == 1:
            line = [group, *line]
        if len(line) != 4:
            raise ArgumentError(f"{file}: a line has {len(line)} fields")
        partition = TopicPartition(line[1], whole_number(line[2]))
        wanted.setdefault(line[0], {})[partition] = whole_number(line[3])
    if group not in wanted:
        say_error(f"No reset plan for group {group} found")
        return {}
    return _in_range(groups, wanted[group])


def milliseconds_of(text: str) -> int:
    """Since the epoch, of a time of ISO 8601 with milliseconds; in UTC unless it has a zone. ArgumentError, with Java's text."""
    if "T" not in text:
        raise ArgumentError(
            "java.text.ParseException: Error parsing timestamp. It does not contain a 'T' according to ISO8601 format"
        )
    if not re.search(r"T.*[-+Z]", text):
        text += "Z"
    found = _TIME.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        zone = {"Z": "+0000"}.get(found[1], found[1].replace(":", "").ljust(5, "0"))
        whole, _, fraction = text[: found.start(1)].partition(".")
        at = datetime.strptime(f"{whole}{zone}", "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        raise ArgumentError(f'java.text.ParseException: Unparseable date: "{text}"') from None
    return int(at.timestamp()) * 1000 + int(fraction)


def duration_ms(text: str) -> int:
    """Of PnDTnHnMnS. ArgumentError, with Java's text."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()[1:]):
        raise ArgumentError("Text cannot be parsed to a Duration")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups()[1:])
    length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    return int(length / timedelta(milliseconds=1)) * (-1 if found[1] == "-" else 1)
