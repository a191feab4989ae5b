"""The tables of docs/properties.md: every property of brokers, topics, groups and client metrics subscriptions.

What a property does here is derived from the code. It has an effect where a module of the product that acts on values names it: as
an attribute of the broker's configuration, as a setting of a log, or by its name in a string. Where none does, a value is accepted
and has no effect. The texts are those of DescribeConfigs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Final

import msgspec

from barnabas.broker.config.authorizer import authorizer_config
from barnabas.broker.config.broker_config import _ASSUMED, PROPERTY_OF_ATTRIBUTE, BrokerConfig
from barnabas.broker.config.warnings import without_effect
from barnabas.broker.security.oauthbearer_config import _token_fetcher
from barnabas.broker.security.ssl_config import read_ssl_config
from barnabas.controller.config.config_def import CLUSTER_WIDE, PER_BROKER, ConfigDef, ConfigKey
from barnabas.controller.config.group_configs import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS, GROUP_SYNONYMS
from barnabas.controller.config.topic_configs import TOPIC_SYNONYMS, validate_topic_configs
from barnabas.controller.extension import ConfigTables
from barnabas.controller.metadata.image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from barnabas.extensions import EXTENSIONS
from barnabas.storage.log.log_config import LogConfig, property_of
from barnabas.tests.product import ROOT, nodes_of, product_files

PAGE: Final = "docs/properties.md"
TABLES: Final = ConfigTables(EXTENSIONS)
# These name properties without acting on their values: tables, texts, checks, lists to show.
_NO_READERS: Final = (
    "controller/config/",
    "controller/operations/configs.py",
    "broker/config/describe.py",
    "broker/config/warnings.py",
    "wire/messages/",
    "barnabas/nats/config_docs.py",
    "barnabas/testing/",
)
_UPDATES: Final = {CLUSTER_WIDE: "cluster, broker", PER_BROKER: "broker"}


def _start(**properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties({name.replace("_", "."): text for name, text in properties.items()})


def _tls(**properties: str) -> None:
    read_ssl_config(_start(listeners="SSL://127.0.0.1:9092", **properties), "SSL")


def _token(name: str) -> object:
    return _token_fetcher("https://127.0.0.1/token", {name: "org.example.Retriever"}.get, {}, 1.0)


# Values that Kafka has and that are refused here, with what shows it: it raises ConfigError.
REFUSED: Final[dict[str, tuple[str, Callable[[], object]]]] = {
    "authorizer.class.name": (
        "classes other than Kafka's StandardAuthorizer",
        partial(authorizer_config, {"authorizer.class.name": "org.example.Authorizer"}),
    ),
    "principal.builder.class": ("Java classes", partial(_tls, principal_builder_class="org.example.Builder")),
    "ssl.engine.factory.class": ("Java classes", partial(_tls, ssl_engine_factory_class="org.example.Factory")),
    "ssl.enabled.protocols": ("lists without TLSv1.2 and TLSv1.3", partial(_tls, ssl_enabled_protocols="TLSv1.1")),
    "sasl.oauthbearer.assertion.file": ("any value", partial(_token, "sasl.oauthbearer.assertion.file")),
    "sasl.oauthbearer.assertion.claim.iss": ("any value", partial(_token, "sasl.oauthbearer.assertion.claim.iss")),
    "sasl.oauthbearer.jwt.retriever.class": ("classes that Kafka does not have", partial(_token, "sasl.oauthbearer.jwt.retriever.class")),
    "remote.storage.enable": (
        "true without remote.log.storage.system.enable",
        partial(validate_topic_configs, {"remote.storage.enable": "true"}),
    ),
}  # fmt: skip


@cache
def read_properties() -> frozenset[str]:
    """The properties that the product reads; those of topics and groups with the broker's that are their defaults."""
    kinds = [name.partition(".")[2] for name in GROUP_CONFIGS]  # "num.standby.replicas", of the kind at hand
    names = {*TABLES.updatable, *TABLES.topic, *GROUP_CONFIGS, *CLIENT_METRICS_CONFIGS, *kinds}
    found = {property_of(field.name) for field in msgspec.structs.fields(LogConfig)}
    for path in product_files():
        if not str(path.relative_to(ROOT)).startswith(_NO_READERS):
            found.update(_named_in(path, names))
    for topic_property, synonyms in TOPIC_SYNONYMS.items():
        if topic_property in found:
            found.update(name for name, _ in synonyms)
    for group_property, broker_property in GROUP_SYNONYMS.items():
        kind, _, rest = group_property.partition(".")
        if found & {group_property, broker_property, rest}:
            bounds = (f"group.{kind}.{bound}.{rest.removeprefix('num.')}" for bound in ("min", "max"))
            found.update((group_property, broker_property, *bounds))
    return frozenset((found & names) - without_effect())


def _named_in(path: Path, names: Collection[str]) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if node.attr in PROPERTY_OF_ATTRIBUTE:
                yield PROPERTY_OF_ATTRIBUTE[node.attr]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names:
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            # f"{side}.replication.throttled.rate"; one like f"group.{name}" could be any
            fixed = [part.value for part in node.values if isinstance(part, ast.Constant)]
            if any(str(text).count(".") > 1 and " " not in str(text) for text in fixed):
                parts = (
                    re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+"
                    for part in node.values
                )
                whole = re.compile("".join(parts))
                yield from filter(whole.fullmatch, names)


def _meaning(key: ConfigKey, resource: int, *, is_idle: bool) -> str:
    text = TABLES.documentation(resource, key.name) or ""
    if is_idle:
        _, _, text = text.partition("Has no effect: ")
    if key.name in REFUSED:
        text = f"{text} Refused: {REFUSED[key.name][0]}.".strip()
    return text.replace("|", "\\|")


def _default(key: ConfigKey) -> str:
    text = _ASSUMED.get(key.name, key.default)
    return f"`{text}`" if text else ""


def _values(key: ConfigKey) -> str:
    kind, _, allowed = key.validator.partition(":")
    if kind in ("in", "anycase"):
        return ", ".join(f"`{each}`" for each in allowed.split(","))
    if key.validator.startswith("["):
        return f"{key.type} `{key.validator}`"
    return (
        f"list of {', '.join(f'`{each}`' for each in allowed.split(','))}"
        if kind == "list" and allowed
        else key.type
    )


def _table(
    keys: Iterable[ConfigKey],
    resource: int,
    *,
    updates: Mapping[str, str] | None = None,
    is_idle: bool = False,
) -> str:
    """`updates`: what the column of update modes says. `is_idle`: they have no effect, and a text only where it says why."""
    head = [
        "property",
        "default",
        "values",
        *(["can change"] if updates else []),
        "" if is_idle else "what it does",
    ]
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for key in sorted(keys, key=lambda key: key.name):
        columns = [f"`{key.name}`", _default(key), _values(key)]
        if updates:
            columns.append(updates.get(key.update_mode, ""))
        rows.append(f"| {' | '.join([*columns, _meaning(key, resource, is_idle=is_idle)])} |")
    return "\n".join(rows)


def _split(table: ConfigDef) -> tuple[list[ConfigKey], list[ConfigKey]]:
    """The properties of a table that have an effect, and those that have none."""
    shown = [key for key in table.values() if not key.internal]
    read = read_properties()
    return [key for key in shown if key.name in read], [key for key in shown if key.name not in read]


def tables() -> dict[str, str]:
    """Markdown by the name of its markers."""
    broker, broker_idle = _split(TABLES.updatable)
    topic, topic_idle = _split(TABLES.topic)
    group, group_idle = _split(GROUP_CONFIGS)
    assert not group_idle, group_idle
    return {
        "broker": _table(broker, BROKER_RESOURCE, updates=_UPDATES),
        "broker-idle": _table(broker_idle, BROKER_RESOURCE, is_idle=True),
        "topic": _table(topic, TOPIC_RESOURCE),
        "topic-idle": _table(topic_idle, TOPIC_RESOURCE, is_idle=True),
        "group": _table(group, GROUP_RESOURCE),
        "client-metrics": _table(CLIENT_METRICS_CONFIGS.values(), CLIENT_METRICS_RESOURCE),
    }
