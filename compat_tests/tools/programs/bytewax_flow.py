"""`BOOTSTRAP IN OUT COUNT`: reads a topic to its end, counts by key, writes each value with its count, without a group."""

from __future__ import annotations

import sys
from typing import Any

import bytewax.operators as op  # type: ignore[import-not-found]
from bytewax.connectors.kafka import KafkaSinkMessage  # type: ignore[import-not-found]
from bytewax.connectors.kafka import operators as kafka
from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
from bytewax.testing import cluster_main  # type: ignore[import-not-found]

bootstrap, source, sink = sys.argv[1:]


def number(state: int | None, message: Any) -> tuple[int, Any]:
    """A record, for the sink, with its place among those of its key."""
    count = (state or 0) + 1
    return count, KafkaSinkMessage(message.key, b"%s:%d" % (message.value, count))


flow = Dataflow("orders")
read = kafka.input("read", flow, brokers=[bootstrap], topics=[source], tail=False)
op.raises("errors", read.errs)
keyed = op.key_on("by-customer", read.oks, lambda message: message.key.decode())
counted = op.stateful_map("count", keyed, number)
kafka.output("write", op.key_rm("records", counted), brokers=[bootstrap], topic=sink)
cluster_main(flow, [], 0, worker_count_per_proc=2)
