"""The state of a broker's bindings, for the listing (listing.py) and for metrics (metrics.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.nats.carrier import CarrierStats
from barnabas.nats.egress.topic_publisher import TopicPublisher
from barnabas.nats.ingress.core_binding import CoreBinding

if TYPE_CHECKING:
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import Carrier
    from barnabas.nats.ingress.acks import AckStats

PUBLISH: Final = "publish"  # the mode of the way that publishes records
PAUSED: Final = "paused"
REFUSED: Final = "refused"
# The first word of a state; behind a colon follows why.
STATES: Final = ("running", "connecting", "starting", "waiting", "paused", "blocked", "refused", "idle")


class Way(NamedTuple):
    """One way of a binding: messages come in (in the binding's mode), or records go out."""

    mode: str
    state: str
    stats: CarrierStats
    acks: AckStats | None = None


class Overview(NamedTuple):
    """A binding on this broker. `binding` is None for invalid configs; `partitions` are those led here."""

    topic: str
    binding: Binding | None
    partitions: Sequence[int]
    ways: Sequence[Way]
    warning: str = ""  # which messages will be refused, and what to do

    @property
    def state(self) -> str:
        """The state of all ways if they have the same, else of each."""
        states = {way.state: way.mode for way in self.ways}
        if len(states) == 1:
            return next(iter(states))
        return ", ".join(f"{mode}: {state}" for state, mode in states.items())


def overview(
    binding: Binding,
    partitions: Sequence[int],
    carriers: Sequence[Carrier | CoreBinding],
    core_stats: CarrierStats,
    warning: str = "",
) -> Overview:
    """`core_stats` are shown while the binding has no carriers, because it is paused."""
    if carriers:
        ways = sorted((_way(binding, carrier) for carrier in carriers), key=lambda way: way.mode == PUBLISH)
    else:
        state = PAUSED if binding.paused else "idle"
        modes = [binding.mode] if binding.ingests else []
        modes += [PUBLISH] if binding.publishes else []
        ways = [Way(mode, state, core_stats if mode == binding.mode else CarrierStats()) for mode in modes]
    return Overview(binding.topic, binding, partitions, ways, warning)


def refused_overview(topic: str, why: str, partitions: Sequence[int]) -> Overview:
    return Overview(topic, None, partitions, [Way("", f"{REFUSED}: {why}", CarrierStats())])


def _way(binding: Binding, carrier: Carrier | CoreBinding) -> Way:
    if isinstance(carrier, CoreBinding):
        carrier.count()
        return Way(binding.mode, carrier.state, carrier.stats, carrier.ingest.ack_stats)
    mode = PUBLISH if isinstance(carrier, TopicPublisher) or not binding.ingests else binding.mode
    return Way(mode, carrier.state, carrier.stats)
