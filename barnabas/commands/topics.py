"""`barnabas topics`: creates, lists, describes, changes and deletes topics, as kafka-topics.sh."""

from __future__ import annotations

import base64
import re
from typing import Any, Final
from uuid import UUID

from barnabas.commands.connection import CONNECTION, Cluster, ServerError, raise_for, reason_of
from barnabas.commands.options import ArgumentError, Option, Options, Tool, UsageError, whole_number
from barnabas.commands.terminal import complain, or_null, say
from barnabas.wire.errors import ErrorCode

_ACTIONS: Final = ("create", "list", "alter", "describe", "delete")
_REPORTS: Final = (
    "under-replicated-partitions",
    "under-min-isr-partitions",
    "at-min-isr-partitions",
    "unavailable-partitions",
)
_CONFIGS_HINT: Final = (
    " (To alter topic configurations, the kafka-configs tool can be used.)"  # part of Kafka's messages
)
_SHORT_MAX: Final = 32767
_PARTITIONS_A_REQUEST: Final = 2000
_DEFAULT_CONFIG: Final = 5  # a source of DescribeConfigs

_OPTIONS: Final = (
    *CONNECTION,
    Option("list", "List the topics."),
    Option("create", "Create a topic."),
    Option("delete", "Delete the topics of --topic."),
    Option("alter", "Raise the number of partitions of the topics of --topic."),
    Option("describe", "Describe the topics of --topic, or all."),
    Option(
        "topic",
        "The topic; with other actions than --create a regular expression that matches whole names.",
        "TOPIC",
    ),
    Option("topic-id", "The id of the topic to describe.", "ID"),
    Option("config", "A config of the new topic; may be repeated.", "NAME=VALUE"),
    Option("delete-config", "Has no effect since Kafka 4.0.", "NAME"),
    Option("partitions", "How many partitions a new or altered topic has.", "NUMBER", int),
    Option("replication-factor", "How many replicas the new partitions have.", "NUMBER", int),
    Option(
        "replica-assignment",
        "The brokers of each partition's replicas, the leader first: 1:2,2:3 for two partitions.",
        "BROKER:BROKER,...",
    ),
    Option("under-replicated-partitions", "Describe those whose in-sync replicas are not all replicas."),
    Option("unavailable-partitions", "Describe those without a leader."),
    Option(
        "under-min-isr-partitions", "Describe those with fewer in-sync replicas than min.insync.replicas."
    ),
    Option("at-min-isr-partitions", "Describe those with min.insync.replicas in-sync replicas."),
    Option("topics-with-overrides", "Describe topics with configs of their own, without their partitions."),
    Option("if-exists", "With --alter, --delete and --describe: no error when there is no such topic."),
    Option("if-not-exists", "With --create: no error when the topic exists."),
    Option("exclude-internal", "With --list and --describe: without internal topics."),
    Option(
        "partition-size-limit-per-response",
        "How many partitions a response to --describe has at most.",
        "NUMBER",
        int,
    ),
)


def _run(options: Options) -> int:
    _check(options)
    with Cluster(options) as cluster:
        try:
            {
                "create": _create,
                "list": _list,
                "alter": _alter,
                "describe": _describe,
                "delete": _delete,
            }[options.which_of(_ACTIONS)[0]](cluster, options)
        except (ServerError, ArgumentError, UsageError, cluster.errors) as error:
            say(f"Error while executing topic command : {reason_of(error)}")
            return 1
    return 0


def _check(options: Options) -> None:
    """The combinations that Kafka's tool refuses."""
    if len(options.which_of(_ACTIONS)) != 1:
        raise UsageError(
            "Command must include exactly one action: --list, --describe, --create, --alter or --delete"
        )
    if options.has("delete-config"):
        complain(
            "delete-config option is no longer supported and deprecated since version 4.0. The config will be fully removed in "
            "future releases."
        )
    if options.has("describe") and options.has("if-exists"):
        if not options.which_of(("topic", "topic-id")):
            raise UsageError("--topic or --topic-id is required to describe a topic")
        if options.has("topic") and options.has("topic-id"):
            say(
                "Only topic id will be used when both --topic and --topic-id are specified and topicId is not Uuid.ZERO_UUID"
            )
    if not options.which_of(("list", "describe")):
        options.require("topic")
    if options.has("alter"):
        if options.has("config"):
            raise UsageError(
                f'Option combination "[bootstrap-server],[config]" can\'t be used with option "[alter]"{_CONFIGS_HINT}'
            )
        options.require("partitions")
    for name, actions in (
        ("config", ("alter", "create")),
        ("partitions", ("alter", "create")),
        ("replication-factor", ("create",)),
        ("replica-assignment", ("alter", "create")),
        *((report, ("describe",)) for report in (*_REPORTS, "topics-with-overrides")),
        ("if-exists", ("alter", "delete", "describe")),
        ("if-not-exists", ("create",)),
        ("exclude-internal", ("list", "describe")),
    ):
        options.refuse_with(name, [action for action in _ACTIONS if action not in actions])
    if options.has("create"):
        options.refuse_with("replica-assignment", ("partitions", "replication-factor"))
    options.refuse_with("topics-with-overrides", _REPORTS)


def _create(cluster: Cluster, options: Options) -> None:
    name = options.value("topic")
    configs = _configs(options.values("config"))
    assignments = _assignments(options)
    if "." in name or "_" in name:
        say(
            "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could collide. To avoid "
            "issues it is best to use either, but not both."
        )
    partitions, factor = options.value("partitions"), options.value("replication-factor")
    if factor is not None and not 1 <= factor <= _SHORT_MAX:
        raise ArgumentError(f"The replication factor must be between 1 and {_SHORT_MAX} inclusive")
    if partitions is not None and partitions < 1:
        raise ArgumentError("The partitions must be greater than 0")
    topic = {
        "num_partitions": -1 if partitions is None else partitions,
        "replication_factor": -1 if factor is None else factor,
        "assignments": assignments,
        "configs": configs,
    }
    (result,) = cluster.admin.create_topics({name: topic}, raise_errors=False)["topics"]
    code = result["error_code"]
    if code == ErrorCode.TOPIC_ALREADY_EXISTS and options.has("if-not-exists"):
        return
    raise_for(code, result["error_message"])
    say(f"Created topic {name}.")


def _configs(texts: list[str]) -> dict[str, str]:
    configs = {}
    for text in texts:
        parts = re.split(r"\s*=\s*", text)
        while parts and not parts[-1]:
            parts.pop()
        if len(parts) != 2:
            raise ArgumentError(
                'requirement failed: Invalid topic config: all configs to be added must be in the format "key=val".'
            )
        configs[parts[0].strip()] = parts[1].strip()
    return configs


def _assignments(options: Options) -> dict[int, list[int]]:
    """The brokers of each partition. ArgumentError."""
    text = options.value("replica-assignment")
    if not text:
        return {}
    assignments: dict[int, list[int]] = {}
    for partition, part in enumerate(text.split(",")):
        brokers = [whole_number(each.strip()) for each in part.split(":")]
        twice = [broker for broker in dict.fromkeys(brokers) if brokers.count(broker) > 1]
        if twice:
            raise ArgumentError(
                f"Partition replica lists may not contain duplicate entries: {','.join(map(str, twice))}"
            )
        assignments[partition] = brokers
        if len(brokers) != len(assignments[0]):
            raise ArgumentError(f"Partition {partition} has different replication factor: {brokers}")
    return assignments


def _list(cluster: Cluster, options: Options) -> None:
    say("\n".join(_matching(cluster, options)))


def _matching(cluster: Cluster, options: Options) -> list[str]:
    """The names of the topics that --topic matches, in order."""
    text = options.value("topic")
    pattern = None if text is None else topic_pattern(text)
    return sorted(
        topic["name"]
        for topic in cluster.topics()
        if not (topic["is_internal"] and options.has("exclude-internal"))
        and (pattern is None or pattern.fullmatch(topic["name"]))
    )


def topic_pattern(text: str) -> re.Pattern[str]:
    """The names of Kafka's --topic and --include: `,` is `|`, blanks and quotes around it do not count. ArgumentError."""
    expression = text.strip().replace(",", "|").replace(" ", "").strip("\"'")
    try:
        return re.compile(expression)
    except re.error:
        raise ArgumentError(f"{expression} is an invalid regex.") from None


def _existing(cluster: Cluster, options: Options) -> list[str]:
    """As `_matching`; ArgumentError when there is none and that is no case of --if-exists."""
    names = _matching(cluster, options)
    if not names and options.value("topic") and not options.has("if-exists"):
        raise ArgumentError(f"Topic '{options.value('topic')}' does not exist as expected")
    return names


def _alter(cluster: Cluster, options: Options) -> None:
    assignments = [*_assignments(options).values()]
    names = _existing(cluster, options)
    if not names:
        return
    count = options.value("partitions")
    wanted: dict[str, Any] = dict.fromkeys(names, count)
    if assignments:
        for topic in cluster.topics(names):
            added = assignments[len(topic["partitions"]) :]
            wanted[topic["name"]] = {"count": count, "assignments": added}
    for result in cluster.admin.create_partitions(wanted, raise_errors=False).results:
        raise_for(result.error_code, result.error_message)


def _delete(cluster: Cluster, options: Options) -> None:
    names = _existing(cluster, options)
    if names:
        for result in cluster.admin.delete_topics(names, raise_errors=False)["topics"]:
            raise_for(result["error_code"], result.get("error_message"))


def _describe(cluster: Cluster, options: Options) -> None:
    from barnabas.commands.configs import entries_of  # the other actions start without it

    topics = _described_by_id(cluster, options)
    if topics is None:
        topics = _described(cluster, _existing(cluster, options), options)
    if not topics:
        return
    configs = entries_of(cluster, "topics", [topic["name"] for topic in topics])
    live = {broker["broker_id"] for broker in cluster.admin.describe_cluster()["brokers"]}
    moves = _reassignments(cluster)
    reports = options.which_of(_REPORTS)
    for topic in topics:
        name = topic["name"]
        own = [entry for entry in configs[name] if entry.config_source != _DEFAULT_CONFIG]
        partitions = sorted(topic["partitions"], key=lambda each: int(each["partition_index"]))
        if not reports and (own or not options.has("topics-with-overrides")):
            listed = ",".join(f"{entry.name}={or_null(entry.value)}" for entry in own)
            parts = [f"Topic: {name}"]
            if (identity := UUID(topic["topic_id"])).int:
                parts.append(f"TopicId: {id_text(identity)}")
            parts += [
                f"PartitionCount: {len(partitions)}",
                f"ReplicationFactor: {_factor(partitions[0], moves.get((name, 0)))}",
                f"Configs: {listed}",
            ]
            say("\t".join(parts))
        if options.has("topics-with-overrides"):
            continue
        minimum = next(int(entry.value) for entry in configs[name] if entry.name == "min.insync.replicas")
        for partition in partitions:
            move = moves.get((name, partition["partition_index"]))
            if not reports or any(_reported(each, partition, move, minimum, live) for each in reports):
                say(_partition_line(name, partition, move))


def _described_by_id(cluster: Cluster, options: Options) -> list[dict[str, Any]] | None:
    """The topic of --topic-id; None without one."""
    text = options.value("topic-id")
    if text is None or not (wanted := _id_of(text)).int:
        return None
    known = any(
        UUID(topic["topic_id"]) == wanted
        for topic in cluster.topics()
        if not (topic["is_internal"] and options.has("exclude-internal"))
    )
    if not known:
        if options.has("if-exists"):
            return []
        raise ArgumentError(f"TopicId '{text}' does not exist as expected")
    # Metadata, the request for this, has no eligible leader replicas.
    return cluster.topics([wanted])  # type: ignore[list-item]  # kafka-python takes ids beside names


def _id_of(text: str) -> UUID:
    try:
        return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except ValueError:
        raise ArgumentError(
            f"Input string `{text}` decoded as {len(text) * 3 // 4} bytes, which is not equal to the expected 16 bytes of a "
            f"base64-encoded UUID"
        ) from None


def id_text(identity: UUID) -> str:
    """As Kafka writes it, in base64."""
    return base64.urlsafe_b64encode(identity.bytes).decode().rstrip("=")


def _described(cluster: Cluster, names: list[str], options: Options) -> list[dict[str, Any]]:
    """The topics with their partitions, some thousands a request."""
    from kafka.errors import IncompatibleBrokerVersion
    from kafka.protocol.admin import DescribeTopicPartitionsRequest

    topics: dict[str, dict[str, Any]] = {}
    cursor = None
    limit = options.value("partition-size-limit-per-response") or _PARTITIONS_A_REQUEST
    while names:
        request = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
        try:
            response = cluster.ask(request)
        except IncompatibleBrokerVersion:  # before Kafka 3.8
            return cluster.topics(names)
        for topic in response.to_dict()["topics"]:
            raise_for(topic["error_code"])
            if topic["name"] in topics:  # its partitions go on
                topics[topic["name"]]["partitions"] += topic["partitions"]
            else:
                topics[topic["name"]] = topic
        end = response.next_cursor
        if end is None:
            break
        cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=end.topic_name, partition_index=end.partition_index
        )
        names = [name for name in names if name >= end.topic_name]
    return [*topics.values()]


def _reassignments(cluster: Cluster) -> dict[tuple[str, int], dict[str, list[int]]]:
    """The partitions whose replicas move; none for a client that may not ask."""
    from kafka.errors import ClusterAuthorizationFailedError, IncompatibleBrokerVersion

    try:
        found = cluster.admin.list_partition_reassignments()
    except (ClusterAuthorizationFailedError, IncompatibleBrokerVersion):
        return {}
    return {(each.topic, each.partition): move for each, move in found.items()}


def _factor(partition: dict[str, Any], move: dict[str, list[int]] | None) -> int:
    replicas = partition["replica_nodes"]
    if move and {*move["adding_replicas"], *move["removing_replicas"]} & {*replicas}:
        return len(move["replicas"]) - len(move["adding_replicas"])
    return len(replicas)


def _reported(
    report: str, partition: dict[str, Any], move: dict[str, list[int]] | None, minimum: int, live: set[int]
) -> bool:
    in_sync, leader = len(partition["isr_nodes"]), partition["leader_id"]
    match report:
        case "under-replicated-partitions":
            return _factor(partition, move) > in_sync
        case "unavailable-partitions":
            return leader not in live
        case "under-min-isr-partitions":
            return leader < 0 or in_sync < minimum
    return in_sync == minimum


def _partition_line(topic: str, partition: dict[str, Any], move: dict[str, list[int]] | None) -> str:
    leader = partition["leader_id"]
    parts = [
        f"\tTopic: {topic}",
        f"Partition: {partition['partition_index']}",
        f"Leader: {'none' if leader < 0 else leader}",
        f"Replicas: {_ids(partition['replica_nodes'])}",
        f"Isr: {_ids(partition['isr_nodes'])}",
    ]
    if move:
        parts += [
            f"Adding Replicas: {_ids(move['adding_replicas'])}",
            f"Removing Replicas: {_ids(move['removing_replicas'])}",
        ]
    for label, name in (("Elr", "eligible_leader_replicas"), ("LastKnownElr", "last_known_elr")):
        nodes = partition.get(name)
        parts.append(f"{label}: {'N/A' if nodes is None else _ids(nodes)}")
    return "\t".join(parts)


def _ids(nodes: list[int]) -> str:
    return ",".join(map(str, nodes))


TOOL: Final = Tool(
    "topics",
    "kafka-topics.sh",
    "Create, list, describe, change and delete topics.",
    _OPTIONS,
    _run,
)
