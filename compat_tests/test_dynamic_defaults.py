"""Changing a broker setting that is the default of a topic config changes it for existing topics."""

from __future__ import annotations

import time

from confluent_kafka.admin import AdminClient

from compat_tests.harness.clients import CLIENTS, PLAIN, Sample
from compat_tests.harness.confluent_admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.topics import create_topic


def test_a_changed_default_applies_to_existing_topics(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker()
    create_topic(broker.bootstrap, "old", configs={"retention.ms": "-1"})
    create_topic(
        broker.bootstrap, "own", configs={"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entry = ConfigEntry(
        "log.message.timestamp.type", "LogAppendTime", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)
    now = time.time() * 1000
    for topic, stamped in (("old", True), ("own", False)):
        PLAIN.produce(broker.bootstrap, topic, [Sample(b"k", b"v", timestamp=1_700_000_000_000)])
        (found,) = CLIENTS[2].consume(broker.bootstrap, topic, 1)
        assert (found.sample.timestamp >= now - 60_000) == stamped
