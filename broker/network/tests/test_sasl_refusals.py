"""Answers to requests in place of a token. `make conform` compares them with Apache Kafka's, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.network.sasl_refusals import NAMED_BYTES_MAX, refusal
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.share_group_describe import ShareGroupDescribeRequest
from barnabas.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from barnabas.wire.primitives import DecodeError
from barnabas.wire.registry import request_type, response_type
from compat_tests.conform.apis import APIS
from compat_tests.conform.authorized_requests import Names, authorized_requests

METADATA, DESCRIBE_GROUPS, CREATE_TOPICS = 3, 15, 19
TEXT = "Unexpected Kafka request of type CREATE_TOPICS during SASL authentication."


def refused(api_key: int, version: int, request: Any) -> Any:
    body = b"".join(request_type(api_key).encode(version, request))  # type: ignore[arg-type]  # all bytes
    response = refusal(api_key, version, memoryview(body), 0, len(body))
    encoded = b"".join(response_type(api_key).encode(version, response))  # type: ignore[arg-type]  # all bytes
    return response_type(api_key).decode(version, encoded)[0]


def test_what_the_request_names_is_named_with_the_error() -> None:
    (topic,) = refused(METADATA, 12, MetadataRequest([MetadataRequestTopic(b"1" * 16, "t")])).topics
    assert (topic.error_code, topic.name, topic.topic_id, topic.partitions) == (34, "t", b"1" * 16, [])
    (created,) = refused(CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic("t", 3, 2)])).topics
    assert (created.error_code, created.error_message) == (E.ILLEGAL_SASL_STATE, TEXT)
    assert (created.num_partitions, created.replication_factor) == (-1, -1)


def test_apis_of_share_groups() -> None:
    """Of each with the names, the error's own text, the reason, or no text, as Kafka."""
    (group,) = refused(77, 1, ShareGroupDescribeRequest(["g"])).groups
    assert (group.error_code, group.group_id, group.error_message) == (E.ILLEGAL_SASL_STATE, "g", None)
    asked = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup("g", None)])
    (group,) = refused(90, 1, asked).groups
    assert (group.error_code, group.group_id) == (E.ILLEGAL_SASL_STATE, "g")
    assert group.error_message == TEXT.replace("CREATE_TOPICS", "DESCRIBE_SHARE_GROUP_OFFSETS")
    assert refused(76, 1, ShareGroupHeartbeatRequest("g", "m", 0)).error_message is None
    for api_key, request in (
        (91, AlterShareGroupOffsetsRequest("g")),
        (92, DeleteShareGroupOffsetsRequest("g")),
    ):
        assert refused(api_key, 0, request).error_message == E.ILLEGAL_SASL_STATE.message


def test_a_large_request_s_names_are_not_repeated() -> None:
    names = ["g"] * (NAMED_BYTES_MAX // 3 - 10)
    assert len(refused(DESCRIBE_GROUPS, 0, DescribeGroupsRequest(names)).groups) == len(names)
    assert refused(DESCRIBE_GROUPS, 0, DescribeGroupsRequest(["g"] * NAMED_BYTES_MAX)).groups == []


def test_what_cannot_be_read_is_not_answered() -> None:
    with pytest.raises(DecodeError):
        refusal(METADATA, 1, memoryview(b"\0\0\0\1"), 0, 4)


def test_every_api_and_version_has_an_answer() -> None:
    for each in authorized_requests(Names("t", b"1" * 16, "absent", "g", "id")):
        api = APIS[each.api]
        for version in range(api.first, api.last + 1):
            if version in each.versions:
                refused(api.key, version, each.request(version))
