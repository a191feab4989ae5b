"""`faust_counts.py worker ...` (Faust's own command line): counts the orders of each customer.

Orders come by number: `group_by` sends them through a repartition topic, and the counts are a table with a changelog topic.
"""

from __future__ import annotations

import os
from typing import Any

import faust  # type: ignore[import-not-found]

app = faust.App(
    "faust-counts",
    broker=f"kafka://{os.environ['BOOTSTRAP']}",
    datadir=os.environ["DATA"],
    store="memory://",  # so that a restart reads the changelog
    topic_partitions=3,
    topic_replication_factor=1,
    web_enabled=False,
    value_serializer="json",
)
orders = app.topic("faust-orders", key_type=str)
totals = app.topic("faust-totals", key_type=str)
counts = app.Table("counts", default=int, partitions=3)


async def count(stream: Any) -> None:
    """Each order, with its place among those of its customer."""
    async for order in stream.group_by(lambda each: each["customer"], name="customer"):
        counts[order["customer"]] += 1
        await totals.send(key=order["customer"], value={**order, "total": counts[order["customer"]]})


app.agent(orders)(count)
app.main()
