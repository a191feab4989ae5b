"""Ingests for tests: no topic takes dead letters, and the byte budget is the binding's."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from barnabas.nats.carrier import CarrierStats
from barnabas.nats.dead_letters import DeadLetters
from barnabas.nats.ingest.budget import Budget
from barnabas.nats.ingest.ingest import Ingest

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.ingest.acks import Send
    from barnabas.nats.ingest.ingest import MakeGroup
    from barnabas.runtime.interface import Runtime


def make_ingest(
    runtime: Runtime,
    binding: Binding,
    send_acks: Send,
    *,
    cluster_id: str = "c",
    stats: CarrierStats | None = None,
    on_full: Callable[[bool], object] = lambda _: None,
    make_group: MakeGroup | None = None,
) -> Ingest:
    """The ingest of a topic with one partition."""
    stats = stats or CarrierStats()
    budget = Budget(binding.buffer_bytes, on_full)
    services = cast("Services", SimpleNamespace(runtime=runtime))
    letters = DeadLetters(services, binding, stats, budget)
    return Ingest(runtime, binding, 1, stats, cluster_id, send_acks, budget, letters, make_group)
