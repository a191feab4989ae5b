"""Answers to requests that come in place of a SaslAuthenticate: ILLEGAL_SASL_STATE, in the form of each API.

As Kafka's (AbstractRequest.getErrorResponse), most of them name what the request names, each with the error: topics and their
partitions, groups and so on. Which lists of the response come from which of the request stands in tables here, and so do the fields
that have other values than the schema's defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast, get_args

import msgspec

from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import Buffer
from barnabas.wire.registry import API_NAMES, request_type, response_type

# Of a request: the answer to a larger one names nothing. Its sender is not authenticated, and each name takes microseconds.
NAMED_BYTES_MAX: Final = 16 * 1024

_ERROR: Final = ErrorCode.ILLEGAL_SASL_STATE
# (list of the response, list of the request), then the same of their elements. `a.b`: the lists b of a's elements, `a+b`: both, each
# name once.
_Lists: TypeAlias = "Sequence[tuple[str, str]]"
_PARTITIONS: Final = (("topics", "topics"), ("partitions", "partitions"))
_INDEXES: Final = (("topics", "topics"), ("partitions", "partition_indexes"))
_SHARE_STATES: Final[_Lists] = (("results", "topics"), ("partitions", "partitions"))
# (API, first version) -> lists; of an API the last one that the version has reached. Others name nothing.
_LISTS: Final[dict[tuple[str, int], _Lists]] = {
    ("Produce", 0): (("responses", "topic_data"), ("partition_responses", "partition_data")),
    ("Fetch", 0): (("responses", "topics"), ("partitions", "partitions")),
    ("Fetch", 13): (),
    ("ListOffsets", 0): _PARTITIONS,
    ("Metadata", 0): (("topics", "topics"),),
    ("OffsetCommit", 0): _PARTITIONS,
    ("OffsetFetch", 0): _INDEXES,
    ("OffsetFetch", 2): (),
    ("OffsetFetch", 8): (("groups", "groups"),),
    ("FindCoordinator", 0): (("coordinators", "coordinator_keys"),),
    ("ConsumerGroupDescribe", 0): (("groups", "group_ids"),),
    ("ShareGroupDescribe", 0): (("groups", "group_ids"),),
    ("DescribeShareGroupOffsets", 0): (("groups", "groups"),),
    ("StreamsGroupDescribe", 0): (("groups", "group_ids"),),
    ("DescribeGroups", 0): (("groups", "groups"),),
    ("CreateTopics", 0): (("topics", "topics"),),
    ("DeleteTopics", 0): (("responses", "topic_names"),),
    ("DeleteTopics", 6): (("responses", "topics"),),
    ("DeleteRecords", 0): _PARTITIONS,
    ("OffsetForLeaderEpoch", 0): _PARTITIONS,
    ("AddPartitionsToTxn", 0): (
        ("results_by_topic_v3_and_below", "v3_and_below_topics"),
        ("results_by_partition", "partitions"),
    ),
    ("AddPartitionsToTxn", 4): (),
    ("WriteTxnMarkers", 0): (("markers", "markers"), *_INDEXES),
    ("TxnOffsetCommit", 0): _PARTITIONS,
    ("CreateAcls", 0): (("results", "creations"),),
    ("DeleteAcls", 0): (("filter_results", "filters"),),
    ("DescribeConfigs", 0): (("results", "resources"),),
    ("AlterConfigs", 0): (("responses", "resources"),),
    ("IncrementalAlterConfigs", 0): (("responses", "resources"),),
    ("AlterReplicaLogDirs", 0): (("results", "dirs.topics"), ("partitions", "partitions")),
    ("CreatePartitions", 0): (("results", "topics"),),
    ("DeleteGroups", 0): (("results", "groups_names"),),
    ("ElectLeaders", 0): (
        ("replica_election_results", "topic_partitions"),
        ("partition_result", "partitions"),
    ),
    ("AlterPartitionReassignments", 0): (("responses", "topics"), ("partitions", "partitions")),
    ("ListPartitionReassignments", 0): _INDEXES,
    ("AlterClientQuotas", 0): (("entries", "entries"), ("entity", "entity")),
    ("DescribeUserScramCredentials", 0): (("results", "users"),),
    ("AlterUserScramCredentials", 0): (("results", "deletions+upsertions"),),
    ("DescribeProducers", 0): _INDEXES,
    ("DescribeTransactions", 0): (("transaction_states", "transactional_ids"),),
    ("DescribeTopicPartitions", 0): (("topics", "topics"),),
    ("InitializeShareGroupState", 0): _SHARE_STATES,
    ("ReadShareGroupState", 0): _SHARE_STATES,
    ("WriteShareGroupState", 0): _SHARE_STATES,
    ("DeleteShareGroupState", 0): _SHARE_STATES,
    ("ReadShareGroupStateSummary", 0): _SHARE_STATES,
}
# Fields of the response -> of the request
_NAMES: Final = {
    **{
        each: (each,)
        for each in (
            "topic", "name", "topic_id", "partition", "index", "group_id", "resource_type", "resource_name", "entity_type",
            "entity_name", "producer_id",
        )
    },
    "partition_index": ("partition_index", "partition"),
    "topic_name": ("name",),
    "user": ("name",),
}  # fmt: skip
_VALUES: Final[Mapping[str, Mapping[str, Any]]] = {
    "PartitionProduceResponse": {"base_offset": -1},
    "PartitionData": {"high_watermark": -1, "records": b""},
    "FindCoordinatorResponse": {"node_id": -1, "port": -1},
    "Coordinator": {"node_id": -1, "port": -1},
    "DeleteRecordsPartitionResult": {"low_watermark": -1},
    "InitProducerIdResponse": {"producer_epoch": -1},
    "OffsetFetchResponsePartition": {"committed_offset": -1},
    "DescribeClientQuotasResponse": {"entries": None},
    "DescribeUserScramCredentialsResult": {"user": ""},
    "CreateDelegationTokenResponse": {
        "principal_type": "User",
        "principal_name": "ANONYMOUS",
        "token_requester_principal_type": "User",
        "token_requester_principal_name": "ANONYMOUS",
        "issue_timestamp_ms": -1,
        "expiry_timestamp_ms": -1,
        "max_timestamp_ms": -1,
    },
}
# Whose ErrorMessage is the error's own text, and whose is none; others have the reason of the refusal.
_STANDARD_TEXT: Final = frozenset(
    {
        "FindCoordinator", "DescribeConfigs", "AlterClientQuotas", "DescribeQuorum", "AddRaftVoter", "RemoveRaftVoter",
        "ReadShareGroupState", "WriteShareGroupState", "ReadShareGroupStateSummary", "AlterShareGroupOffsets",
        "DeleteShareGroupOffsets",
    }
)  # fmt: skip
_NO_TEXT: Final = frozenset(
    {
        "ConsumerGroupDescribe", "ConsumerGroupHeartbeat", "DescribeGroups", "DeleteTopics", "DescribeProducers", "ShareFetch",
        "ShareAcknowledge", "StreamsGroupDescribe", "StreamsGroupHeartbeat", "InitializeShareGroupState", "DeleteShareGroupState",
        "ShareGroupHeartbeat", "ShareGroupDescribe",
    }
)  # fmt: skip


def refusal_reason(api_key: int) -> str:
    name = re.sub("(?<=[a-z])(?=[A-Z])", "_", API_NAMES[api_key]).upper()
    return f"Unexpected Kafka request of type {name} during SASL authentication."


def refusal(api_key: int, version: int, buffer: Buffer, position: int, end: int) -> msgspec.Struct:
    """The answer to the request whose body is at buffer[position:end]. DecodeError when that can't be read."""
    name = API_NAMES[api_key]
    text: str | None = refusal_reason(api_key)
    if name in _STANDARD_TEXT:
        text = _ERROR.message
    elif name in _NO_TEXT:
        text = None
    response: Any = _refused(response_type(api_key).message_class, text)
    if name == "JoinGroup" and version >= 7:
        response.protocol_name = None
    lists: _Lists = ()
    for (api, first), of_version in _LISTS.items():
        if api == name and first <= version:
            lists = of_version
    if lists and end - position <= NAMED_BYTES_MAX:
        request, _ = request_type(api_key).readers[version](buffer, position, end)
        _name(response, request, lists, text)
        if name == "Produce":
            response.responses = [topic for topic in response.responses if topic.partition_responses]
    return cast("msgspec.Struct", response)


def _refused(kind: type[msgspec.Struct], text: str | None) -> msgspec.Struct:
    fields = kind.__struct_fields__
    response: Any = kind(**_VALUES.get(kind.__name__, {}))
    for code in ("error_code", "partition_error_code"):
        if code in fields:
            setattr(response, code, _ERROR)
    if "error_message" in fields:
        response.error_message = text
    return cast("msgspec.Struct", response)


def _name(response: Any, request: Any, lists: _Lists, text: str | None) -> None:
    """Fill the lists of a response from those of the request."""
    (field, source), *inner = lists
    (kind,) = [each.type for each in msgspec.structs.fields(response) if each.name == field]
    (element_kind,) = get_args(kind)
    named: list[Any] = []
    for each in _elements(request, source):
        element = _refused(element_kind, text)
        _identify(element, each)
        if inner:
            _name(element, each, inner, text)
        named.append(element)
    setattr(response, field, named)


def _elements(request: Any, source: str) -> Iterator[Any]:
    first, _, second = source.partition("+")
    if second:
        yield from {
            each.name: each for each in (*getattr(request, first), *getattr(request, second))
        }.values()
        return
    outer, _, inner = source.partition(".")
    for each in getattr(request, outer) or ():
        if inner:
            yield from getattr(each, inner)
        else:
            yield each


def _identify(element: Any, named: Any) -> None:
    """Copy the names that the request has. `named`: an element of its list."""
    fixed = _VALUES.get(type(element).__name__, {})
    if not isinstance(named, msgspec.Struct):
        field = next(each for each in element.__struct_fields__ if not each.startswith("error_"))
        setattr(element, field, named)
        return
    for field in element.__struct_fields__:
        for source in _NAMES.get(field, ()):
            value = getattr(named, source, None)
            if value is not None and field not in fixed:
                setattr(element, field, value)
