"""Pages of metrics, read as Prometheus reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def names_of(page: str) -> frozenset[str]:
    """The names of all samples."""
    return frozenset(
        sample.name for family in text_string_to_metric_families(page) for sample in family.samples
    )
