"""The port of extensions: configs that every controller validates, and what runs on a broker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.describe import broker_entries, topic_entries
from barnabas.broker.extension import Done, ExtensionHost, Extensions, Report, RunningExtension
from barnabas.broker.metrics.families import GAUGE, Family
from barnabas.controller.config.config_def import ConfigDef, ConfigKey
from barnabas.controller.config.validators import ConfigError
from barnabas.controller.extension import NodeValues, TopicChecks
from barnabas.controller.metadata.image import TOPIC_RESOURCE, MetadataDelta, MetadataImage
from barnabas.controller.operations.configs import SET, ConfigChange, ResourceChange, alter_configs
from barnabas.controller.operations.topics import NewTopic, create_topics
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import RegisterBrokerRecord

ROOT = Path(__file__).resolve().parents[2]


class Running:
    """What a part on a broker does, noted in `calls`."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self.calls = calls
        self.waiting: list[Done] = []
        self.allows = True

    def may_take_over(self, partition: object, replica: object) -> bool:
        return self.allows

    def when_settled(self, done: Done) -> None:
        self.calls.append(f"{self.name} settles")
        self.waiting.append(done)

    def leave(self, done: Done) -> None:
        self.calls.append(f"{self.name} leaves")
        self.waiting.append(done)

    def stop(self) -> None:
        self.calls.append(f"{self.name} stops")

    def metrics(self) -> Iterable[Family]:
        yield Family(self.name, GAUGE, "")

    def report(self) -> Report | None:
        return Report(self.name, iter([{"calls": len(self.calls)}])) if self.calls else None


class Fruit:
    """An extension. Only one topic of a request may be `fruit.kind=sour`."""

    topic_configs = ConfigDef("fruit.kind string sweet in:sweet,sour medium")
    broker_configs = ConfigDef("fruit.basket string - * medium\nfruit.key password - * medium")

    def __init__(self, name: str = "fruit", calls: list[str] | None = None) -> None:
        self.running = Running(name, [] if calls is None else calls)
        self.is_started = True

    def broker_key(self, name: str) -> ConfigKey | None:
        found = re.fullmatch(r"fruit\.basket\.\w+", name)
        return None if found is None else ConfigKey(name, "string", None, False, "*", "medium")

    def documentation(self, resource_type: int, name: str) -> str | None:
        return f"{name} of {resource_type}" if name.startswith("fruit.") else None

    def shown(self, name: str, text: str | None) -> str | None:
        return "a basket" if name.startswith("fruit.basket") else text

    def check_broker(self, given: Mapping[str, str]) -> None:
        if given.get("fruit.basket") == "full":
            raise ConfigError("fruit.basket is full")

    def topic_checks(self, image: MetadataImage, node: NodeValues) -> TopicChecks:
        return SourOnce()

    def start(self, host: ExtensionHost) -> RunningExtension | None:
        return cast("RunningExtension", self.running) if self.is_started else None


class SourOnce:
    def __init__(self) -> None:
        self.is_taken = False

    def check(self, topic: str, current: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        if self.is_taken and wanted.get("fruit.kind") == "sour":
            raise ConfigError("one sour topic at a time")

    def accept(self, topic: str, current: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        self.is_taken |= wanted.get("fruit.kind") == "sour"


def started(*extensions: Fruit) -> Extensions:
    made = Extensions(extensions)
    made.start(cast("ExtensionHost", SimpleNamespace()))
    return made


# -- configs


def test_topic_configs_are_validated_by_the_controller() -> None:
    config = BrokerConfig.from_properties({}, [Fruit()])
    wanted = [
        NewTopic("a", 1, 1, configs=[("fruit.kind", "sour")]),
        NewTopic("b", 1, 1, configs=[("fruit.kind", "sour")]),
        NewTopic("c", 1, 1, configs=[("fruit.kind", "bitter")]),
    ]
    image = MetadataImage()
    image.replay(RegisterBrokerRecord(broker_id=1, fenced=False), MetadataDelta())
    decision = create_topics(image, wanted, config, lambda name: name.encode() * 16)
    messages = {each.name: each.message or "" for each in decision.response}
    assert messages["b"] == "one sour topic at a time"
    assert "String must be one of: sweet, sour" in messages["c"]
    assert [each.error for each in decision.response][:1] == [ErrorCode.NONE]


def test_without_the_extension_its_configs_are_unknown() -> None:
    config = BrokerConfig.from_properties({"fruit.basket": "x"})
    assert [text for _, text in config.notes] == ["unknown property fruit.basket is ignored"]
    change = ResourceChange(TOPIC_RESOURCE, "t", [ConfigChange("fruit.kind", SET, "sour")])
    [result] = alter_configs(MetadataImage(), [change], config, validate_only=True).response
    assert result.message == "Unknown topic config name: fruit.kind"


def test_broker_configs_are_checked_and_shown_without_secrets() -> None:
    with pytest.raises(ConfigError, match="is full"):
        BrokerConfig.from_properties({"fruit.basket": "full"}, [Fruit()])
    given = {"fruit.basket": "secret", "fruit.key": "secret", "fruit.basket.small": "secret"}
    config = BrokerConfig.from_properties(given, [Fruit()])
    assert config.notes == []
    entries = {entry.name: entry for entry in broker_entries(config)}
    assert entries["fruit.basket"].value == entries["fruit.basket.small"].value == "a basket"
    assert entries["fruit.key"].value is None
    assert all("secret" not in repr(entries[name]) for name in given)
    kinds = [entry.value for entry in topic_entries(config, {}) if entry.name == "fruit.kind"]
    assert kinds == ["sweet"]
    assert config.tables.documentation(TOPIC_RESOURCE, "fruit.kind") == "fruit.kind of 2"
    assert config.tables.documentation(TOPIC_RESOURCE, "retention.ms")


# -- on a broker


def test_extensions_settle_and_leave_one_after_the_other() -> None:
    calls: list[str] = []
    first, second = Fruit("first", calls), Fruit("second", calls)
    extensions = started(first, second)
    waits: list[Callable[[Done], object]] = [extensions.when_settled, extensions.leave]
    for wait, verb in zip(waits, ("settles", "leaves"), strict=True):
        calls.clear()
        wait(lambda: calls.append("done"))
        assert calls == [f"first {verb}"]
        first.running.waiting.pop()()
        assert calls == [f"first {verb}", f"second {verb}"]
        second.running.waiting.pop()()
        assert calls == [f"first {verb}", f"second {verb}", "done"]
    calls.clear()
    extensions.stop()
    assert calls == ["first stops", "second stops"]


def test_a_follower_joins_the_isr_when_all_extensions_allow_it() -> None:
    first, second = Fruit(), Fruit()
    extensions = started(first, second)
    replica = cast("Any", None)
    assert extensions.may_take_over(replica, replica)
    second.running.allows = False
    assert not extensions.may_take_over(replica, replica)


def test_an_extension_with_nothing_to_do_is_not_asked() -> None:
    idle, other = Fruit("idle"), Fruit("other")
    idle.is_started = False
    idle.running.allows = False
    extensions = started(idle, other)
    assert extensions.may_take_over(cast("Any", None), cast("Any", None))
    assert [family.name for source in extensions.metrics() for family in source()] == ["other"]
    assert extensions.reports() == []
    extensions.stop()
    assert [(report.name, list(report.rows)) for report in extensions.reports()] == [
        ("other", [{"calls": 1}])
    ]
    calls: list[str] = []
    none = started()
    none.when_settled(lambda: calls.append("settled"))
    none.leave(lambda: calls.append("left"))
    assert calls == ["settled", "left"]


def test_no_layer_below_names_an_extension() -> None:
    word = re.compile(r"(?<![a-z])nats(?![a-z])", re.IGNORECASE)
    found = [
        str(path.relative_to(ROOT))
        for layer in ("wire", "storage", "controller", "broker")
        for path in (ROOT / layer).rglob("*.py")
        if "tests" not in path.parts and word.search(path.read_text())
    ]
    assert found == []
