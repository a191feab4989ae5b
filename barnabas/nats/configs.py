"""Configs of topics and brokers that bind them to NATS, one a line (controller/config/config_def.py explains the columns).

binding/reader.py parses the topics' strings that have no check here. The broker's configs `nats.servers` and those beside it
describe the connection without a name. Further connections have names: `nats.connection.NAME.user` is the `nats.user` of
one. A broker reads its configs when it starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from barnabas.controller.config.config_def import ConfigDef, ConfigKey, Value
from barnabas.controller.metadata.image import TOPIC_RESOURCE, MetadataImage

TOPIC_TABLE: Final = """
nats.subjects list "" list medium
nats.exclude list "" list medium
nats.mode string core in:core,jetstream,kv medium
nats.connection string "" * medium
nats.paused boolean false * medium
nats.key string subject nonempty medium
nats.partitioner string murmur2 nonempty medium
nats.acks string header in:off,header,reply medium
nats.dedup.window.ms long 120000 [0,...,604800000] medium
nats.queue.group string "" * medium
nats.topic.template string "" * medium
nats.topic.max int 100 [1,...,10000] medium
nats.template.of string "" * low
nats.dead.letter.topic string "" * medium
nats.buffer.bytes long 67108864 [65536,...,17179869184] medium
nats.stream string "" * medium
nats.delivery string exactly-once in:exactly-once,at-least-once medium
nats.durable string "" * medium
nats.start string all nonempty medium
nats.max.deliver int -1 [-1,...] medium
nats.bucket string "" * medium
nats.direction string both in:in,out,both medium
nats.publish.subject string "" * medium
nats.publish.jetstream boolean false * medium
nats.publish.group string "" * medium
"""

BROKER_TABLE: Final = """
nats.servers list "" list medium
nats.user string "" * medium
nats.password password - * medium
nats.token password - * medium
nats.nkey.seed.file string "" * medium
nats.credentials.file string "" * medium
nats.tls.ca.file string "" * medium
nats.tls.certificate.file string "" * medium
nats.tls.key.file string "" * medium
nats.tls.handshake.first boolean false * low
nats.jetstream.domain string "" * medium
nats.connect.timeout.ms int 5000 [100,...] low
nats.ping.interval.ms int 20000 [1000,...] low
"""

TOPIC_CONFIGS: Final = ConfigDef(TOPIC_TABLE)
BROKER_CONFIGS: Final = ConfigDef(BROKER_TABLE)

PREFIX: Final = "nats."
SERVERS: Final = "nats.servers"


def topics_with_configs(image: MetadataImage) -> dict[str, Mapping[str, str]]:
    """The configs of the topics that have a nats.* config, by topic."""
    return {
        name: configs
        for (kind, name), configs in image.configs.items()
        if kind == TOPIC_RESOURCE and any(each.startswith(PREFIX) for each in configs)
    }


class ConfigValues:
    """Typed values of properties in a table, defaults where nothing is given. ConfigError names a property by `shown`."""

    def __init__(
        self, table: ConfigDef, given: Mapping[str, str], shown: Callable[[str], str] = lambda name: name
    ) -> None:
        self._table = table
        self._given = given
        self._shown = shown

    def _value(self, name: str) -> Value:
        key = self._table[name]
        return msgspec.structs.replace(key, name=self._shown(name)).parse(self._given.get(name, key.default))

    def text(self, name: str) -> str:
        """A string; "" for null."""
        value = self._value(name)
        assert value is None or isinstance(value, str)
        return value or ""

    def boolean(self, name: str) -> bool:
        value = self._value(name)
        assert isinstance(value, bool)
        return value

    def integer(self, name: str) -> int:
        value = self._value(name)
        assert isinstance(value, int)
        return value

    def texts(self, name: str) -> list[str]:
        value = self._value(name)
        assert isinstance(value, list)
        return value


# Not compiled before their first use: most brokers have no nats.* configs.
_NAMED: Final = r"nats\.connection\.([a-zA-Z0-9_-]{1,128})\.(.+)"
_USER_INFO: Final = r"(^|,)(\s*(?:[a-z]+://)?)[^,]*@"


def named_connection_key(name: str) -> ConfigKey | None:
    """The key of a property `nats.connection.NAME.*`; None for other names."""
    found = re.fullmatch(_NAMED, name)
    key = BROKER_CONFIGS.get(f"nats.{found[2]}") if found else None
    return None if key is None else msgspec.structs.replace(key, name=name)


def split_connection(name: str) -> tuple[str, str] | None:
    """The connection ("" for the one without a name) and the property (`nats.user`) of a name; None for other names."""
    found = re.fullmatch(_NAMED, name)
    if found is not None:
        return found[1], f"nats.{found[2]}"
    return ("", name) if name in BROKER_CONFIGS else None


def shown_servers(name: str, text: str | None) -> str | None:
    """A property's value without secrets: addresses of NATS servers lose the user, password or token in them."""
    if text is None or not name.startswith("nats.") or not name.endswith(".servers"):
        return text
    return re.sub(_USER_INFO, r"\1\2[hidden]@", text)
