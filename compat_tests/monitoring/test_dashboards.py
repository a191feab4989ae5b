"""What dashboards and alert rules ask for is on the page of one busy node: public ones, as far as it can be, and ours."""

from __future__ import annotations

import re

import pytest

from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.monitoring.busy import SETTINGS, busy_page
from compat_tests.monitoring.dashboards import load
from compat_tests.monitoring.expositions import names_of
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

# How many queries find all their names on the page, and with the rules of other-names.yml
ANSWERED = {
    "Strimzi Kafka": (27, 27),
    "Strimzi KRaft": (6, 8),
    "Strimzi Kafka Exporter": (16, 16),
    "Confluent Kafka cluster": (41, 71),
    "Confluent Kafka topics": (6, 11),
    "kafka-observ-lib overview": (45, 45),
    "kafka-observ-lib topics": (11, 11),
    "kafka-mixin overview": (37, 65),
}


@pytest.fixture(scope="module")
def names(module_broker: BrokerFactory) -> frozenset[str]:
    """Those of the samples on the page."""
    return names_of(busy_page(module_broker(SETTINGS)))


def test_what_public_dashboards_ask_for(names: frozenset[str]) -> None:
    dashboards = load()
    recorded = names | {rule.name for rule in rules_of(OTHER_NAMES)}
    answered = {each.name: (each.answered(names), each.answered(recorded)) for each in dashboards.all}
    assert answered == ANSWERED
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


def test_each_alert_has_a_unit_test_in_which_it_fires() -> None:
    fires = re.findall(r"alertname: (\w+)\n +eval_time: \w+\n +exp_alerts:\n", ALERT_TESTS.read_text())
    assert {rule.name for rule in rules_of(ALERTS) if rule.kind == "alert"} == set(fires)
