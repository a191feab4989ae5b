"""The metrics of a node without a listener."""

from __future__ import annotations

from barnabas.broker.metrics.health import RUNNING
from barnabas.broker.metrics.node import node_sources
from barnabas.broker.tests.leader import Leader
from barnabas.controller.link.traffic import LinkTraffic


def samples(leader: Leader) -> dict[str, float]:
    """By name and labels."""
    node = leader.node
    sources = node_sources(
        node.services,
        node._dispatcher,
        node._connections,
        node._cleaner,
        None,
        {},
        RUNNING,
        lambda: 0,
        LinkTraffic(),
    )
    return {
        family.name + labels: value
        for source in sources
        for family in source()
        if family is not None
        for labels, value in family.samples
    }
