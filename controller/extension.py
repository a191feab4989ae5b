"""The port of extensions, as far as controllers need it: configs that an extension adds to topics and brokers.

An extension is a part of a broker that Kafka does not have. A topic's configs are committed metadata, so every controller
validates those of extensions as well, whether its node runs the extension or not. The other half of the port, for what runs
on a broker, is broker/extension.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from barnabas.controller.config.broker_configs import BROKER_CONFIGS, UPDATABLE_CONFIGS
from barnabas.controller.config.config_def import ConfigDef, ConfigKey
from barnabas.controller.config.topic_configs import TOPIC_CONFIGS
from barnabas.controller.metadata.image import MetadataImage

OWN_PREFIX: Final = "barnabas."  # of the names of properties that Kafka does not have


class NodeValues(Protocol):
    """The properties of the deciding node, and the defaults of topics."""

    def value(self, name: str) -> str | None: ...
    def topic_defaults(self) -> Mapping[str, str]: ...


class TopicChecks(Protocol):
    """Checks of the topics of one request, which depend on each other."""

    def check(self, topic: str, current: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        """ConfigError when a topic with the configs `current` can't have `wanted`."""

    def accept(self, topic: str, current: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        """The topic will have the configs `wanted`, which have been checked."""


class ConfigExtension(Protocol):
    """The configs of one extension."""

    @property
    def topic_configs(self) -> ConfigDef: ...
    @property
    def broker_configs(self) -> ConfigDef: ...

    def broker_key(self, name: str) -> ConfigKey | None:
        """The key of a broker property whose name is open-ended, so that no table lists it; None for others."""

    def documentation(self, resource_type: int, name: str) -> str | None:
        """The text for one of its properties (ConfigResource.Type); None for others."""

    def shown(self, name: str, text: str | None) -> str | None:
        """The value of a property without the secrets in it."""

    def check_broker(self, given: Mapping[str, str]) -> None:
        """ConfigError when a broker can't start with these properties; each is valid by itself."""

    def topic_checks(self, image: MetadataImage, node: NodeValues) -> TopicChecks:
        """The checks of one request."""


class ConfigTables:
    """The configs that a node knows: those of Kafka, of Barnabas and of its extensions.

    `topic` are a topic's; `broker` those that a broker can start with; `updatable` those that AlterConfigs of a broker may
    name. Other names are stored and have no effect.
    """

    def __init__(self, extensions: Sequence[ConfigExtension] = ()) -> None:
        self.extensions = tuple(extensions)
        self.topic, self.broker, self.updatable = TOPIC_CONFIGS, BROKER_CONFIGS, UPDATABLE_CONFIGS
        if extensions:
            broker_configs = [each.broker_configs for each in extensions]
            self.topic = TOPIC_CONFIGS.extended(each.topic_configs for each in extensions)
            self.broker = BROKER_CONFIGS.extended(broker_configs, self._open_ended)
            self.updatable = UPDATABLE_CONFIGS.extended(broker_configs, self._open_ended)

    def is_kafkas(self, name: str) -> bool:
        """Whether Kafka may have a property of this name: it is neither Barnabas's own nor an extension's."""
        return not name.startswith(OWN_PREFIX) and not any(
            name in each.topic_configs or name in each.broker_configs or each.broker_key(name) is not None
            for each in self.extensions
        )

    def documentation(self, resource_type: int, name: str) -> str | None:
        """The text for a property of a resource type (ConfigResource.Type); None when there is none."""
        from barnabas.controller.config.docs import documentation  # late: the texts are long

        texts = (each.documentation(resource_type, name) for each in self.extensions)
        return documentation(resource_type, name) or next((text for text in texts if text), None)

    def shown(self, name: str, text: str | None) -> str | None:
        """The value of a property without the secrets in it; a sensitive one is not shown at all."""
        for extension in self.extensions:
            text = extension.shown(name, text)
        return text

    def topic_checks(self, image: MetadataImage, node: NodeValues) -> TopicChecks:
        """The checks of all extensions, for one request."""
        return _AllChecks([each.topic_checks(image, node) for each in self.extensions])

    def _open_ended(self, name: str) -> ConfigKey | None:
        keys = (each.broker_key(name) for each in self.extensions)
        return next((key for key in keys if key is not None), None)


class _AllChecks:
    def __init__(self, checks: Sequence[TopicChecks]) -> None:
        self._checks = checks

    def check(self, topic: str, current: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        for each in self._checks:
            each.check(topic, current, wanted)

    def accept(self, topic: str, current: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        for each in self._checks:
            each.accept(topic, current, wanted)
