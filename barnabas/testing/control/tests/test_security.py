"""The controls of a secured broker: what a test in another language gets of it."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from barnabas.testing import Broker, Security
from barnabas.testing.control import Control
from barnabas.testing.control.tests.test_control import Http

pytestmark = pytest.mark.sockets


@pytest.fixture
def http() -> Iterator[Http]:
    security = Security(protocol="SASL_SSL", mechanisms=["PLAIN"], users={"alice": "secret"}, acls=[])
    with Broker(security=security) as broker:
        control = Control(broker)
        yield Http(control)
        control.close()


def test_a_client_gets_settings_certificates_and_rights(http: Http) -> None:
    status = http.done("GET", "/security")
    assert (status["protocol"], status["users"]) == ("SASL_SSL", ["alice"])
    assert status["ca"].startswith("-----BEGIN CERTIFICATE-----")
    settings = http.done("POST", "/security/client", {"user": "alice", "certificate": "alice"})
    assert 'username=\\"alice\\" password=\\"secret\\"' in settings["properties"].replace('"', '\\"')
    admin = AdminClient(settings["librdkafka"])
    refused = admin.list_topics("orders", timeout=30).topics["orders"].error
    assert refused is not None
    assert refused.code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    acls = {"acls": [{"principal": "User:alice", "operation": "ALL", "topic": "*"}]}
    # Before the right is given: librdkafka asks again by itself, and would create it.
    http.done("POST", "/topics", {"name": "orders"})
    http.done("POST", "/security/acls", acls)
    assert admin.list_topics("orders", timeout=30).topics["orders"].error is None
    http.done("POST", "/security/acls/remove", acls)
    assert admin.list_topics("orders", timeout=30).topics["orders"].error is not None
    expired = http.done("GET", "/security/certificates/alice?expired=true")
    assert expired["key"].startswith("-----BEGIN PRIVATE KEY-----")
    assert expired["certificate"] != http.done("GET", "/security/certificates/alice")["certificate"]


def test_users_come_and_go(http: Http) -> None:
    http.done("PUT", "/security/users/bob", {"password": "other"})
    assert http.done("GET", "/security")["users"] == ["alice", "bob"]
    settings = http.done("POST", "/security/client", {"user": "bob"})["librdkafka"]
    assert AdminClient(settings).list_topics(timeout=30).brokers
    http.done("DELETE", "/security/users/bob")
    assert http.ask("POST", "/security/client", {"user": "bob"})[0] == 400


def test_what_can_not_be_is_refused(http: Http) -> None:
    assert http.ask("POST", "/security/client", {"user": "bob"})[0] == 400
    assert http.ask("DELETE", "/security/users/bob")[0] == 404
    acl = {"principal": "User:bob", "operation": "REED", "topic": "orders"}
    assert http.ask("POST", "/security/acls", {"acls": [acl]})[0] == 400
