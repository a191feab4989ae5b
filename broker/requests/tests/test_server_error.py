"""Responses that have no encoding, and texts that would have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.requests.server_error import encode_or_server_error
from barnabas.testing import Broker
from barnabas.testing.external.raw_client import RawClient
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import (
    CREATE_TOPICS_RESPONSE,
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from barnabas.wire.primitives import MAX_ERROR_MESSAGE_CHARACTERS, EncodeError
from compat_tests.harness.threaded_node import ThreadedNode

CREATE_TOPICS, INCREMENTAL_ALTER_CONFIGS = 19, 44
LONGEST = "é" * 16_383  # 32,766 bytes


def test_a_response_without_an_encoding_is_sent_as_a_server_error(caplog: pytest.LogCaptureFixture) -> None:
    response = CreateTopicsResponse(
        topics=[CreatableTopicResult(name=name, num_partitions=3) for name in ("short", LONGEST + "é")]
    )
    parts = encode_or_server_error(CREATE_TOPICS, CREATE_TOPICS_RESPONSE.writers[7], response)
    encoded: Any = b"".join(parts)  # type: ignore[arg-type]
    answered, _ = CREATE_TOPICS_RESPONSE.decode(7, encoded)
    assert [topic.name for topic in answered.topics] == ["short", LONGEST]
    assert {topic.error_code for topic in answered.topics} == {ErrorCode.UNKNOWN_SERVER_ERROR}
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("the response to CreateTopics is an error: ")


def test_what_cannot_be_encoded_even_then_is_an_error_of_the_caller() -> None:
    response = CreateTopicsResponse(throttle_time_ms=2**31)
    with pytest.raises(EncodeError):
        encode_or_server_error(CREATE_TOPICS, CREATE_TOPICS_RESPONSE.writers[7], response)


@pytest.fixture
def node(tmp_path: Path) -> Any:
    node = ThreadedNode(tmp_path / "logs", {})
    yield node
    node.stop()


@pytest.mark.sockets
def test_an_error_message_that_quotes_a_long_value_is_cut(
    node: ThreadedNode, caplog: pytest.LogCaptureFixture
) -> None:
    client = node.client()
    broker = AlterConfigsResource(
        resource_type=4,
        resource_name="",
        configs=[AlterableConfig(name="log.cleaner.threads", value=LONGEST)],
    )
    answer = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest(resources=[broker]))
    (result,) = answer.responses
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert result.error_message.startswith("Invalid value éé")
    assert len(result.error_message) == MAX_ERROR_MESSAGE_CHARACTERS
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.sockets
@pytest.mark.parametrize("version", [0, 1])
def test_every_node_of_a_cluster_answers_a_long_value_with_a_message_that_is_cut(version: int) -> None:
    """All but one of them ask the active controller, whose answer they wait for."""
    with Broker(nodes=3) as broker:
        for node in broker.nodes:
            client = RawClient(node.port)
            resource = AlterConfigsResource(
                resource_type=4,
                resource_name="",
                configs=[AlterableConfig(name="log.cleaner.threads", value=LONGEST)],
            )
            request = IncrementalAlterConfigsRequest(resources=[resource])
            (result,) = client.ask(INCREMENTAL_ALTER_CONFIGS, version, request).responses
            assert result.error_code == ErrorCode.INVALID_REQUEST
            assert len(result.error_message) == MAX_ERROR_MESSAGE_CHARACTERS
            topic = CreatableTopic(name=LONGEST, num_partitions=1, replication_factor=1)
            (created,) = client.ask(CREATE_TOPICS, 5 + version, CreateTopicsRequest(topics=[topic])).topics
            assert (created.name, created.error_code) == (LONGEST, ErrorCode.INVALID_TOPIC_EXCEPTION)
            assert len(created.error_message) == MAX_ERROR_MESSAGE_CHARACTERS
            client.socket.close()
