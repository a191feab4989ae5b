"""GetTelemetrySubscriptions and PushTelemetry, against brokers without a receiver, which serve them as those with one do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from barnabas.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from barnabas.wire.messages.push_telemetry import PushTelemetryRequest
from compat_tests.conform.case import case
from compat_tests.conform.cases.configs import DELETE, METRICS, SET
from compat_tests.conform.session import Session
from compat_tests.harness.eventually import eventually

Get = GetTelemetrySubscriptionsRequest
Push = PushTelemetryRequest


def _id(number: int) -> bytes:
    return bytes(13) + b"\x71\x72" + bytes([number])


def _alter(session: Session, name: str, kind: int, configs: Mapping[str, str | None]) -> None:
    resource = AlterConfigsResource(resource_type=METRICS, resource_name=name)
    resource.configs = [
        AlterableConfig(name=each, config_operation=kind, value=text) for each, text in configs.items()
    ]
    assert not session.quiet(IncrementalAlterConfigsRequest(resources=[resource])).responses[0].error_code


@contextlib.contextmanager
def _subscription(session: Session, **configs: str) -> Iterator[None]:
    """Set one, with `_` for `.`, and wait until it counts."""
    name = session.name("subscription")
    named = {each.replace("_", "."): text for each, text in configs.items()}

    def metrics() -> Any:
        return session.quiet(Get(), version=0).requested_metrics

    _alter(session, name, SET, named)
    try:
        eventually(lambda: metrics() != [], 20)
        yield
    finally:
        _alter(session, name, DELETE, dict.fromkeys(named))
        eventually(lambda: metrics() == [], 20)


@case("GetTelemetrySubscriptions")
def without_subscriptions(session: Session) -> None:
    session.ask(Get(client_instance_id=_id(1)), note="first")
    session.ask(Get(client_instance_id=_id(1)), note="too early")
    session.ask(Get(client_instance_id=_id(1)), on="another", note="too early on another connection")
    answer = session.quiet(Get(), version=0, on="main")
    session.record("an id is given", [answer.error_code, any(answer.client_instance_id)])


@case("GetTelemetrySubscriptions")
def one_subscription(session: Session) -> None:
    with _subscription(
        session, metrics="org.apache.kafka.one", interval_ms="3600000", match="client_id=conf.*"
    ):
        session.ask(Get(client_instance_id=_id(2)), note="an interval above the default")
    with _subscription(session, metrics="org.apache.kafka.one", interval_ms="100"):
        session.ask(Get(client_instance_id=_id(3)), note="no patterns")
    with _subscription(session, metrics="a,b,*"):
        session.ask(Get(client_instance_id=_id(4)), note="all metrics")


@case("GetTelemetrySubscriptions")
def patterns(session: Session) -> None:
    with _subscription(session, metrics="m", match="client_source_address=127.*,client_id=conform"):
        for number, other in enumerate(
            (
                "client_id=conf",
                "client_software_name=unknown,client_software_version=unknown",
                "client_source_port=[0-9]+",
                "client_instance_id=AAAAAAAAAAAAAAAAAHFyCg",
                "client_id=.*o.*m",
            )
        ):
            name = session.name(f"other-{number}")
            _alter(session, name, SET, {"metrics": "found", "match": other})

            def is_known() -> bool:
                # The marker, which comes behind the other and applies to all clients, has been taken over.
                return bool(session.quiet(Get(), version=0).push_interval_ms <= 2000)

            marker = session.name("marker")
            _alter(session, marker, SET, {"metrics": "m", "interval.ms": "2000"})
            eventually(is_known, 20)
            found = session.quiet(Get(client_instance_id=_id(5 + number)), version=0, on=f"c{number}")
            session.record(other, sorted(found.requested_metrics))
            _alter(session, name, DELETE, {"metrics": None, "match": None})
            _alter(session, marker, DELETE, {"metrics": None, "interval.ms": None})


@case("PushTelemetry")
def pushes(session: Session) -> None:
    session.ask(Push(client_instance_id=bytes(16)), note="zero id")
    session.ask(Push(client_instance_id=bytes(15) + b"\1"), note="id one")
    session.ask(Push(client_instance_id=_id(20)), note="before a question")
    known = session.ask(Get(client_instance_id=_id(20)), note="a question behind an unknown subscription")
    session.ask(Push(client_instance_id=_id(20), subscription_id=known.subscription_id), note="too early")
    known = session.ask(Get(client_instance_id=_id(21)), note="a question").subscription_id
    session.ask(Push(client_instance_id=_id(21), subscription_id=known, metrics=b"x"), note="a push")
    session.ask(Push(client_instance_id=_id(21), subscription_id=known), note="too early")
    last = Push(client_instance_id=_id(21), subscription_id=known, terminating=True)
    session.ask(last, note="the last, at any time")
    session.ask(last, note="behind the last")
    session.ask(Get(client_instance_id=_id(21)), note="a question behind the last")


@case("PushTelemetry")
def refused_pushes(session: Session) -> None:
    for number, push in enumerate(
        (
            Push(compression_type=4, metrics=b"x"),
            Push(compression_type=5),
            Push(compression_type=-1),
            Push(metrics=bytes(1048576)),
            Push(metrics=bytes(1048577)),
            Push(metrics=bytes(1048577), compression_type=7),
        )
    ):
        push.client_instance_id = _id(30 + number)
        known = session.quiet(Get(client_instance_id=push.client_instance_id), version=0, on="main")
        push.subscription_id = known.subscription_id
        session.ask(push, note=f"{push.compression_type} {len(push.metrics)}")
        session.ask(push, note=f"{push.compression_type} {len(push.metrics)} again")
        again = session.quiet(Get(client_instance_id=push.client_instance_id), version=0, on="main")
        session.record(f"question behind {push.compression_type} {len(push.metrics)}", again.error_code)


@case("PushTelemetry")
def changed_subscription(session: Session) -> None:
    before = session.ask(Get(client_instance_id=_id(40)), note="before").subscription_id
    with _subscription(session, metrics="x"):
        push = Push(client_instance_id=_id(40), subscription_id=before)
        session.ask(push, note="a push for the old subscription")
        session.ask(Get(client_instance_id=_id(40)), note="a question")
    session.ask(Get(client_instance_id=_id(40)), note="a question behind another change")


@case("PushTelemetry")
def closed_connection(session: Session) -> None:
    session.ask(Get(client_instance_id=_id(50)), on="first", note="first")
    session.drop("first")

    def is_forgotten() -> bool:
        return not session.quiet(Get(client_instance_id=_id(50)), version=0, on="second").error_code

    eventually(is_forgotten, 20)
    session.record("forgotten", True)
