"""Parts of core bindings for tests: no topic takes dead letters, and the byte budget is the binding's."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from barnabas.nats.carrier import CarrierStats
from barnabas.nats.dead_letters import DeadLetters
from barnabas.nats.ingress.backpressure import Budget
from barnabas.nats.ingress.gap_tracker import Backfill, GapLog
from barnabas.nats.ingress.ingest import Ingest

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.ingress.acks import Send
    from barnabas.nats.ingress.ingest import MakeGroup, OnLapses
    from barnabas.runtime.interface import Runtime


def make_ingest(
    runtime: Runtime,
    binding: Binding,
    send_acks: Send,
    *,
    cluster_id: str = "c",
    stats: CarrierStats | None = None,
    on_full: Callable[[bool], object] = lambda _: None,
    on_lapses: OnLapses = lambda _: None,
    make_group: MakeGroup | None = None,
) -> Ingest:
    """The ingest of a topic with one partition."""
    stats = stats or CarrierStats()
    budget = Budget(binding.buffer_bytes, on_full)
    services = cast("ExtensionHost", SimpleNamespace(runtime=runtime))
    letters = DeadLetters(services, binding, stats, budget)
    return Ingest(runtime, binding, 1, stats, cluster_id, send_acks, budget, letters, on_lapses, make_group)


def no_backfill(runtime: Runtime, gaps: GapLog) -> Backfill:
    """For a broker without followers."""
    return Backfill(runtime, gaps, lambda _: None, lambda _: None)
