"""An answer with an error can be made for every API in every version, and says it where a client looks."""

from __future__ import annotations

from typing import Any

import barnabas.broker.api  # noqa: F401 - registers the handlers
import pytest
from barnabas.broker.registry import REGISTRATIONS
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.primitives import EncodeError
from barnabas.wire.registry import request_type, response_type

from barnabas.testing.faults.failures import NoSuchError, depth_of, failed, merged, without
from barnabas.testing.faults.shapes import levels, list_fields, targets

# Answers that repeat nothing of the request, or nest it otherwise: there is no error without the broker's own answer.
WITHOUT_PLACE = {34: range(99), 35: range(3)}  # AlterReplicaLogDirs, DescribeLogDirs before 3


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
    if version not in WITHOUT_PLACE.get(key, ())
]


@pytest.mark.parametrize("key", sorted({key for key, _ in CASES}))
def test_every_answer_has_a_place_for_an_error(key: int) -> None:
    for version in [each for this, each in CASES if this == key]:
        request = as_sent(key, version, sample(request_type(key).message_class))
        for single in (False, True):
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if single else ErrorCode.NOT_COORDINATOR
            depth = depth_of(key, version, request, error, single=single)
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
