"""ApiVersions beside Apache Kafka 4.3.1's: the same APIs, in the same versions, and the same features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.registry import API_NAMES
from compat_tests.conform.client import Connection
from compat_tests.harness.apache_broker import ApacheBroker
from compat_tests.harness.broker import Broker
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.metrics import LISTENER

pytestmark = [pytest.mark.barnabas_only, pytest.mark.jvm]

# A single node does not begin with it: its configuration names the voter.
NOT_FINALIZED = {"kraft.version"}
# Kafka advertises these two where a plugin takes the metrics of clients.
TELEMETRY = {"GetTelemetrySubscriptions": (0, 0), "PushTelemetry": (0, 0)}


@pytest.fixture(scope="module")
def kafkas(java_tools: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The answer of a new Apache Kafka."""
    broker = ApacheBroker(tmp_path_factory.mktemp("apache"), tools=java_tools)
    broker.start()
    yield answer_of(broker)
    broker.stop()


def answer_of(broker: Broker) -> Any:
    connection = Connection(broker.host, broker.port)
    answer = connection.ask(
        ApiVersionsRequest(client_software_name="test", client_software_version="1"), version=4
    )
    connection.close()
    return answer


def versions(answer: Any) -> dict[str, tuple[int, int]]:
    return {API_NAMES[each.api_key]: (each.min_version, each.max_version) for each in answer.api_keys}


def test_apis_and_versions(kafkas: Any, fresh_broker: BrokerFactory) -> None:
    ours, theirs = versions(answer_of(fresh_broker())), versions(kafkas)
    assert ours == theirs


def test_telemetry_with_a_receiver(kafkas: Any, fresh_broker: BrokerFactory) -> None:
    ours = versions(answer_of(fresh_broker({LISTENER: "127.0.0.1:0"})))
    assert dict(ours.items() - versions(kafkas).items()) == TELEMETRY


def test_features_of_a_new_cluster(kafkas: Any, fresh_broker: BrokerFactory) -> None:
    ours = answer_of(fresh_broker())

    def supported(answer: Any) -> dict[str, tuple[int, int]]:
        return {each.name: (each.min_version, each.max_version) for each in answer.supported_features}

    def finalized(answer: Any) -> dict[str, tuple[int, int]]:
        return {
            each.name: (each.min_version_level, each.max_version_level) for each in answer.finalized_features
        }

    for features, missing in ((supported, set()), (finalized, NOT_FINALIZED)):
        theirs = features(kafkas)
        assert theirs.keys() - features(ours).keys() == missing
        assert features(ours) == {name: each for name, each in theirs.items() if name not in missing}
