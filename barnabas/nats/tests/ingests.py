"""Parts of core bindings for tests: no topic takes dead letters, and the byte budget is the binding's."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from barnabas.nats.carrier import CarrierStats
from barnabas.nats.client.client import NatsClient
from barnabas.nats.dead_letters import DeadLetters
from barnabas.nats.ingress.backpressure import Budget
from barnabas.nats.ingress.gap_tracker import Backfill, GapLog
from barnabas.nats.ingress.ingest import Ingest
from barnabas.nats.tests.client_world import settings

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.broker.partitions.alter_partition import AlterPartitionManager
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.ingress.acks import Send
    from barnabas.nats.ingress.standbys import OnLapses
    from barnabas.runtime.interface import Runtime


class AckClient(NatsClient):
    """A client without a connection, whose acknowledgements go to `send`."""

    def __init__(self, runtime: Runtime, send: Send) -> None:
        super().__init__(runtime, settings("nats://nobody:4222"), "in")
        self._send_acks = send

    def publish_encoded(self, data: bytes, count: int) -> None:
        self._send_acks(data, count)


def make_ingest(
    runtime: Runtime,
    binding: Binding,
    send_acks: Send,
    *,
    cluster_id: str = "c",
    stats: CarrierStats | None = None,
    on_full: Callable[[bool], object] = lambda _: None,
    on_lapses: OnLapses = lambda _: None,
    proposals: AlterPartitionManager | None = None,
    host: ExtensionHost | None = None,
) -> Ingest:
    """The ingest of a topic with one partition. `proposals` are needed by standbys, and `host` by queue groups."""
    stats = stats or CarrierStats()
    budget = Budget(binding.buffer_bytes, on_full)
    partitions = SimpleNamespace(proposals=proposals)
    host = host or cast(
        "ExtensionHost", SimpleNamespace(runtime=runtime, cluster_id=cluster_id, partitions=partitions)
    )
    letters = DeadLetters(host, binding, stats, budget)
    client = AckClient(runtime, send_acks)
    return Ingest(host, client, binding, 1, stats, budget, letters, on_lapses)


def no_backfill(runtime: Runtime, gaps: GapLog) -> Backfill:
    """For a broker without followers."""
    return Backfill(runtime, gaps, lambda _: None, lambda _: None)
