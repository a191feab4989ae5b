"""DescribeConfigs' entries: each property's value, where it comes from, and what stands behind that.

The list of synonyms says from strongest to weakest what gives the property a value: set on the resource
itself, dynamic on this broker, dynamic for the cluster, in server.properties, the default. It starts at the
property's own broker name, so a topic's retention.ms shows log.retention.hours only behind a
log.retention.ms that somebody set; that is how Kafka does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.controller.config.broker_configs import BROKER_CONFIGS, DYNAMIC_ONLY_CONFIGS
from barnabas.controller.config.broker_nats_configs import NAMED_PREFIX, shown_servers
from barnabas.controller.config.config_def import READ_ONLY, ConfigDef, ConfigKey
from barnabas.controller.config.group_configs import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS, GROUP_SYNONYMS
from barnabas.controller.config.topic_configs import TOPIC_CONFIGS, TOPIC_SYNONYMS
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

# Broker properties that say one thing in several units, the finest first.
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
    for key in _shown(TOPIC_CONFIGS):
        synonyms = _own(key.name, overrides, DYNAMIC_TOPIC)
        if key.name in TOPIC_SYNONYMS:
            synonyms += broker_synonyms(config, TOPIC_SYNONYMS[key.name][0][0])
        entries.append(_entry(key, values.get(key.name), synonyms, read_only=False))
    return entries


def broker_entries(config: BrokerConfig) -> list[Entry]:
    """Every property of this broker."""
    entries = [
        _entry(key, config.value(key.name), broker_synonyms(config, key.name), key.update_mode == READ_ONLY)
        for key in (*_shown(BROKER_CONFIGS), *_named_connections(config))
    ]
    others = {**config.stored_cluster, **config.stored_node}
    for name in others:
        if name not in BROKER_CONFIGS:
            entries.append(_stored_entry(name, others[name], broker_synonyms(config, name)))
    return entries


def cluster_entries(stored: Mapping[str, str]) -> list[Entry]:
    """The dynamic values for the whole cluster, and nothing else (resource name "")."""
    return [_stored_entry(name, text, _own(name, stored, DYNAMIC_CLUSTER)) for name, text in stored.items()]


def group_entries(config: BrokerConfig, overrides: Mapping[str, str]) -> list[Entry]:
    """Every property of a group that sets `overrides`."""
    entries: list[Entry] = []
    for key in _shown(GROUP_CONFIGS):
        synonyms = _own(key.name, overrides, GROUP)
        value = overrides.get(key.name, key.default)
        if key.name in GROUP_SYNONYMS:
            broker_name = GROUP_SYNONYMS[key.name]
            synonyms += broker_synonyms(config, broker_name)
            value = overrides.get(key.name, config.value(broker_name))
        elif key.default is not None:
            synonyms.append(_synonym(key.name, key.default, DEFAULT))
        entries.append(_entry(key, value, synonyms, read_only=False))
    return entries


def client_metrics_entries(overrides: Mapping[str, str]) -> list[Entry]:
    """Every property of a client metrics subscription that sets `overrides`."""
    return [
        _entry(
            key,
            overrides.get(key.name, key.default),
            _own(key.name, overrides, CLIENT_METRICS),
            read_only=False,
        )
        for key in _shown(CLIENT_METRICS_CONFIGS)
    ]


def broker_synonyms(config: BrokerConfig, name: str) -> list[Synonym]:
    """What gives the broker property `name` its value, strongest first."""
    names: tuple[str, ...] = next((group for group in _UNITS if name in group), (name,))
    if name == _FLUSH[0]:
        names = _FLUSH
    found = [
        _synonym(each, values[each], source)
        for values, source in (
            (config.stored_node, DYNAMIC_BROKER),
            (config.stored_cluster, DYNAMIC_CLUSTER),
            (config.given, STATIC_BROKER),
            (_Defaults(), DEFAULT),
        )
        for each in names
        if each in values
    ]
    start = next((index for index, synonym in enumerate(found) if synonym.name == name), len(found))
    return found[start:]


class _Defaults(dict[str, str]):
    """The table's defaults by name, those that are not null."""

    def __contains__(self, name: object) -> bool:
        key = BROKER_CONFIGS.get(str(name))
        return key is not None and key.default is not None

    def __missing__(self, name: str) -> str:
        return BROKER_CONFIGS[name].default or ""


def _shown(table: ConfigDef) -> Iterable[ConfigKey]:
    return (key for key in table.values() if not key.internal)


def _named_connections(config: BrokerConfig) -> Iterable[ConfigKey]:
    """The open-ended properties that somebody set."""
    names = sorted(name for name in config.given if name.startswith(NAMED_PREFIX))
    return (BROKER_CONFIGS[name] for name in names if name in BROKER_CONFIGS)


def _sensitive(name: str) -> bool:
    """What the tables do not know may be a password."""
    for table in (BROKER_CONFIGS, DYNAMIC_ONLY_CONFIGS, TOPIC_CONFIGS, GROUP_CONFIGS, CLIENT_METRICS_CONFIGS):
        if name in table:
            return table[name].sensitive
    return True


def _synonym(name: str, text: str, source: int) -> Synonym:
    return Synonym(name=name, value=None if _sensitive(name) else shown_servers(name, text), source=source)


def _own(name: str, values: Mapping[str, str], source: int) -> list[Synonym]:
    return [_synonym(name, values[name], source)] if name in values else []


def _entry(key: ConfigKey, value: str | None, synonyms: list[Synonym], read_only: bool) -> Entry:
    return Entry(
        name=key.name,
        value=None if key.sensitive else shown_servers(key.name, value),
        read_only=read_only,
        config_source=synonyms[0].source if synonyms else DEFAULT,
        is_sensitive=key.sensitive,
        synonyms=synonyms,
        config_type=key.type_code,
        documentation=None,
    )


def _stored_entry(name: str, text: str, synonyms: list[Synonym]) -> Entry:
    key = BROKER_CONFIGS.get(name) or DYNAMIC_ONLY_CONFIGS.get(name)
    if key is not None:
        return _entry(key, text, synonyms, key.update_mode == READ_ONLY)
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
