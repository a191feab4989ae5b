"""Topics bound to NATS, as an admin binds them."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from compat_tests.harness.broker import Broker
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.confluent_admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)


def bind(
    broker: Broker | Cluster,
    topic: str,
    configs: Mapping[str, str],
    *,
    partitions: int = 1,
    replicas: int = 1,
) -> None:
    """Create the topic with these configs; where it exists, set them."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    if topic not in admin.list_topics(timeout=10).topics:
        created = admin.create_topics([NewTopic(topic, partitions, replicas, config=dict(configs))])
        created[topic].result(15)
        return
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(15)
