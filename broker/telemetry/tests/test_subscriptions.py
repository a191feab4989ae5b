"""Subscriptions: whom they apply to, and what follows from several."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from barnabas.broker.telemetry.subscriptions import choose, parse_subscription, subscription_id
from barnabas.runtime.slices import run_through

ATTRIBUTES = {"client_id": "orders-1", "client_source_port": "9", "client_software_name": None}


def chosen(*configs: Mapping[str, str]) -> tuple[tuple[str, ...], int]:
    subscriptions = [parse_subscription(f"s{number}", each) for number, each in enumerate(configs)]
    wanted = run_through(choose(subscriptions, bytes(16), ATTRIBUTES))
    return wanted.metrics, wanted.interval_ms


def test_without_subscriptions() -> None:
    assert chosen() == ((), 300_000)


def test_union_of_metrics_and_the_shortest_interval() -> None:
    one = {"metrics": "b, a", "interval.ms": "2000"}
    assert chosen(one, {"metrics": "b,c", "interval.ms": "1000"}) == (("a", "b", "c"), 1000)
    assert chosen(one, {"metrics": "*"}) == (("*",), 2000)


@pytest.mark.parametrize(
    ("match", "applies"),
    [
        ("client_id=orders-.*", True),
        ("client_id=orders", False),  # all of the text
        ("client_id=orders-1, client_source_port=[0-9]", True),
        ("client_id=orders-1,client_source_port=8", False),
        ("client_software_name=.*", False),  # not known
        (r"client_id=(?!x).*", False),  # no pattern of RE2
    ],
)
def test_patterns(match: str, applies: bool) -> None:
    assert bool(chosen({"metrics": "a", "match": match})[0]) == applies


def test_a_pattern_that_would_take_exponential_time() -> None:
    subscription = parse_subscription("s", {"metrics": "a", "match": "client_id=(a|aa|a*)*b"})
    attributes = {"client_id": "a" * 3000}
    assert run_through(choose([subscription], bytes(16), attributes)).metrics == ()


def test_the_id_is_kafkas() -> None:
    # As Apache Kafka 4.3.1 answers for this client instance id without subscriptions.
    assert subscription_id((), 300_000, bytes(14) + b"\x05\x06") == -725131560
