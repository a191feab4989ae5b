"""`barnabas groups`: lists, describes and deletes consumer groups and sets their offsets, as kafka-consumer-groups.sh.

As with Kafka's tool an error of the cluster is a line on standard output, and the exit code is 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from barnabas.commands.connection import CONNECTION, Cluster, ServerError, java_text, reason_of
from barnabas.commands.group_requests import LATEST, Committed, Group, Groups, Member, TopicPartition
from barnabas.commands.group_resets import SCENARIOS, named_partitions, reset
from barnabas.commands.options import ArgumentError, Option, Options, Tool, UsageError
from barnabas.commands.terminal import complain, print_table, row, say, say_error

_ACTIONS: Final = ("list", "describe", "delete", "reset-offsets", "delete-offsets", "validate-regex")
_SCOPES: Final = ("group", "all-groups")
_VIEWS: Final = ("members", "offsets", "state")
_STATES: Final = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Empty",
    "Assigning",
    "Reconciling",
)
_TYPES: Final = ("Classic", "Consumer")
_NONE: Final = "-"  # in a column

_OPTIONS: Final = (
    *CONNECTION,
    Option("list", "List the groups."),
    Option("describe", "Describe groups: their offsets, unless --members or --state."),
    Option("delete", "Delete groups without members."),
    Option(
        "reset-offsets", "Set the offsets of groups without members; nothing is changed without --execute."
    ),
    Option("delete-offsets", "Delete offsets of a group, of the topics of --topic."),
    Option("validate-regex", "Say whether it is a regular expression.", "REGEX"),
    Option("group", "The group; with most actions it may be repeated.", "GROUP"),
    Option("all-groups", "All groups."),
    Option("topic", "A topic, or topic:0,1 for some of its partitions; may be repeated.", "TOPIC"),
    Option("all-topics", "All topics that the group has offsets of."),
    Option("members", "Describe the members.", only_with=("describe",)),
    Option("offsets", "Describe the offsets.", only_with=("describe",)),
    Option(
        "state",
        "Describe the state; with --list, list the states, or only groups in these: stable,empty.",
        "STATES",
        is_value_optional=True,
        only_with=("describe", "list"),
    ),
    Option(
        "type",
        "With --list, list the types, or only groups of these: classic,consumer.",
        "TYPES",
        is_value_optional=True,
        only_with=("list",),
    ),
    Option("verbose", "Describe more.", only_with=("describe",)),
    Option("timeout", "How long to wait for coordinators.", "MS", int, 30000),
    Option("dry-run", "Show what --reset-offsets would set."),
    Option("execute", "Set the offsets."),
    Option("export", "Show the offsets as CSV."),
    Option("to-offset", "This offset.", "OFFSET", int),
    Option("from-file", "Those of a CSV file, as --export writes it.", "FILE"),
    Option("to-datetime", "That of the first record since then: YYYY-MM-DDThh:mm:ss.sss", "TIME"),
    Option("by-duration", "That of the first record of the last ...: PnDTnHnMnS", "DURATION"),
    Option("to-earliest", "The first offset."),
    Option("to-latest", "The end."),
    Option("to-current", "The committed offset."),
    Option("shift-by", "The committed offset and so many; fewer, with a negative number.", "NUMBER", int),
)


def _run(options: Options) -> int:
    _check(options)
    if options.has("validate-regex"):
        return _validate_regex(options.value("validate-regex"))
    with Cluster(options) as cluster:
        groups = Groups(cluster, options.value("timeout"))
        action = options.which_of(_ACTIONS)[0]
        try:
            if action == "list":
                _list(groups, options)
            elif action == "describe":
                _describe(groups, options)
            elif action == "delete":
                _delete(groups, _chosen(groups, options))
            elif action == "reset-offsets":
                reset(groups, _chosen(groups, options), options)
            else:
                _delete_offsets(groups, options)
        except (ServerError, ArgumentError, cluster.errors) as error:
            say_error(f"Executing consumer group command failed due to {reason_of(error)}")
    return 0


def _check(options: Options) -> None:
    """The combinations that Kafka's tool refuses."""
    if options.has("describe"):
        _need_a_scope(options, "describe")
        if len(options.which_of(_VIEWS)) > 1:
            raise UsageError(
                "Option [describe] takes at most one of these options: [members], [offsets], [state]"
            )
        if options.value("state") is not None:
            raise UsageError("Option [describe] does not take a value for [state]")
    if options.has("delete"):
        _need_a_scope(options, "delete")
        if options.has("topic"):
            raise UsageError(
                "The consumer does not support topic-specific offset deletion from a consumer group."
            )
    if options.has("delete-offsets") and len(options.which_of(("group", "topic"))) < 2:
        raise UsageError("Option [delete-offsets] takes the following options: [group], [topic]")
    if options.has("reset-offsets"):
        if options.has("dry-run") and options.has("execute"):
            raise UsageError("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
        if not options.which_of(("dry-run", "execute")):
            complain(
                "WARN: No action will be performed as the --execute option is missing. In version 5.0, this command will require "
                "either --dry-run or --execute to be specified. You should add the --dry-run option explicitly if you are "
                "scripting this command and want to keep the current default behavior without prompting."
            )
        _need_a_scope(options, "reset-offsets")
        for scenario in SCENARIOS:
            options.refuse_with(scenario, SCENARIOS)
    options.refuse_with("group", ("all-groups", "list"))
    options.refuse_with("topic", ("list", "describe"))
    if len(options.which_of(_ACTIONS)) != 1:
        raise UsageError(
            f"Command must include exactly one action: {', '.join(f'--{name}' for name in _ACTIONS)}"
        )


def _need_a_scope(options: Options, action: str) -> None:
    if not options.which_of(_SCOPES):
        raise UsageError(f"Option [{action}] takes one of these options: [group], [all-groups]")


def _validate_regex(text: str) -> int:
    try:
        re.compile(text)
    except re.error as error:
        say(f"The regular expression `{text}` is invalid: {error.msg}.")
    else:
        say(f"The regular expression `{text}` is valid.")
    return 0


def _chosen(groups: Groups, options: Options) -> list[str]:
    if options.has("all-groups"):
        return [group["group_id"] for group in groups.listed()]
    return options.values("group")


def _list(groups: Groups, options: Options) -> None:
    columns = [("GROUP", "group_id")]
    wanted = {}
    for option, key, allowed in (("type", "group_type", _TYPES), ("state", "group_state", _STATES)):
        if options.has(option):
            columns.append((option.upper(), key))
            wanted[key] = _names(option, options.value(option) or "", allowed)
    listed = groups.listed()
    if not wanted:
        for group in listed:
            say(group["group_id"])
        return
    listed = [
        group
        for group in listed
        if all(not names or group[key].lower() in names for key, names in wanted.items())
    ]
    widths = [max([15, *(len(group["group_id"]) for group in listed)]) + 10, *([20] * len(wanted))]
    say(row([title for title, _ in columns], widths))
    for group in listed:
        cells = [group["group_id"], *(_shown(key, group[key]) for _, key in columns[1:])]
        say(row(cells, widths))


def _names(option: str, text: str, allowed: Sequence[str]) -> set[str]:
    """The lower-case names in a list. UsageError for one that is not allowed."""
    names = {each.strip().lower() for each in text.split(",") if text}
    if not names <= {each.lower() for each in allowed}:
        kind = "state" if option == "state" else "types"
        raise UsageError(f"Invalid {kind} list '{text}'. Valid {option}s are: {', '.join(allowed)}")
    return names


def _shown(key: str, text: str) -> str:
    return text.capitalize() if key == "group_type" else text


def _describe(groups: Groups, options: Options) -> None:
    try:
        found = [groups.described(group) for group in sorted({*_chosen(groups, options)})]
    except (ServerError, groups.cluster.errors) as error:
        raise ArgumentError(java_text(error)) from None
    is_verbose = options.has("verbose")
    if options.has("members"):
        for group in found:
            _print_members(group, is_verbose=is_verbose)
    elif options.has("state"):
        for group in found:
            _print_state(group, is_verbose=is_verbose)
    else:
        views = [(group, _offset_rows(groups, group)) for group in found]
        for group, rows in views:
            _print_offsets(group, rows, is_verbose=is_verbose)


def _is_shown(group: Group, rows: int) -> bool:
    """Whether there are rows to print; notes on the group's state go to standard error."""
    if group.state == "Dead":
        say_error(f"Consumer group '{group.id}' does not exist.")
    elif group.state == "Empty":
        complain(f"\nConsumer group '{group.id}' has no active members.")
    elif group.state != "Stable":
        complain(f"\nWarning: Consumer group '{group.id}' is rebalancing.")
    return group.state != "Dead" and rows > 0


class _OffsetRow(NamedTuple):
    """One partition; None where nothing is known."""

    partition: TopicPartition
    committed: Committed | None
    end: int | None
    member: Member | None


def _offset_rows(groups: Groups, group: Group) -> list[_OffsetRow]:
    """The partitions of each member, those with most first, then those that have offsets and no member."""
    committed = groups.committed(group.id)
    assigned = [partition for member in group.members for partition in member.assignment]
    everything = {*assigned, *committed}
    leaders = groups.leaders(partition.topic for partition in everything)
    with_leader = [partition for partition in everything if leaders.get(partition, 0) >= 0]
    ends = groups.offsets(with_leader, LATEST)

    def rows(partitions: Iterable[TopicPartition], member: Member | None) -> list[_OffsetRow]:
        return [_OffsetRow(each, committed.get(each), ends.get(each), member) for each in sorted(partitions)]

    found = []
    for member in sorted(group.members, key=lambda each: -len(each.assignment)):
        found += rows(member.assignment, member)
    return found + rows({*committed} - {*assigned}, None)


def _print_offsets(group: Group, rows: Sequence[_OffsetRow], *, is_verbose: bool) -> None:
    if not _is_shown(group, len(rows)):
        return
    titles = ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST"]
    lines = [[*titles, "CLIENT-ID"]]
    for each in rows:
        offset = None if each.committed is None else each.committed.offset
        lag = None if offset is None or each.end is None else each.end - offset
        member = each.member
        people = (_NONE,) * 3 if member is None else (member.id, member.host, member.client_id)
        cells = (*each.partition, _cell(offset), _cell(each.end), _cell(lag), *people)
        lines.append([group.id, *map(str, cells)])
    widths = [15, 15, 10, 15, 15, 15, 15, 15]
    for column in (0, 1, 6, 7):
        widths[column] = max(15, *(len(line[column]) for line in lines))
    if is_verbose:
        widths.insert(3, 15)
        epochs = [each.committed.leader_epoch if each.committed else None for each in rows]
        for line, cell in zip(lines, ["LEADER-EPOCH", *map(_cell, epochs)], strict=True):
            line.insert(3, cell)
    print_table(lines, widths)


def _cell(value: object) -> str:
    return _NONE if value is None else str(value)


def _print_members(group: Group, *, is_verbose: bool) -> None:
    members = group.members
    is_shown = _is_shown(group, len(members))
    has_instances = any(member.instance for member in members)
    titles = ["GROUP", "CONSUMER-ID", *(["GROUP-INSTANCE-ID"] if has_instances else []), "HOST", "CLIENT-ID"]
    lines = [[*titles, "#PARTITIONS"]]
    for member in members:
        instance = [member.instance] if has_instances else []
        count = str(len(member.assignment))
        lines.append([group.id, member.id, *instance, member.host, member.client_id, count])
    least = [15, 15, *([17] if has_instances else []), 15, 15]
    widths = [
        max(width, *(len(line[column]) for line in lines[1:])) if is_shown else width
        for column, width in enumerate(least)
    ]
    widths.append(15)
    more = _verbose_cells(group) if is_verbose else [[] for _ in lines]
    more_widths = [15, max([20, *(len(cells[1]) for cells in more[1:])]), 15] if is_verbose else []
    if is_verbose:
        more_widths.append(max([20, *(len(cells[3]) for cells in more[1:])]))
    say()
    for line, cells in zip(lines, more, strict=True):
        say(f"{row(line, widths)} {row(cells, more_widths)}")


def _verbose_cells(group: Group) -> list[list[str]]:
    """The title and a row for each member; whether one is upgraded stands there in a group with members of both protocols."""
    kinds = {member.is_upgraded for member in group.members}
    is_mixed = {True, False} <= kinds
    titles = ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
    lines = [[*titles, *(["UPGRADED"] if is_mixed else [])]]
    for member in group.members:
        upgraded = [str(member.is_upgraded).lower()] if is_mixed else []
        lines.append(
            [
                _cell(member.epoch),
                _assignment_text(member.assignment),
                _cell(group.assignment_epoch),
                _assignment_text(member.target or ()),
                *upgraded,
            ]
        )
    return lines


def _assignment_text(partitions: Iterable[TopicPartition]) -> str:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return ";".join(f"{topic}:{','.join(map(str, each))}" for topic, each in topics.items()) or _NONE


def _print_state(group: Group, *, is_verbose: bool) -> None:
    if not _is_shown(group, 1):
        return
    titles = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"]
    cells = [group.id, group.coordinator, group.assignor or _NONE, group.state]
    widths = [max(15, len(group.id)), max(25, len(group.coordinator)), 20, 20]
    if is_verbose:
        titles += ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
        cells += [_cell(group.epoch), _cell(group.assignment_epoch)]
        widths += [15, 25]
    print_table([[*titles, "#MEMBERS"], [*cells, len(group.members)]], widths)


def _delete(groups: Groups, names: Sequence[str]) -> None:
    failed = {}
    for name in dict.fromkeys(names):
        try:
            groups.delete(name)
        except (ServerError, groups.cluster.errors) as error:
            failed[name] = java_text(error)
    gone = ", ".join(f"'{name}'" for name in dict.fromkeys(names) if name not in failed)
    if not failed:
        say(f"Deletion of requested consumer groups ({gone}) was successful.")
        return
    say_error("Deletion of some consumer groups failed:")
    for name, text in failed.items():
        say(f"* Group '{name}' could not be deleted due to: {text}")
    if gone:
        say(f"\nThese consumer groups were deleted successfully: {gone}")


def _delete_offsets(groups: Groups, options: Options) -> None:
    group = options.value("group")
    results: dict[TopicPartition, str | None] = {}
    wanted = []
    for text in options.values("topic"):
        if ":" in text:
            wanted += named_partitions(text)
            continue
        try:
            wanted += groups.leaders([text])
        except ServerError as error:
            results[TopicPartition(text, -1)] = java_text(error)
    try:
        codes = groups.delete_offsets(group, wanted)
    except (ServerError, groups.cluster.errors) as error:
        say_error(reason_of(error))
        results.update(dict.fromkeys(wanted, java_text(error)))
    else:
        failed = {each: java_text(ServerError(code)) for each, code in codes.items() if code}
        results.update({each: failed.get(each) for each in wanted})
        if failed:
            say_error("Encountered some partition-level error, see the follow-up details.")
        else:
            say(f"Request succeeded for deleting offsets from group {group}.")
    widths = [max([15, *(len(each.topic) for each in results)]), 10, 15]
    lines: list[list[object]] = [["TOPIC", "PARTITION", "STATUS"]]
    for each in sorted(results, key=lambda one: f"{one.topic}{one.partition}"):
        number = _NONE if each.partition < 0 else each.partition
        error_text = results[each]
        status = "Successful" if error_text is None else f"Error: {error_text}"
        lines.append([each.topic, number, status])
    print_table(lines, widths)


TOOL: Final = Tool(
    "groups",
    "kafka-consumer-groups.sh",
    "List, describe and delete consumer groups, and set their offsets.",
    _OPTIONS,
    _run,
)
