"""Which queries of public dashboards find all their metrics on the page of one busy node."""

from __future__ import annotations

import pytest

from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.monitoring.busy import SETTINGS, busy_page
from compat_tests.monitoring.dashboards import load
from compat_tests.monitoring.expositions import names_of

pytestmark = pytest.mark.barnabas_only

ANSWERED = {
    "Strimzi Kafka": 27,
    "Strimzi KRaft": 6,
    "Strimzi Kafka Exporter": 16,
    "Confluent Kafka cluster": 41,
    "Confluent Kafka topics": 6,
    "kafka-observ-lib overview": 45,
    "kafka-observ-lib topics": 11,
    "kafka-mixin overview": 37,
}


def test_what_public_dashboards_ask_for(module_broker: BrokerFactory) -> None:
    names = names_of(busy_page(module_broker(SETTINGS)))
    dashboards = load()
    assert {each.name: each.answered(names) for each in dashboards.all} == ANSWERED
    missing = frozenset().union(*(each.missing(names) for each in dashboards.unanswered(names)))
    reasons = dashboards.absent.values()
    assert not {name for name in missing if not any(each.fullmatch(name) for each in reasons)}
    assert all(any(map(each.fullmatch, missing)) for each in reasons)
