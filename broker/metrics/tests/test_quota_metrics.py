"""The metrics of quotas."""

from __future__ import annotations

from pathlib import Path

from barnabas.broker.metrics.clients import quota_metrics
from barnabas.broker.metrics.families import exposition
from barnabas.broker.tests.leader import Leader
from barnabas.broker.tests.virtual_client import Client
from barnabas.controller.metadata.image import quota_record


def lines(leader: Leader) -> list[str]:
    text = b"".join(exposition(quota_metrics(leader.node._quotas))).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_what_was_throttled(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.create(replicas=[1])
    assert lines(leader) == []
    leader.commit(
        quota_record((("user", "ANONYMOUS"),), "producer_byte_rate", 100),
        quota_record((("ip", None),), "connection_creation_rate", 0.1),
    )
    clients = [Client(leader) for _ in range(3)]
    clients[0].send(clients[0].produce("x" * 2000))
    leader.runtime.advance(1)
    throttle_s = clients[0].answers[0][1].throttle_time_ms / 1000
    assert lines(leader) == [
        "barnabas_throttled_requests_total 1",
        f"barnabas_throttled_request_seconds_total {throttle_s}",
        "barnabas_throttled_connections_total 2",
    ]
    assert [client.is_closed for client in clients] == [False, True, True]
