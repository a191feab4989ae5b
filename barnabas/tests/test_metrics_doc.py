"""docs/metrics.md has every metric of a node, our alerts, and the figures of public dashboards."""

from pathlib import Path

from compat_tests.monitoring.metrics_doc import with_tables


def test_the_tables_are_as_generated() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    assert page == with_tables(page), "run: .venv/bin/python -m compat_tests.monitoring.metrics_doc"
