"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from barnabas.wire.messages import alter_configs, incremental_alter_configs
from barnabas.wire.messages.alter_configs import AlterConfigsRequest
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from barnabas.wire.messages.list_config_resources import ListConfigResourcesRequest
from compat_tests.conform.case import case
from compat_tests.conform.cases.topics import BAD_CONFIGS
from compat_tests.conform.session import Session
from compat_tests.harness.eventually import eventually

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def describe(
    kind: int,
    name: str,
    keys: list[str] | None = None,
    *,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )


@case("DescribeConfigs")
def topic(session: Session) -> None:
    made = session.create_topic(configs={"retention.ms": "1000"})
    session.ask(describe(TOPIC, made.name), note="all")
    session.ask(describe(TOPIC, made.name, synonyms=True), note="synonyms")
    session.ask(describe(TOPIC, made.name, ["retention.ms", "no.such.config"]), note="two keys")
    session.ask(describe(TOPIC, made.name, []), note="no keys")
    session.ask(describe(TOPIC, session.name("unknown")), note="unknown topic")
    session.ask(describe(TOPIC, "a b"), note="bad name")
    session.ask(describe(TOPIC, ""), note="empty name")


@case("DescribeConfigs")
def order_of_entries(session: Session) -> None:
    """Of names that Kafka has; answers are otherwise compared without their order."""
    made = session.create_topic()
    for kind, name in ((TOPIC, made.name), (BROKER, "1"), (BROKER, ""), (METRICS, "x"), (GROUP, "x")):
        answer = session.quiet(describe(kind, name), version=session.version)
        names = [entry.name for entry in answer.results[0].configs]
        session.record(
            f"type {kind}", [each for each in names if not each.startswith(("barnabas.", "nats."))]
        )
    keys = ["retention.ms", "segment.bytes", "cleanup.policy", "flush.ms"]
    answer = session.quiet(describe(TOPIC, made.name, keys), version=session.version)
    session.record("some keys", [entry.name for entry in answer.results[0].configs])


@case("DescribeConfigs", first=3)
def topic_documentation_is_there(session: Session) -> None:
    made = session.create_topic()
    answer = session.quiet(describe(TOPIC, made.name, documentation=True), version=session.version)
    documented = {entry.name: bool(entry.documentation) for entry in answer.results[0].configs}
    session.record("documented", documented)


@case("DescribeConfigs")
def broker(session: Session) -> None:
    answer = session.quiet(describe(BROKER, "1"), version=session.version)
    for entry in answer.results[0].configs:
        session.record(entry.name, [entry.read_only, entry.is_sensitive, entry.config_type])
    session.ask(
        describe(BROKER, "1", ["log.retention.hours", "num.io.threads", "message.max.bytes"]), note="three"
    )
    session.ask(describe(BROKER, "1", ["log.retention.ms"], synonyms=True), note="synonyms")
    session.ask(describe(BROKER, ""), note="the default of all brokers")
    session.ask(describe(BROKER, "7"), note="another broker")
    session.ask(describe(BROKER, "x"), note="not a number")


@case("DescribeConfigs")
def other_resources(session: Session) -> None:
    for kind in (0, 1, 3, 16, 99, -1):
        session.ask(describe(kind, "x"), note=f"type {kind}")
    session.ask(describe(GROUP, session.name("group")), note="group")
    session.ask(describe(GROUP, ""), note="group without a name")
    session.ask(describe(LOGGER, "7"), note="loggers of another broker")
    session.ask(DescribeConfigsRequest(resources=[]), note="nothing")


def alter(
    kind: int, name: str, configs: Mapping[str, str | None], validate_only: bool = False
) -> AlterConfigsRequest:
    entries = [alter_configs.AlterableConfig(name=key, value=value) for key, value in configs.items()]
    resource = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=entries)
    return AlterConfigsRequest(resources=[resource], validate_only=validate_only)


@case("AlterConfigs")
def alter_topic(session: Session) -> None:
    made = session.create_topic(configs={"retention.bytes": "5000"})
    session.ask(alter(TOPIC, made.name, {"retention.ms": "7777"}, validate_only=True), note="validated")
    session.ask(alter(TOPIC, made.name, {"retention.ms": "7777"}), note="set")
    settled(session, made.name, ("retention.ms", "7777"))
    session.ask(alter(TOPIC, session.name("unknown"), {"retention.ms": "1"}), note="unknown topic")
    session.ask(alter(TOPIC, "a b", {"retention.ms": "1"}), note="bad name")
    session.ask(alter(TOPIC, "", {"retention.ms": "1"}), note="no name")
    for configs in BAD_CONFIGS:
        session.ask(alter(TOPIC, made.name, configs), note=f"{configs}")
    for kind in (0, 1, 3, 16, 99):
        session.ask(alter(kind, "x", {"a": "b"}), note=f"type {kind}")
    double = alter(TOPIC, made.name, {"retention.ms": "1"})
    double.resources = [*double.resources, *double.resources]
    session.ask(double, note="resource twice")
    double = alter(TOPIC, made.name, {"retention.ms": "1"})
    double.resources[0].configs = [*double.resources[0].configs, *double.resources[0].configs]
    session.ask(double, note="key twice")
    session.ask(alter(TOPIC, made.name, {}), note="back to the defaults")
    settled(session, made.name, ("retention.ms", "604800000"))
    session.ask(AlterConfigsRequest(resources=[]), note="nothing")


def settled(session: Session, name: str, awaited: tuple[str, str]) -> None:
    """Record the topic's own settings once the broker has applied `awaited`."""

    def applied() -> Any:
        configs = session.quiet(describe(TOPIC, name), version=4).results[0].configs
        return configs if awaited in [(entry.name, entry.value) for entry in configs] else None

    own = {entry.name: entry.value for entry in eventually(applied) if entry.config_source == 1}
    session.record("settings of the topic", own)


def change(
    kind: int, name: str, *operations: tuple[str, int, str | None], validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    entries = [
        incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in operations
    ]
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=entries
    )
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)


@case("IncrementalAlterConfigs")
def change_topic(session: Session) -> None:
    made = session.create_topic(configs={"retention.bytes": "5000"})
    name = made.name
    session.ask(change(TOPIC, name, ("retention.ms", SET, "7777"), validate_only=True), note="validated")
    session.ask(change(TOPIC, name, ("retention.ms", SET, "7777")), note="set")
    settled(session, name, ("retention.ms", "7777"))
    session.ask(change(TOPIC, name, ("cleanup.policy", APPEND, "compact")), note="append")
    settled(session, name, ("cleanup.policy", "delete,compact"))
    session.ask(change(TOPIC, name, ("cleanup.policy", APPEND, "compact")), note="append again")
    session.ask(change(TOPIC, name, ("cleanup.policy", SUBTRACT, "delete")), note="subtract")
    settled(session, name, ("cleanup.policy", "compact"))
    session.ask(change(TOPIC, name, ("retention.ms", APPEND, "1")), note="append to a number")
    session.ask(change(TOPIC, name, ("retention.ms", 9, "1")), note="unknown operation")
    session.ask(change(TOPIC, name, ("no.such.config", DELETE, None)), note="delete an unknown key")
    session.ask(change(TOPIC, name, ("retention.ms", SET, None)), note="set to null")
    session.ask(
        change(TOPIC, name, ("retention.ms", SET, "1"), ("retention.ms", DELETE, None)), note="key twice"
    )
    session.ask(change(TOPIC, name, ("retention.ms", DELETE, None)), note="delete")
    settled(session, name, ("retention.ms", "604800000"))
    session.ask(change(TOPIC, session.name("unknown"), ("retention.ms", SET, "1")), note="unknown topic")
    session.ask(change(TOPIC, "a b", ("retention.ms", SET, "1")), note="bad name")
    session.ask(change(TOPIC, "", ("retention.ms", SET, "1")), note="no name")
    for configs in BAD_CONFIGS:
        session.ask(
            change(TOPIC, name, *((key, SET, value) for key, value in configs.items())), note=f"{configs}"
        )


@case("IncrementalAlterConfigs")
def change_others(session: Session) -> None:
    for kind in (0, 1, 3, 16, 99):
        session.ask(change(kind, "x", ("a", SET, "b")), note=f"type {kind}")
    for name in ("7", "x", "-1"):
        session.ask(change(BROKER, name, ("log.retention.ms", SET, "1")), note=f"broker {name}")
    for key, value in (
        ("node.id", "2"),
        ("no.such.config", "2"),
        ("log.retention.ms", "abc"),
        ("num.io.threads", "0"),
        ("remote.log.reader.threads", "1000"),
        ("remote.log.manager.copier.thread.pool.size", "1000"),
        ("remote.log.manager.expiration.thread.pool.size", "1"),
        ("message.max.bytes", "-5"),
        ("process.roles", "broker"),
        ("listener.name.sasl.plain.sasl.jaas.config", "no JAAS"),
        ("listener.name.sasl.no.such.config", "2"),
        ("listener.name.sasl.max.connections", "2"),
    ):
        for broker_name in ("", "1"):
            session.ask(
                change(BROKER, broker_name, (key, SET, value), validate_only=True),
                note=f"{key} of {broker_name!r}",
            )
    for key, value in (
        ("consumer.session.timeout.ms", "1"),
        ("no.such", "1"),
        ("consumer.session.timeout.ms", "50000"),
    ):
        session.ask(
            change(GROUP, session.name("g"), (key, SET, value), validate_only=True),
            note=f"group {key} {value}",
        )
    session.ask(
        change(GROUP, "", ("consumer.session.timeout.ms", SET, "50000"), validate_only=True), note="no group"
    )
    session.ask(change(LOGGER, "1", ("no.such.Logger", SET, "INFO"), validate_only=True), note="logger")
    session.ask(change(LOGGER, "1", ("root", SET, "LOUD"), validate_only=True), note="logger level")
    session.ask(change(LOGGER, "7", ("root", SET, "INFO"), validate_only=True), note="another's logger")
    session.ask(IncrementalAlterConfigsRequest(resources=[]), note="nothing")
    double = change(TOPIC, session.name("unknown"), ("retention.ms", SET, "1"))
    double.resources = [*double.resources, *double.resources]
    session.ask(double, note="resource twice")


@case("ListConfigResources")
def list_resources(session: Session) -> None:
    """Other cases create and delete topics meanwhile, so only this case's topic is compared."""
    made = session.create_topic()
    for kinds in ([], [2], [4], [8], [16], [32], [0], [99], [2, 4]):
        if session.version == 0 and kinds:
            continue
        answer = session.quiet(ListConfigResourcesRequest(resource_types=kinds), version=session.version)
        resources = [
            session.names.tree(entry)
            for entry in answer.config_resources
            if entry.resource_type != TOPIC or entry.resource_name == made.name
        ]
        ordered = sorted(resources, key=repr)
        session.record(f"types {kinds}", [answer.error_code, ordered])
