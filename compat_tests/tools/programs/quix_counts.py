"""Counts the orders of each customer: `BOOTSTRAP GUARANTEE STATE_DIRECTORY`. Orders come by number, so customers are a repartitioning,
and their counts are a state with a changelog topic."""

from __future__ import annotations

import sys
from typing import Any

from quixstreams import Application  # type: ignore[import-not-found]

bootstrap, guarantee, state_directory = sys.argv[1:]


def count(order: dict[str, Any], state: Any) -> dict[str, Any]:
    """The order with its place among those of its customer."""
    total = state.get("total", 0) + 1
    state.set("total", total)
    return {**order, "total": total}


app = Application(
    broker_address=bootstrap,
    consumer_group=f"counts-{guarantee}",
    processing_guarantee=guarantee,
    auto_offset_reset="earliest",
    state_dir=state_directory,
    commit_interval=0.5,
    # the member and the transaction of a process that was killed end soon
    consumer_extra_config={"session.timeout.ms": 6000},
    producer_extra_config={"transaction.timeout.ms": 10_000} if guarantee == "exactly-once" else {},
)
orders = app.topic(f"orders-{guarantee}", key_deserializer="str")
stream = app.dataframe(orders).group_by("customer")
stream.apply(count, stateful=True).to_topic(app.topic(f"totals-{guarantee}"))
app.run()
