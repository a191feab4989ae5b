"""An answer with an error can be made for every API in every version, and says it where a client looks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import barnabas.broker.api  # noqa: F401 - registers the handlers
from barnabas.broker.requests.dispatch import Dispatcher
from barnabas.broker.requests.registry import REGISTRATIONS
from barnabas.testing import Broker
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.faults.failures import NoSuchError, depth_of, failed, merged, without
from barnabas.testing.faults.shapes import error_field, levels, list_fields, targets
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.primitives import EncodeError
from barnabas.wire.registry import request_type, response_type

PRODUCE, METADATA = 0, 3
DESCRIBE_LOG_DIRS = 35  # its answer lists what no request names: such an error needs the broker's own answer


def sample(message_class: Any) -> Any:
    """A message with one element in each list, and a name wherever one goes."""
    message = message_class()
    for field in list_fields(message_class):
        if field.is_struct:
            setattr(message, field.name, [sample(field.element)])
        else:
            setattr(message, field.name, ["x"] if field.element is str else [3])
    for name, annotation in message_class.__annotations__.items():
        if annotation in ("str", "str | None"):
            setattr(message, name, "x")
        elif name == "topic_id":
            setattr(message, name, bytes(range(16)))
    return message


def as_sent(key: int, version: int, message: Any) -> Any:
    """What arrives of a request in a version that can't hold all of it."""
    for name in message.__annotations__:
        alone = type(message)(**{name: getattr(message, name)})
        try:
            request_type(key).encode(version, alone)
        except EncodeError:
            setattr(message, name, getattr(type(message)(), name))
    return request_type(key).decode(version, encoded(request_type(key).encode(version, message)))[0]


def encoded(parts: list[Any]) -> bytes:
    return b"".join(map(bytes, parts))


def errors_in(message: Any) -> list[int]:
    found = [
        getattr(message, name) for name in ("error_code", "partition_error_code") if hasattr(message, name)
    ]
    for field in list_fields(type(message)):
        if field.is_struct:
            for element in getattr(message, field.name) or ():
                found += errors_in(element)
    return found


CASES = [
    (key, version)
    for key, served in sorted(REGISTRATIONS.items())
    if not served.internal
    for version in range(served.min_version, served.max_version + 1)
]


@pytest.mark.parametrize("key", sorted({key for key, _ in CASES}))
def test_every_answer_has_a_place_for_an_error(key: int) -> None:
    for version in [each for this, each in CASES if this == key]:
        request = as_sent(key, version, sample(request_type(key).message_class))
        for single in (False, True):
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if single else ErrorCode.NOT_COORDINATOR
            depth = depth_of(key, version, request, error, single=single)
            if key == DESCRIBE_LOG_DIRS and depth:
                continue
            answer = failed(key, request, error, depth, lambda _topic, _partition: True, "because")
            kind = response_type(key)
            seen, _ = kind.decode(version, encoded(kind.encode(version, answer)))
            assert error in errors_in(seen), (version, single, seen)


def test_an_answer_without_an_error_of_its_own_does_not_fail_as_a_whole() -> None:
    """Else it would look like a success with nothing in it."""
    for key, version in CASES:
        request = as_sent(key, version, sample(request_type(key).message_class))
        kind = response_type(key)
        try:
            depth = depth_of(key, version, request, ErrorCode.NOT_COORDINATOR, single=False, whole=True)
        except NoSuchError:
            continue
        answer = failed(key, request, ErrorCode.NOT_COORDINATOR, depth, lambda _topic, _partition: True, None)
        seen, _ = kind.decode(version, encoded(kind.encode(version, answer)))
        assert seen.error_code == ErrorCode.NOT_COORDINATOR, (key, version)


def test_only_what_is_meant_fails_and_the_rest_is_asked() -> None:
    request = ProduceRequest(
        topic_data=[
            TopicProduceData(name="a", partition_data=[PartitionProduceData(index=n) for n in (0, 1)]),
            TopicProduceData(name="b", partition_data=[PartitionProduceData(index=0)]),
        ]
    )

    def matches(topic: object, partition: int | None) -> bool:
        return topic == "b" or (topic, partition) == ("a", 1)

    rest = without(request, matches)
    assert list(targets(rest)) == [("a", 0)]
    failures = failed(0, request, ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, matches, None)
    served = failed(0, rest, ErrorCode.NONE, 2, lambda *_: True, None)
    both = [
        (topic.name, partition.index, partition.error_code)
        for topic in merged(0, served, failures).responses
        for partition in topic.partition_responses
    ]
    assert both == [("a", 0, 0), ("a", 1, 6), ("b", 0, 6)]
    assert without(request, lambda *_: True) is None


def test_a_fetch_that_forgets_partitions_is_not_about_them() -> None:
    request = sample(FetchRequest)
    request.topics = [FetchTopic(topic="t", partitions=[FetchPartition(partition=5)])]
    assert list(targets(request)) == [("t", 5)]


def test_every_list_of_errors_is_known_by_what_it_is_about() -> None:
    """A new API whose answer is shaped unlike all others shows here."""
    unknown = [
        REGISTRATIONS[key].name
        for key in sorted({key for key, _ in CASES})
        for inner in levels(key).inner
        if not inner.asked
    ]
    assert unknown == ["DescribeLogDirs"]


# Where Kafka's own brokers answer with an error: for each API (key) an error, and from which version on it stands in which
# lists, one in another; "": in the answer itself.
PLACES: dict[int, dict[str, dict[int, str]]] = {
    0: {"NOT_LEADER_OR_FOLLOWER": {0: "responses.partition_responses"}},
    1: {
        "NOT_LEADER_OR_FOLLOWER": {0: "responses.partitions"},
        "FETCH_SESSION_ID_NOT_FOUND": {0: "responses.partitions", 7: ""},
    },
    2: {"NOT_LEADER_OR_FOLLOWER": {0: "topics.partitions"}},
    3: {"LEADER_NOT_AVAILABLE": {0: "topics"}, "REBOOTSTRAP_REQUIRED": {0: "topics", 13: ""}},
    8: {"REBALANCE_IN_PROGRESS": {0: "topics.partitions"}},
    9: {
        "NOT_COORDINATOR": {0: "topics.partitions", 2: "", 8: "groups"},
        "UNSTABLE_OFFSET_COMMIT": {0: "topics.partitions", 8: "groups.topics.partitions"},
    },
    10: {"COORDINATOR_NOT_AVAILABLE": {0: "", 4: "coordinators"}},
    11: {"MEMBER_ID_REQUIRED": {0: ""}},
    12: {"ILLEGAL_GENERATION": {0: ""}},
    13: {"NOT_COORDINATOR": {0: ""}, "FENCED_INSTANCE_ID": {0: "", 3: "members"}},
    14: {"REBALANCE_IN_PROGRESS": {0: ""}},
    15: {"COORDINATOR_LOAD_IN_PROGRESS": {0: "groups"}},
    16: {"COORDINATOR_LOAD_IN_PROGRESS": {0: ""}},
    17: {"UNSUPPORTED_SASL_MECHANISM": {0: ""}},
    18: {"INVALID_REQUEST": {0: ""}},
    19: {"TOPIC_ALREADY_EXISTS": {0: "topics"}},
    20: {"TOPIC_DELETION_DISABLED": {0: "responses"}},
    21: {"OFFSET_OUT_OF_RANGE": {0: "topics.partitions"}},
    22: {"CONCURRENT_TRANSACTIONS": {0: ""}},
    23: {"FENCED_LEADER_EPOCH": {0: "topics.partitions"}},
    24: {
        "CONCURRENT_TRANSACTIONS": {
            0: "results_by_topic_v3_and_below.results_by_partition",
            4: "results_by_transaction.topic_results.results_by_partition",
        },
        "CLUSTER_AUTHORIZATION_FAILED": {
            0: "results_by_topic_v3_and_below.results_by_partition",
            4: "",
        },
    },
    25: {"CONCURRENT_TRANSACTIONS": {0: ""}},
    26: {"CONCURRENT_TRANSACTIONS": {0: ""}},
    27: {"NOT_LEADER_OR_FOLLOWER": {0: "markers.topics.partitions"}},
    28: {"ILLEGAL_GENERATION": {0: "topics.partitions"}},
    29: {"SECURITY_DISABLED": {0: ""}},
    30: {"SECURITY_DISABLED": {0: "results"}},
    31: {"SECURITY_DISABLED": {0: "filter_results"}},
    32: {"TOPIC_AUTHORIZATION_FAILED": {0: "results"}},
    33: {"INVALID_CONFIG": {0: "responses"}},
    34: {"LOG_DIR_NOT_FOUND": {0: "results.partitions"}},
    35: {"CLUSTER_AUTHORIZATION_FAILED": {0: "results", 3: ""}, "KAFKA_STORAGE_ERROR": {0: "results"}},
    36: {"SASL_AUTHENTICATION_FAILED": {0: ""}},
    37: {"INVALID_PARTITIONS": {0: "results"}},
    38: {"DELEGATION_TOKEN_AUTH_DISABLED": {0: ""}},
    39: {"DELEGATION_TOKEN_NOT_FOUND": {0: ""}},
    40: {"DELEGATION_TOKEN_NOT_FOUND": {0: ""}},
    41: {"DELEGATION_TOKEN_AUTH_DISABLED": {0: ""}},
    42: {"NON_EMPTY_GROUP": {0: "results"}},
    43: {
        "ELECTION_NOT_NEEDED": {0: "replica_election_results.partition_result"},
        "CLUSTER_AUTHORIZATION_FAILED": {0: "replica_election_results.partition_result", 1: ""},
    },
    44: {"INVALID_CONFIG": {0: "responses"}},
    45: {"REQUEST_TIMED_OUT": {0: ""}, "INVALID_REPLICA_ASSIGNMENT": {0: "responses.partitions"}},
    46: {"CLUSTER_AUTHORIZATION_FAILED": {0: ""}},
    47: {"GROUP_ID_NOT_FOUND": {0: ""}, "UNKNOWN_TOPIC_OR_PARTITION": {0: "topics.partitions"}},
    48: {"CLUSTER_AUTHORIZATION_FAILED": {0: ""}},
    49: {"INVALID_REQUEST": {0: "entries"}},
    50: {"CLUSTER_AUTHORIZATION_FAILED": {0: ""}},
    51: {"UNACCEPTABLE_CREDENTIAL": {0: "results"}},
    55: {"CLUSTER_AUTHORIZATION_FAILED": {0: ""}, "UNKNOWN_TOPIC_OR_PARTITION": {0: "topics.partitions"}},
    57: {"FEATURE_UPDATE_FAILED": {0: ""}},
    60: {"CLUSTER_AUTHORIZATION_FAILED": {0: ""}},
    61: {"NOT_LEADER_OR_FOLLOWER": {0: "topics.partitions"}},
    64: {"BROKER_ID_NOT_REGISTERED": {0: ""}},
    65: {"TRANSACTIONAL_ID_NOT_FOUND": {0: "transaction_states"}},
    66: {"COORDINATOR_LOAD_IN_PROGRESS": {0: ""}},
    68: {"FENCED_MEMBER_EPOCH": {0: ""}},
    69: {"COORDINATOR_LOAD_IN_PROGRESS": {0: "groups"}},
    71: {"THROTTLING_QUOTA_EXCEEDED": {0: ""}},
    72: {"UNKNOWN_SUBSCRIPTION_ID": {0: ""}, "INVALID_RECORD": {0: ""}},
    74: {"CLUSTER_AUTHORIZATION_FAILED": {0: ""}},
    75: {"TOPIC_AUTHORIZATION_FAILED": {0: "topics"}},
    76: {"FENCED_MEMBER_EPOCH": {0: ""}},
    77: {"COORDINATOR_LOAD_IN_PROGRESS": {0: "groups"}},
    78: {"NOT_LEADER_OR_FOLLOWER": {0: "responses.partitions"}},
    79: {"NOT_LEADER_OR_FOLLOWER": {0: "responses.partitions"}},
    80: {"DUPLICATE_VOTER": {0: ""}},
    81: {"VOTER_NOT_FOUND": {0: ""}},
    **{key: {"NOT_COORDINATOR": {0: "results.partitions"}} for key in range(83, 88)},
    88: {"FENCED_MEMBER_EPOCH": {0: ""}},
    89: {"COORDINATOR_LOAD_IN_PROGRESS": {0: "groups"}},
    90: {"COORDINATOR_LOAD_IN_PROGRESS": {0: "groups"}},
    91: {"NON_EMPTY_GROUP": {0: ""}, "UNKNOWN_TOPIC_OR_PARTITION": {0: "responses.partitions"}},
    92: {"NON_EMPTY_GROUP": {0: ""}, "UNKNOWN_TOPIC_OR_PARTITION": {0: "responses"}},
}


def places(message: Any, error: int, at: str = "") -> Iterator[str]:
    """Where in an answer the error stands."""
    name = error_field(type(message))
    if name is not None and getattr(message, name) == error:
        yield at
    for field in list_fields(type(message)):
        for element in (getattr(message, field.name) or ()) if field.is_struct else ():
            yield from places(element, error, f"{at}.{field.name}" if at else field.name)


@pytest.mark.sockets
def test_a_rule_fails_every_api_in_every_version_where_kafka_does() -> None:
    assert {key for key, _ in CASES} <= PLACES.keys()
    wrong = []
    with Broker() as broker:
        broker.create_topic("x", 4)
        client = RawClient(broker.port)
        for key, version in CASES:
            for name, since in PLACES[key].items():
                request = as_sent(key, version, sample(request_type(key).message_class))
                if key == PRODUCE:
                    request.acks = -1  # else no answer is due
                if key == METADATA:
                    request.topics[0].topic_id = bytes(16)  # by name or by id, not both
                with broker.on(key, times=1).error(name) as rule:
                    answer = client.ask(key, version, request)
                expected = since[max(first for first in since if first <= version)]
                found = set(places(answer, ErrorCode[name]))
                about = [{topic for topic, _ in targets(each)} for each in (request, answer)]
                if (
                    found != {expected}
                    or rule.hits != 1
                    or (about[1] and about[0] != about[1] and key != DESCRIBE_LOG_DIRS)
                ):
                    wrong.append((key, version, name, expected, found, about, answer))
        client.socket.close()
    assert not wrong


@pytest.mark.sockets
def test_of_two_replicas_to_move_one_fails_and_the_other_moves() -> None:
    with Broker() as broker:
        broker.create_topic("a", 1)
        broker.create_topic("b", 1)
        client = RawClient(broker.port)
        found = client.ask(DESCRIBE_LOG_DIRS, 5, request_type(DESCRIBE_LOG_DIRS).message_class(topics=None))
        topics = [AlterReplicaLogDirTopic(name=name, partitions=[0]) for name in "ab"]
        request = AlterReplicaLogDirsRequest(
            dirs=[AlterReplicaLogDir(path=found.results[0].log_dir, topics=topics)]
        )
        with broker.on("AlterReplicaLogDirs", topic="b").error("LOG_DIR_NOT_FOUND"):
            answer = client.ask(34, 2, request)
        client.socket.close()
        assert [(each.topic_name, each.partitions[0].error_code) for each in answer.results] == [
            ("a", 0),
            ("b", ErrorCode.LOG_DIR_NOT_FOUND),
        ]


@pytest.mark.sockets
@pytest.mark.parametrize("version", range(1, 6))
def test_the_log_directory_of_a_topic_fails(version: int) -> None:
    with Broker() as broker:
        broker.create_topic("a", 1)
        client = RawClient(broker.port)
        request = request_type(DESCRIBE_LOG_DIRS).message_class(topics=None)
        codes, names = [], []
        for topic in ("a", "b"):
            with broker.on("DescribeLogDirs", topic=topic).error("KAFKA_STORAGE_ERROR"):
                answer = client.ask(DESCRIBE_LOG_DIRS, version, request)
            codes += [each.error_code for each in answer.results]
            names += [each.log_dir for each in answer.results]
        client.socket.close()
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
        assert names[0] == names[1] != ""


@pytest.mark.sockets
def test_a_late_answer_without_an_encoding_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a node does: else its client would wait for ever."""

    def encode(*_: object) -> object:
        raise EncodeError("a defect")

    with Broker() as broker:
        broker.create_topic("a", 1)
        monkeypatch.setattr(Dispatcher, "encode", encode)
        client = RawClient(broker.port)
        fetch = FetchRequest(
            max_wait_ms=10,
            min_bytes=1,
            topics=[FetchTopic(topic="a", partitions=[FetchPartition(0, partition_max_bytes=1)])],
        )
        client.socket.sendall(client.frame(1, 12, fetch))
        assert client.is_closed()
        client.socket.close()
