"""Entries of DescribeConfigs: each property's value, its source, and its synonyms.

Synonyms are the values that a property has in its sources, from highest to lowest precedence: the resource itself, dynamic on
this broker, dynamic for the cluster, server.properties, the default. The list starts at the property's own broker name, so a
topic's retention.ms shows log.retention.hours only behind a log.retention.ms that is set, as in Kafka.

The entries have Kafka's order, which is that of a Java HashMap of so many names.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.config.listeners import base_name
from barnabas.controller.config.config_def import READ_ONLY, ConfigDef, ConfigKey
from barnabas.controller.config.group_configs import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS, GROUP_SYNONYMS
from barnabas.controller.config.topic_configs import TOPIC_SYNONYMS
from barnabas.controller.extension import ConfigTables
from barnabas.wire.messages.describe_configs import DescribeConfigsResourceResult, DescribeConfigsSynonym

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig

DYNAMIC_TOPIC: Final = 1
DYNAMIC_BROKER: Final = 2
DYNAMIC_CLUSTER: Final = 3
STATIC_BROKER: Final = 4
DEFAULT: Final = 5
BROKER_LOGGER: Final = 6
CLIENT_METRICS: Final = 7
GROUP: Final = 8

# Broker properties that set one value in several units, the finest first.
_UNITS: Final[tuple[tuple[str, ...], ...]] = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_FLUSH: Final = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")

Entry = DescribeConfigsResourceResult
Synonym = DescribeConfigsSynonym


def topic_entries(config: BrokerConfig, overrides: Mapping[str, str]) -> list[Entry]:
    """Every property of a topic that sets `overrides`."""
    values = config.topic_properties(overrides)
    entries: list[Entry] = []
    tables = config.tables
    for key in _listed(tables.topic):
        synonyms = _own(tables, key.name, overrides, DYNAMIC_TOPIC)
        if key.name in TOPIC_SYNONYMS:
            synonyms += broker_synonyms(config, TOPIC_SYNONYMS[key.name][0][0])
        entries.append(_entry(tables, key, values.get(key.name), synonyms, read_only=False))
    return _in_order(tables, entries)


def broker_entries(config: BrokerConfig) -> list[Entry]:
    """Every property of this broker."""
    tables = config.tables
    entries = [
        _entry(
            tables,
            key,
            config.value(key.name),
            broker_synonyms(config, key.name),
            key.update_mode == READ_ONLY,
        )
        for key in (*_listed(tables.broker), *_open_ended(config))
    ]
    others = {**config.given, **config.stored_cluster, **config.stored_node}
    for name in others:
        if name not in tables.broker:
            entries.append(_stored_entry(tables, name, others[name], broker_synonyms(config, name)))
    return _in_order(tables, entries)


def cluster_entries(config: BrokerConfig, stored: Mapping[str, str]) -> list[Entry]:
    """The dynamic values for the whole cluster, and nothing else (resource name "")."""
    entries = [
        _stored_entry(config.tables, name, text, _own(config.tables, name, stored, DYNAMIC_CLUSTER))
        for name, text in stored.items()
    ]
    return _in_order(config.tables, entries)


def group_entries(config: BrokerConfig, overrides: Mapping[str, str]) -> list[Entry]:
    """Every property of a group that sets `overrides`."""
    entries: list[Entry] = []
    tables = config.tables
    for key in _listed(GROUP_CONFIGS):
        synonyms = _own(tables, key.name, overrides, GROUP)
        value = overrides.get(key.name, key.default)
        if key.name in GROUP_SYNONYMS:
            broker_name = GROUP_SYNONYMS[key.name]
            synonyms += broker_synonyms(config, broker_name)
            value = overrides.get(key.name, config.value(broker_name))
        elif key.default is not None:
            synonyms.append(_synonym(tables, key.name, key.default, DEFAULT))
        entries.append(_entry(tables, key, value, synonyms, read_only=False))
    return _in_order(tables, entries)


def client_metrics_entries(config: BrokerConfig, overrides: Mapping[str, str]) -> list[Entry]:
    """Every property of a client metrics subscription that sets `overrides`."""
    tables = config.tables
    entries = [
        _entry(
            tables,
            key,
            overrides.get(key.name, key.default),
            _own(tables, key.name, overrides, CLIENT_METRICS),
            read_only=False,
        )
        for key in _listed(CLIENT_METRICS_CONFIGS)
    ]
    return _in_order(tables, entries)


def broker_synonyms(config: BrokerConfig, name: str) -> list[Synonym]:
    """The synonyms of the broker property `name`, highest precedence first."""
    names: tuple[str, ...] = next((group for group in _UNITS if name in group), (name,))
    if name == _FLUSH[0]:
        names = _FLUSH
    elif base_name(name) != name:
        names = (name, base_name(name))
    table = config.tables.broker
    defaults = {each: table[each].default for each in names if each in table}
    sources: tuple[tuple[Mapping[str, str | None], int], ...] = (
        (config.stored_node, DYNAMIC_BROKER),
        (config.stored_cluster, DYNAMIC_CLUSTER),
        (config.given, STATIC_BROKER),
        (defaults, DEFAULT),
    )
    found = [
        _synonym(config.tables, each, text, source)
        for values, source in sources
        for each in names
        if (text := values.get(each)) is not None
    ]
    start = next((index for index, synonym in enumerate(found) if synonym.name == name), len(found))
    return found[start:]


def _listed(table: ConfigDef) -> Iterable[ConfigKey]:
    return (key for key in table.values() if not key.internal)


def _in_order(tables: ConfigTables, entries: list[Entry]) -> list[Entry]:
    """Kafka's properties in Kafka's order; the others are among them."""
    count = sum(tables.is_kafkas(entry.name) for entry in entries)
    buckets = 16
    while count > buckets * 3 // 4:
        buckets *= 2
    return sorted(entries, key=lambda entry: _java_hash(entry.name) & (buckets - 1))


@functools.lru_cache(maxsize=2048)
def _java_hash(name: str) -> int:
    """String.hashCode, spread as HashMap does."""
    found = 0
    for char in name:
        found = (31 * found + ord(char)) & 0xFFFFFFFF
    return found ^ found >> 16


def _open_ended(config: BrokerConfig) -> Iterable[ConfigKey]:
    """The properties that are set and that the table has by a pattern, without listing them."""
    table = config.tables.broker
    listed = set(table)
    return [table[name] for name in sorted(config.given) if name not in listed and name in table]


def _sensitive(tables: ConfigTables, name: str) -> bool:
    """Whether the value must not be shown. A property that no table has may be a password."""
    name = base_name(name)
    for table in (tables.updatable, tables.topic, GROUP_CONFIGS, CLIENT_METRICS_CONFIGS):
        if name in table:
            return table[name].sensitive
    return True


def _synonym(tables: ConfigTables, name: str, text: str, source: int) -> Synonym:
    value = None if _sensitive(tables, name) else tables.shown(name, text)
    return Synonym(name=name, value=value, source=source)


def _own(tables: ConfigTables, name: str, values: Mapping[str, str], source: int) -> list[Synonym]:
    return [_synonym(tables, name, values[name], source)] if name in values else []


def _entry(
    tables: ConfigTables, key: ConfigKey, value: str | None, synonyms: list[Synonym], read_only: bool
) -> Entry:
    return Entry(
        name=key.name,
        value=None if key.sensitive else tables.shown(key.name, value),
        read_only=read_only,
        config_source=synonyms[0].source if synonyms else DEFAULT,
        is_sensitive=key.sensitive,
        synonyms=synonyms,
        config_type=key.type_code,
        documentation=None,
    )


def _stored_entry(tables: ConfigTables, name: str, text: str, synonyms: list[Synonym]) -> Entry:
    key = tables.updatable.get(name)
    base = tables.broker.get(base_name(name))
    if key is None and base is not None:
        key = msgspec.structs.replace(base, name=name, update_mode=READ_ONLY)
    if key is not None:
        return _entry(tables, key, text, synonyms, key.update_mode == READ_ONLY)
    return Entry(
        name=name,
        value=None,
        read_only=True,
        config_source=synonyms[0].source,
        is_sensitive=True,
        synonyms=synonyms,
        config_type=0,
        documentation=None,
    )
