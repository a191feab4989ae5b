"""Bindings beside what else there is in a cluster."""

from __future__ import annotations

import pytest
from barnabas.controller.config_validators import ConfigError
from barnabas.controller.image import BrokerRegistration, MetadataImage
from barnabas.controller.nats.decisions import BindingDecisions

OF_GROUP = {"nats.subjects": "a.>", "nats.queue.group": "workers"}


@pytest.mark.parametrize("brokers", [0, 1, 2])
def test_queue_groups_are_for_single_brokers(brokers: int) -> None:
    image = MetadataImage()
    for broker_id in range(brokers):
        image.brokers[broker_id] = BrokerRegistration(broker_id, 1, b"", [], {}, None, fenced=False)
    deciding = BindingDecisions(image, {"nats.servers": "nats://127.0.0.1:4222"}.get)
    deciding.check("t", {"nats.subjects": "a.>"}, "delete")
    if brokers < 2:
        deciding.check("t", OF_GROUP, "delete")
    else:
        with pytest.raises(ConfigError, match="for clusters of one broker"):
            deciding.check("t", OF_GROUP, "delete")
