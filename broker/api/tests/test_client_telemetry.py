"""GetTelemetrySubscriptions and PushTelemetry on a whole node, over the metrics that it shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.metrics.clients import client_metrics
from barnabas.broker.metrics.families import exposition
from barnabas.broker.telemetry import client_metrics as module
from barnabas.broker.telemetry.tests.otlp_payload import (
    attribute,
    counter,
    double,
    fixed,
    gauge,
    payload,
    text,
)
from barnabas.broker.tests.one_node import OneNode
from barnabas.broker.tests.reply import Reply, send
from barnabas.wire.codecs import compress
from barnabas.wire.compression import Codec
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest as Get
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from barnabas.wire.messages.push_telemetry import PushTelemetryRequest as Push

ID = bytes(range(16))
LISTENER = "barnabas.metrics.listener=127.0.0.1:0"
NAME, VERSION = "software", "1.2"


class Node(OneNode):
    def configure(self, name: str, **configs: str | None) -> None:
        """Set configs of a subscription, with `_` for `.`; None deletes."""
        resource = AlterConfigsResource(resource_type=16, resource_name=name)
        resource.configs = [
            AlterableConfig(name=each.replace("_", "."), config_operation=int(text is None), value=text)
            for each, text in configs.items()
        ]
        (answer,) = self.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses
        assert answer.error_code == 0

    def get(self, instance_id: bytes = ID) -> Any:
        return self.ask(Get(client_instance_id=instance_id))

    def push(self, metrics: bytes = b"", codec: int = 0, **fields: Any) -> E:
        subscription_id = fields.pop("subscription_id", None)
        if subscription_id is None:
            subscription_id = self.instances[ID].wanted.subscription_id
        request = Push(
            client_instance_id=ID,
            subscription_id=subscription_id,
            compression_type=codec,
            metrics=metrics,
            **fields,
        )
        return E(self.ask(request).error_code)

    @property
    def instances(self) -> Any:
        return self.node.services.client_metrics.instances

    def advertised(self) -> set[int]:
        answer = self.ask(ApiVersionsRequest(client_software_name=NAME, client_software_version=VERSION))
        return {each.api_key for each in answer.api_keys}

    def page(self) -> str:
        return b"".join(exposition(client_metrics(self.node.services.client_metrics))).decode()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(f"log.dirs={tmp_path}", LISTENER)
    yield made
    made.node.stop()


def test_advertised_where_metrics_are_served(node: Node, tmp_path: Path) -> None:
    assert {71, 72} <= node.advertised()
    without = Node(f"log.dirs={tmp_path / 'another'}")
    assert {71, 72}.isdisjoint(without.advertised())
    assert without.get().error_code == 0
    without.node.stop()


def test_pushed_metrics_are_shown(node: Node) -> None:
    node.configure("s", metrics="*", interval_ms="1000")
    found = node.get()
    assert (found.requested_metrics, found.push_interval_ms) == (["*"], 1000)
    assert found.accepted_compression_types == [4, 3, 1, 2]
    data = payload(
        gauge(
            "org.apache.kafka.producer.request.latency.avg",
            double(4, 2.5) + attribute(7, "node.id", text("1")),
        ),
        counter("org.apache.kafka.producer.record.send.total", fixed(6, 3)),
    )
    for codec in Codec:
        assert node.push(compress(codec, data), codec) == E.NONE
        node.runtime.advance(1)
    labels = 'client_instance_id="AAECAwQFBgcICQoLDA0ODw",client_id="client",client_software_name="unknown"'
    page = node.page()
    assert f'kafka_client_producer_request_latency_avg{{{labels},node_id="1"}} 2.5\n' in page
    assert "# TYPE kafka_client_producer_record_send_total counter\n" in page
    assert f"kafka_client_producer_record_send_total{{{labels}}} 15\n" in page
    assert "kafka_server_client_metrics_plugin_export_count 5\n" in page
    node.runtime.advance(61)
    assert "producer" not in node.page()


@pytest.mark.parametrize("codec", Codec)
def test_what_cannot_be_read(node: Node, codec: Codec) -> None:
    node.get()
    assert node.push(b"\xff" * 100, codec) == E.INVALID_RECORD
    assert "kafka_server_client_metrics_plugin_error_count 1\n" in node.page()


def test_a_push_that_is_unpacked_to_too_much(tmp_path: Path) -> None:
    node = Node(f"log.dirs={tmp_path}", LISTENER, "telemetry.max.bytes=1000")
    assert node.get().telemetry_max_bytes == 1000
    assert node.push(compress(Codec.GZIP, bytes(1001)), Codec.GZIP) == E.INVALID_RECORD
    node.runtime.advance(300)
    assert node.push(bytes(1001)) == E.TELEMETRY_TOO_LARGE
    node.node.stop()


def test_once_in_each_interval(node: Node) -> None:
    node.configure("s", metrics="m", interval_ms="1000")
    assert node.get().error_code == E.NONE
    assert node.get().error_code == E.THROTTLING_QUOTA_EXCEEDED
    assert node.push() == E.NONE  # right behind the subscriptions
    assert node.push() == E.THROTTLING_QUOTA_EXCEEDED
    node.runtime.advance(1)
    assert node.push() == E.NONE
    assert node.get().error_code == E.THROTTLING_QUOTA_EXCEEDED
    assert node.push(terminating=True) == E.NONE
    assert node.push(terminating=True) == E.INVALID_REQUEST


def test_changed_subscriptions(node: Node) -> None:
    node.configure("s", metrics="m")
    old = node.get().subscription_id
    node.configure("s", interval_ms="1000")
    assert node.push(subscription_id=old) == E.UNKNOWN_SUBSCRIPTION_ID
    found = node.get()
    assert (found.error_code, found.push_interval_ms) == (E.NONE, 1000)
    node.runtime.advance(1)
    assert node.push(codec=9) == E.UNSUPPORTED_COMPRESSION_TYPE
    assert node.get().error_code == E.NONE
    node.configure("s", metrics=None, interval_ms=None)
    assert node.get().requested_metrics == []


def test_subscriptions_are_there_after_a_restart(node: Node) -> None:
    node.configure("s", metrics="m")
    node.restart()
    assert node.get().requested_metrics == ["m"]


def test_reserved_and_new_ids(node: Node) -> None:
    for reserved in (bytes(16), bytes(15) + b"\x01"):
        assert node.ask(Push(client_instance_id=reserved)).error_code == E.INVALID_REQUEST
    found = node.get(bytes(16))
    assert found.client_instance_id in node.instances


def test_software_and_port_of_the_connection(node: Node) -> None:
    node.configure(
        "s",
        metrics="m",
        match="client_software_name=soft.*,client_software_version=1.2,client_source_port=77",
    )
    reply = Reply()
    reply.peer.port = 77
    send(
        node.node.services,
        18,
        4,
        ApiVersionsRequest(client_software_name=NAME, client_software_version=VERSION),
        reply,
    )
    again = Reply()
    again.peer = reply.peer
    (found,) = send(node.node.services, 71, 0, Get(), again).responses
    assert found.requested_metrics == ["m"]
    assert node.get().requested_metrics == []


def test_a_closed_connection_ends_its_instance(node: Node) -> None:
    old, new = Reply(), Reply()
    services = node.node.services
    send(services, 71, 0, Get(client_instance_id=ID), old)
    old.peer.closed()
    assert not node.instances
    send(services, 71, 0, Get(client_instance_id=ID), new)
    old.peer.closed()
    assert list(node.instances) == [ID]


def test_silent_instances_are_forgotten(node: Node) -> None:
    node.configure("s", metrics="m", interval_ms="30000")
    node.get()
    node.runtime.advance(89)
    assert node.instances
    node.runtime.advance(2)
    assert not node.instances


def test_instances_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INSTANCES_MAX", 3)
    first, *others = [node.get(bytes(16)).client_instance_id for _ in range(3)]
    node.get(first)  # used again
    node.get(ID)
    assert list(node.instances) == [others[1], first, ID]


def test_waiting_payloads_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 10)
    node.get()
    assert node.push(bytes(11)) == E.THROTTLING_QUOTA_EXCEEDED


def test_long_client_ids_are_kept_cut(node: Node) -> None:
    node.configure("s", metrics="m", match="client_id=x{256}")
    reply = Reply()
    reply.peer.software_name = "y" * 10_000
    request = Get(client_instance_id=ID)
    (found,) = send(node.node.services, 71, 0, request, reply, client_id="x" * 32_000).responses
    assert found.requested_metrics == ["m"]
    kept = node.instances[ID].attributes
    assert (len(kept["client_id"]), len(kept["client_software_name"])) == (256, 256)
