"""The test broker shows what clients push of their own metrics."""

from __future__ import annotations

import pytest

from barnabas.broker.telemetry.tests.otlp_payload import attribute, double, gauge, payload, text
from barnabas.testing import Broker
from barnabas.testing.contents import ClientMetric
from barnabas.testing.external.raw_client import RawClient
from barnabas.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from barnabas.wire.messages.push_telemetry import PushTelemetryRequest

INSTANCE_ID = bytes(range(16))


@pytest.mark.sockets
def test_pushed_metrics() -> None:
    with Broker(properties={"barnabas.metrics.listener": "127.0.0.1:0"}) as broker:
        assert broker.client_metrics() == []
        client = RawClient(broker.port)
        known = client.ask(71, 0, GetTelemetrySubscriptionsRequest(client_instance_id=INSTANCE_ID))
        push = PushTelemetryRequest(
            client_instance_id=INSTANCE_ID,
            subscription_id=known.subscription_id,
            metrics=payload(gauge("app.queue", double(4, 2) + attribute(7, "name", text("orders")))),
        )
        assert client.ask(72, 0, push).error_code == 0
        (metric,) = broker.client_metrics()
        assert isinstance(metric, ClientMetric)
        assert (metric.name, metric.labels["name"], metric.value) == ("kafka_client_app_queue", "orders", 2)
        broker.reset()
        assert broker.client_metrics() == []
        client.socket.close()
