"""Reads a node's metrics as Prometheus does."""

from __future__ import annotations

import re
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from compat_tests.harness.broker import Broker

LISTENER = "barnabas.metrics.listener"


def address(broker: Broker) -> str:
    """HOST:PORT of the node's listener."""
    return str(re.findall(r"metrics are at http://(127\.0\.0\.1:\d+)/metrics", broker.log_text())[-1])


def page(broker: Broker) -> str:
    """The text that the node's listener serves."""
    with urllib.request.urlopen(f"http://{address(broker)}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def metrics(broker: Broker) -> dict[tuple[str, str], float]:
    """Values by name and partition ("topic-0") or listener, "" for the node's own."""
    return {
        (
            sample.name,
            "-".join(
                [sample.labels[name] for name in ("listener", "topic", "partition") if name in sample.labels]
            ),
        ): (sample.value)
        for family in text_string_to_metric_families(page(broker))
        for sample in family.samples
    }
