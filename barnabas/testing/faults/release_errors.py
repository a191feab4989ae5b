"""What older releases of Kafka answered otherwise within a version of an API that this broker serves, too.

A release never sends an error that came later. Most errors that came with a version of an API are sent from that version on
by the broker itself (MEMBER_ID_REQUIRED, FENCED_LEADER_EPOCH, OFFSET_NOT_AVAILABLE, THROTTLING_QUOTA_EXCEEDED, ...); what
is left is translated here. Configs of topics that a release did not know are refused in its name.

Sources: the codes are those of the enum Errors in each release's kafka-clients jar; the rest stands in the KIPs named below.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.testing.faults.failures import failed, merged, without
from barnabas.testing.faults.shapes import error_field, list_fields
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.testing.faults.call import Call
    from barnabas.testing.faults.shapes import Topic

# The last code that a release knew: codes are given in turn, none has ever been taken back.
LAST_CODES: Final = {
    "0.11": 55, "1.0": 60, "1.1": 71, "2.0": 72, "2.1": 76, "2.2": 81, "2.3": 82, "2.4": 87, "2.5": 88, "2.6": 88,
    "2.7": 96, "2.8": 104, "3.0": 105, "3.1": 106, "3.2": 106, "3.3": 108, "3.4": 108, "3.5": 112, "3.6": 113,
    "3.7": 119, "3.8": 120, "3.9": 127, "4.0": 129, "4.1": 133, "4.2": 133, "4.3": 133,
}  # fmt: skip
# The error that releases sent before there was this one; UNKNOWN_SERVER_ERROR where there is no entry.
BEFORE: Final = {
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_LEADER_OR_FOLLOWER,  # KIP-112
    ErrorCode.UNKNOWN_PRODUCER_ID: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.LISTENER_NOT_FOUND: ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.TOPIC_DELETION_DISABLED: ErrorCode.INVALID_REQUEST,  # KIP-322
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,  # KIP-320
    ErrorCode.UNKNOWN_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OFFSET_NOT_AVAILABLE: ErrorCode.LEADER_NOT_AVAILABLE,  # KIP-207
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ErrorCode.ELECTION_NOT_NEEDED: ErrorCode.NONE,  # KIP-460
    ErrorCode.INVALID_RECORD: ErrorCode.CORRUPT_MESSAGE,  # KIP-467
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,  # KIP-588
    ErrorCode.UNKNOWN_TOPIC_ID: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # KIP-516
    ErrorCode.INCONSISTENT_TOPIC_ID: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
# Configs of topics that came after 0.11 and are still there.
CONFIGS_SINCE: Final = {
    "max.compaction.lag.ms": "2.3",  # KIP-354
    "local.retention.bytes": "3.6",  # KIP-405
    "local.retention.ms": "3.6",
    "remote.storage.enable": "3.6",
    "message.timestamp.after.max.ms": "3.6",  # KIP-937
    "message.timestamp.before.max.ms": "3.6",
    "compression.gzip.level": "3.8",  # KIP-390
    "compression.lz4.level": "3.8",
    "compression.zstd.level": "3.8",
    "remote.log.copy.disable": "3.9",  # KIP-950
    "remote.log.delete.on.disable": "3.9",
}
ZSTD_SINCE: Final = "2.1"  # as a value of compression.type (KIP-110)
DEFAULTS_SINCE: Final = "2.4"  # CreateTopics with -1 for the broker's defaults (KIP-464)
CREATE_TOPICS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 19, 33, 44
_TOPIC_RESOURCE: Final = 2
_DELETE: Final = 1  # IncrementalAlterConfigs

Refusals = dict[str, tuple[ErrorCode, str]]  # by topic


def order(release: str) -> tuple[int, ...]:
    """To compare releases by."""
    return tuple(map(int, release.split(".")))


# -- errors


def translate(answer: Any, last_code: int) -> bool:
    """Put errors in an answer's fields that a release knows, in place of later ones. Whether there were any."""
    name = error_field(type(answer))
    found = False
    if name is not None and getattr(answer, name) > last_code:
        before = getattr(answer, name)
        while before > last_code:
            before = BEFORE.get(before, ErrorCode.UNKNOWN_SERVER_ERROR)
        setattr(answer, name, int(before))
        if getattr(answer, "error_message", None) is not None and before == ErrorCode.NONE:
            answer.error_message = None
        found = True
    for field in list_fields(type(answer)):
        for element in (getattr(answer, field.name) or ()) if field.is_struct else ():
            found = translate(element, last_code) or found
    return found


# -- requests


def refuse_later_ways(call: Call, release: str) -> bytes | None:
    """The answer to a request of which nothing would have been done in that release; None: it is to be served, without what
    would have been refused."""
    if call.api_key == CREATE_TOPICS:
        refusals = _new_topics(call, release)
    elif call.api_key in (ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS):
        refusals = _configs(call, release)
    else:
        return None
    if not refusals:
        return None

    def is_refused(topic: Topic | None, _partition: int | None) -> bool:
        return topic in refusals

    failures = None
    for refused, (error, text) in refusals.items():
        one = failed(call.api_key, call.request, error, 1, partial(_is, refused), text)
        failures = one if failures is None else merged(call.api_key, failures, one)
    rest = without(call.request, is_refused)
    if rest is None:
        return call.encode(failures)
    call.replace(rest)
    call.change = lambda answer: merged(call.api_key, answer, failures)
    return None


def _is(name: str, topic: Topic | None, _partition: int | None) -> bool:
    return topic == name


def _new_topics(call: Call, release: str) -> Refusals:
    found: Refusals = {}
    known = call.topics_known()
    for topic in call.request.topics:
        if topic.name in known:
            continue
        reason = _unknown_config(topic.configs, release)
        if reason is None and not topic.assignments and order(release) < order(DEFAULTS_SINCE):
            if topic.num_partitions == -1:
                reason = ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0."
            elif topic.replication_factor == -1:
                reason = ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0."
        if reason is not None:
            found[topic.name] = reason
    return found


def _configs(call: Call, release: str) -> Refusals:
    found: Refusals = {}
    for resource in call.request.resources:
        if resource.resource_type == _TOPIC_RESOURCE:
            reason = _unknown_config(resource.configs, release)
            if reason is not None:
                found[resource.resource_name] = reason
    return found


def _unknown_config(configs: Any, release: str) -> tuple[ErrorCode, str] | None:
    for config in configs:
        if getattr(config, "config_operation", None) == _DELETE:
            continue
        since = CONFIGS_SINCE.get(config.name)
        if since is not None and order(release) < order(since):
            return ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {config.name}"
        if (config.name, config.value) == ("compression.type", "zstd") and order(release) < order(ZSTD_SINCE):
            return (
                ErrorCode.INVALID_CONFIG,
                "Invalid value zstd for configuration compression.type",
            )
    return None
