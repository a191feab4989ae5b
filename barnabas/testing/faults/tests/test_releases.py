"""A broker that passes for an older one."""

from __future__ import annotations

import pytest
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from barnabas.broker.requests.registry import REGISTRATIONS
from barnabas.testing import Broker
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.faults.releases import RELEASES, maxima, release_named
from barnabas.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.wire.messages.fetch import FetchRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.registry import response_type

FETCH, METADATA, API_VERSIONS = 1, 3, 18


def test_versions_never_go_back_and_end_with_ours() -> None:
    previous: dict[int, int] = {}
    for release in RELEASES:
        now = maxima(release)
        assert all(now[key] >= highest for key, highest in previous.items())
        previous = now
    ours = {key: served.max_version for key, served in REGISTRATIONS.items() if not served.internal}
    assert {key: previous.get(key) for key in ours} == ours


BETWEEN_BROKERS = {4, 5, 6, 7, 56, 58, 67}  # among the APIs of a ZooKeeper broker
KRAFT_ALONE = {55, 64, 71, 72, 74, 75, 80, 81}


@pytest.mark.parametrize("release", RELEASES)
def test_versions_are_those_that_kafka_python_knows_a_release_by(release: str) -> None:
    """Its table is of ZooKeeper brokers up to 3.9."""
    major, minor = map(int, release.split("."))
    theirs = {
        key: high
        for key, (_, high) in BROKER_API_VERSIONS[major, minor].items()
        if key not in BETWEEN_BROKERS
    }
    ours = maxima(release)
    assert {key: ours.get(key) for key in theirs} == theirs
    assert set(ours) - set(theirs) <= KRAFT_ALONE


def test_the_release_of_a_version() -> None:
    assert release_named("2.8.1") == release_named("2.8") == "2.8"
    for wrong in ("5.0", "2", "2.8.x", ""):
        with pytest.raises(ValueError, match="no release"):
            release_named(wrong)


def api_versions(client: RawClient, version: int) -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer: ApiVersionsResponse = client.ask(API_VERSIONS, version, request)
    return answer


@pytest.mark.sockets
def test_as_2_8() -> None:
    with Broker(as_version="2.8.2") as broker:
        client = RawClient(broker.port)
        answer = api_versions(client, 3)
        told = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        assert (told[0], told[1], told[3]) == ((0, 9), (4, 12), (0, 11))
        assert not {55, 64, 74, 75}.intersection(told)
        assert not answer.finalized_features
        assert not answer.supported_features
        client.ask(FETCH, 12, FetchRequest(max_wait_ms=0))
        client.socket.sendall(client.frame(FETCH, 13, FetchRequest(max_wait_ms=0)))
        assert client.is_closed()
        client.socket.close()
        client = RawClient(broker.port)
        client.socket.sendall(client.frame(API_VERSIONS, 4, ApiVersionsRequest("a", "1")))
        size = int.from_bytes(client.receive_bytes(4), "big")
        answer, _ = response_type(API_VERSIONS).decode(0, client.receive_bytes(size), 4)
        assert (answer.error_code, answer.api_keys[0].max_version) == (35, 3)
        client.socket.close()


@pytest.mark.sockets
@pytest.mark.parametrize(("version", "error"), [("2.7", 5), ("2.8", 3)])
def test_a_topic_that_is_made_by_asking_for_it(version: str, error: int) -> None:
    with Broker(as_version=version) as broker:
        client = RawClient(broker.port)
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=True)
        seen = [client.ask(METADATA, 9, request).topics[0].error_code for _ in range(2)]
        assert seen == [error, 0]
        client.socket.close()


@pytest.mark.sockets
def test_one_api_is_limited_or_gone() -> None:
    with Broker() as broker:
        broker.faults.limit_api("Fetch", 11)
        broker.faults.limit_api("DescribeCluster", None)
        client = RawClient(broker.port)
        told = {each.api_key: each.max_version for each in api_versions(client, 4).api_keys}
        assert told[FETCH] == 11
        assert 60 not in told
        client.ask(FETCH, 11, FetchRequest(max_wait_ms=0))
        client.socket.sendall(client.frame(FETCH, 12, FetchRequest(max_wait_ms=0)))
        assert client.is_closed()
        client.socket.close()
