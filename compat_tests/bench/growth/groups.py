"""Members of one group, and groups with offsets."""

from __future__ import annotations

import argparse
import asyncio

from compat_tests.bench.group_members import ClassicMember, ConsumerMember
from compat_tests.bench.groups import create_topic, measure_group, measure_offsets
from compat_tests.bench.growth.curves import Figures
from compat_tests.bench.hostile import wait_for_rest
from compat_tests.harness.broker import Broker


def members(broker: Broker, count: int) -> Figures:
    """One group, by the classic protocol and by that of consumer groups. The broker runs and has no topic of this bench."""
    topic_id = create_topic(broker, count)
    wait_for_rest([broker])
    options = argparse.Namespace(members=count, seconds=2, rate=200)
    figures: dict[str, float] = {}
    for kind in (ClassicMember, ConsumerMember):
        found = asyncio.run(measure_group(broker, kind, topic_id, options, f"{kind.protocol}-{count}"))
        figures |= {
            f"{kind.protocol}: {name.rpartition(': ')[2]}": value
            for name, value in found.items()
            if "members" in name
        }
        figures[f"{kind.protocol}: heartbeats in a second of CPU"] = next(
            value for name, value in found.items() if name.endswith("in a second of CPU")
        )
    return figures


def offsets(broker: Broker, count: int) -> Figures:
    """So many groups with an offset, and a restart with them."""
    create_topic(broker, 1)
    found = measure_offsets(broker, count)
    return {name.rpartition(": ")[2]: value for name, value in found.items() if "groups with" in name}
