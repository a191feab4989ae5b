"""What dashboards and alert rules ask for is on the page of one busy node: public ones, as far as it can be, and ours."""

from __future__ import annotations

import re

import pytest

from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.monitoring.busy import SETTINGS, busy_page
from compat_tests.monitoring.dashboards import load
from compat_tests.monitoring.expositions import names_of
from compat_tests.monitoring.metrics_doc import families
from compat_tests.monitoring.rules import (
    ALERT_TESTS,
    ALERTS,
    DASHBOARD,
    OTHER_NAMES,
    names_in,
    queries_of,
    rules_of,
)

pytestmark = pytest.mark.barnabas_only


@pytest.fixture(scope="module")
def names(module_broker: BrokerFactory) -> frozenset[str]:
    """Those of the samples on the page."""
    return names_of(busy_page(module_broker(SETTINGS)))


def test_what_public_dashboards_ask_for(names: frozenset[str]) -> None:
    dashboards = load()
    recorded = names | {rule.name for rule in rules_of(OTHER_NAMES)}
    for each in dashboards.all:
        assert (each.count_answered(names), each.count_answered(recorded)) == each.answered, each.name
    missing = frozenset().union(*(each.missing(recorded) for each in dashboards.unanswered(recorded)))
    reasons = dashboards.absent.values()
    assert not {name for name in missing if not any(each.fullmatch(name) for each in reasons)}
    assert all(any(map(each.fullmatch, missing)) for each in reasons)


@pytest.mark.parametrize("path", [ALERTS, OTHER_NAMES], ids=lambda path: path.name)
def test_rules_find_their_metrics(names: frozenset[str], path: object) -> None:
    assert isinstance(path, type(ALERTS))
    known = set(names)
    for rule in rules_of(path):
        assert rule.asked <= known, rule
        assert rule.name not in names
        if rule.kind == "record":
            known.add(rule.name)


def test_our_dashboard_finds_its_metrics(names: frozenset[str]) -> None:
    queries = queries_of(DASHBOARD)
    assert len(queries) > 20
    for query in queries:
        assert names_in(query) <= names, query


def test_the_documentation_has_all_that_a_page_has(names: frozenset[str]) -> None:
    assert names <= {family.name for family in families()}


def test_each_alert_has_a_unit_test_in_which_it_fires() -> None:
    fires = re.findall(r"alertname: (\w+)\n +eval_time: \w+\n +exp_alerts:\n", ALERT_TESTS.read_text())
    assert {rule.name for rule in rules_of(ALERTS) if rule.kind == "alert"} == set(fires)
