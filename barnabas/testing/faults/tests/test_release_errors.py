"""Errors of older releases: none that came later, and those that differ within one version of an API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from barnabas.broker.requests.registry import REGISTRATIONS
from barnabas.controller.config.topic_configs import TOPIC_CONFIGS
from barnabas.testing import Broker
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.faults.release_errors import BEFORE, CONFIGS_SINCE, LAST_CODES, translate
from barnabas.testing.faults.releases import RELEASES
from barnabas.testing.faults.shapes import error_field, list_fields
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from barnabas.wire.messages.incremental_alter_configs import AlterableConfig as IncrementalConfig
from barnabas.wire.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from barnabas.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.record_batch import read_header, seal_batch
from barnabas.wire.records import Record, build_batch
from barnabas.wire.registry import response_type

pytestmark = pytest.mark.sockets

PRODUCE, METADATA, CREATE_TOPICS, ALTER_CONFIGS, ELECT_LEADERS, INCREMENTAL = 0, 3, 19, 33, 43, 44
TOPIC = 2
BATCH = build_batch([Record(0, 0, None, b"v")])


@contextmanager
def emulated(release: str) -> Iterator[tuple[Broker, RawClient]]:
    with Broker(as_version=release) as broker:
        client = RawClient(broker.port)
        yield broker, client
        client.socket.close()


def test_every_release_knows_codes_up_to_one_and_the_last_knows_all() -> None:
    assert tuple(LAST_CODES) == RELEASES
    lasts = list(LAST_CODES.values())
    assert lasts == sorted(lasts)
    assert lasts[-1] == max(ErrorCode)
    assert all(before < code for code, before in BEFORE.items())
    assert set(CONFIGS_SINCE) <= set(TOPIC_CONFIGS)
    assert set(CONFIGS_SINCE.values()) <= set(RELEASES)


def filled(message_class: Any, error: int) -> tuple[Any, int]:
    """A message with this error wherever there is room, and in how many places."""
    message, count = message_class(), 0
    name = error_field(message_class)
    if name is not None:
        setattr(message, name, error)
        count = 1
    for field in list_fields(message_class):
        if field.is_struct:
            element, more = filled(field.element, error)
            setattr(message, field.name, [element])
            count += more
    return message, count


def errors_in(message: Any) -> list[int]:
    name = error_field(type(message))
    found = [] if name is None else [getattr(message, name)]
    for field in list_fields(type(message)):
        if field.is_struct:
            found += errors_in(getattr(message, field.name)[0])
    return found


@pytest.mark.parametrize("release", RELEASES)
def test_no_release_sends_a_later_error(release: str) -> None:
    """Of any API, any error, wherever it stands."""
    last = LAST_CODES[release]
    for key in (key for key, served in REGISTRATIONS.items() if not served.internal):
        for error in ErrorCode:
            answer, count = filled(response_type(key).message_class, error)
            assert translate(answer, last) == (error > last and count > 0)
            found = errors_in(answer)
            assert len(found) == count
            assert all(each <= last for each in found)
            assert all(each == error for each in found) or error > last


def produced(client: RawClient, version: int, batch: bytes) -> int:
    partition = PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="t", partition_data=[partition])]
    )
    code: int = client.ask(PRODUCE, version, request).responses[0].partition_responses[0].error_code
    return code


@pytest.mark.parametrize(
    ("release", "error"), [("2.3", ErrorCode.CORRUPT_MESSAGE), ("2.4", ErrorCode.INVALID_RECORD)]
)
def test_a_record_that_is_refused(release: str, error: ErrorCode) -> None:
    with emulated(release) as (broker, client):
        broker.create_topic("t", configs={"cleanup.policy": "compact"})
        assert produced(client, 7, BATCH) == error  # it has no key
        assert produced(client, 7, build_batch([Record(0, 0, b"k", b"v")])) == 0


@pytest.mark.parametrize(
    ("release", "error"),
    [("2.0", ErrorCode.UNKNOWN_SERVER_ERROR), ("2.1", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)],
)
def test_zstandard(release: str, error: ErrorCode) -> None:
    batch, header = bytearray(BATCH), read_header(BATCH)
    header.attributes |= 4
    seal_batch(batch, header)
    with emulated(release) as (broker, client):
        broker.create_topic("t")
        assert produced(client, 6, bytes(batch)) == error


@pytest.mark.parametrize(
    ("release", "error"), [("2.3", ErrorCode.NONE), ("2.4", ErrorCode.ELECTION_NOT_NEEDED)]
)
def test_an_election_that_is_not_needed(release: str, error: ErrorCode) -> None:
    with emulated(release) as (broker, client):
        broker.create_topic("t")
        request = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])])
        (result,) = client.ask(ELECT_LEADERS, 0, request).replica_election_results[0].partition_result
        assert (result.error_code, result.error_message is None) == (error, not error)


def created(client: RawClient, version: int, *topics: CreatableTopic) -> dict[str, int]:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=30_000)
    return {each.name: each.error_code for each in client.ask(CREATE_TOPICS, version, request).topics}


@pytest.mark.parametrize(
    ("release", "errors"),
    [
        ("2.3", [ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.NONE]),
        ("2.4", [ErrorCode.NONE] * 3),
    ],
)
def test_topics_with_the_broker_s_defaults(release: str, errors: list[ErrorCode]) -> None:
    with emulated(release) as (broker, client):
        found = created(
            client,
            2,
            CreatableTopic(name="a", num_partitions=-1, replication_factor=1),
            CreatableTopic(name="b", num_partitions=1, replication_factor=-1),
            CreatableTopic(name="c", num_partitions=1, replication_factor=1),
        )
        assert found == dict(zip("abc", errors, strict=True))
        assert sorted(broker.topics()) == [name for name, error in found.items() if not error]


@pytest.mark.parametrize("name", sorted(CONFIGS_SINCE))
def test_a_config_of_a_later_release(name: str) -> None:
    since = RELEASES.index(CONFIGS_SINCE[name])
    value = "false" if "able" in name else "1"
    config = CreatableTopicConfig(name=name, value=value)
    for release, is_known in ((RELEASES[since - 1], False), (RELEASES[since], True)):
        with emulated(release) as (broker, client):
            topics = [
                CreatableTopic(name="new", num_partitions=1, replication_factor=1, configs=[config]),
                CreatableTopic(name="plain", num_partitions=1, replication_factor=1),
            ]
            request = CreateTopicsRequest(topics=topics, timeout_ms=30_000)
            told = {each.name: each for each in client.ask(CREATE_TOPICS, 2, request).topics}
            unknown = (told["new"].error_message or "").startswith("Unknown topic config name")
            assert unknown != is_known, (release, told)
            assert unknown == (told["new"].error_code == ErrorCode.INVALID_CONFIG and not is_known)
            assert told["plain"].error_code == 0
            assert ("new" in broker.topics()) == (told["new"].error_code == 0)


def test_configs_that_are_altered() -> None:
    with emulated("2.3") as (broker, client):
        for topic in ("a", "b"):
            broker.create_topic(topic)

        def resources(make: Any, config: Any, **more: Any) -> list[Any]:
            names = {"a": "remote.storage.enable", "b": "retention.ms"}
            return [
                make(
                    resource_type=TOPIC,
                    resource_name=topic,
                    configs=[config(name=name, value="60000", **more)],
                )
                for topic, name in names.items()
            ]

        answers = [
            client.ask(
                ALTER_CONFIGS,
                1,
                AlterConfigsRequest(resources=resources(AlterConfigsResource, AlterableConfig)),
            ),
            client.ask(
                INCREMENTAL,
                0,
                IncrementalAlterConfigsRequest(resources=resources(IncrementalResource, IncrementalConfig)),
            ),
            client.ask(  # what is not there can be taken away
                INCREMENTAL,
                0,
                IncrementalAlterConfigsRequest(
                    resources=resources(IncrementalResource, IncrementalConfig, config_operation=1)
                ),
            ),
        ]
        told = [{each.resource_name: each.error_code for each in answer.responses} for answer in answers]
        assert told == [{"a": ErrorCode.INVALID_CONFIG, "b": 0}] * 2 + [{"a": 0, "b": 0}]


def test_what_a_rule_says_is_said() -> None:
    """It is the test's own word; and the release's answers go on beside it."""
    with emulated("2.3") as (broker, client):
        broker.create_topic("t")
        with broker.on("Produce").error("INVALID_RECORD"):
            assert produced(client, 7, BATCH) == ErrorCode.INVALID_RECORD
        topics = [MetadataRequestTopic(name=name) for name in ("t", "new")]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=True)
        with broker.on("Metadata", topic="t").error("TOPIC_AUTHORIZATION_FAILED"):
            answer = client.ask(METADATA, 8, request)
        assert {each.name: each.error_code for each in answer.topics} == {
            "t": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "new": ErrorCode.LEADER_NOT_AVAILABLE,
        }
