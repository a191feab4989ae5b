"""NATS as an extension of a broker (broker/extension.py): its configs, and its bridge where connections are configured.

Without nats.* properties of the broker and nats.* configs of topics, only this module and configs.py are loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.nats.configs import (
    BROKER_CONFIGS,
    PREFIX,
    TOPIC_CONFIGS,
    named_connection_key,
    shown_servers,
    split_connection,
    topics_with_configs,
)

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.controller.config.config_def import ConfigKey
    from barnabas.controller.extension import NodeValues
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.nats.binding.decisions import BindingDecisions
    from barnabas.nats.bridge import NatsBridge

log = logging.getLogger("barnabas.nats")

BINDINGS: Final = ("nats.subjects", "nats.bucket", "nats.publish.subject")  # configs that bind a topic
TOPICS_SHOWN: Final = 10
_POLICY: Final = "cleanup.policy"


class NatsExtension:
    """NATS's side of the port of extensions."""

    topic_configs = TOPIC_CONFIGS
    broker_configs = BROKER_CONFIGS

    def broker_key(self, name: str) -> ConfigKey | None:
        return named_connection_key(name)

    def documentation(self, resource_type: int, name: str) -> str | None:
        from barnabas.nats.config_docs import documentation  # late: the texts are long

        return documentation(resource_type, name)

    def shown(self, name: str, text: str | None) -> str | None:
        return shown_servers(name, text)

    def check_broker(self, given: Mapping[str, str]) -> None:
        if _has_connections(given):
            from barnabas.nats.connection_configs import nats_connections  # late: see the module

            nats_connections(given)

    def topic_checks(self, image: MetadataImage, node: NodeValues) -> TopicChecks:
        return TopicChecks(image, node)

    def start(self, host: ExtensionHost) -> NatsBridge | None:
        given = host.config.given
        if not _has_connections(given):
            _warn_about_bound_topics(host.controller.image)
            return None
        from barnabas.nats.bridge import NatsBridge
        from barnabas.nats.connection_configs import nats_connections
        from barnabas.nats.ingress.gap_checkpoint import FILE_NAME, GapCheckpoint

        gap_checkpoint = GapCheckpoint(host.disk, f"{host.directory}/{FILE_NAME}", host.runtime)
        bridge = NatsBridge(host, nats_connections(given), gap_checkpoint)
        bridge.start()
        return bridge


class TopicChecks:
    """Checks the nats.* configs of one request's topics. Loads the checks with the first topic that has such configs."""

    def __init__(self, image: MetadataImage, node: NodeValues) -> None:
        self._image = image
        self._node = node
        self._made: BindingDecisions | None = None

    def check(self, topic: str, current: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        if not _is_bound_equally(current, wanted):
            policy = wanted.get(_POLICY) or self._node.topic_defaults().get(_POLICY, "")
            self._decisions().check(topic, current, wanted, policy)

    def accept(self, topic: str, current: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        if not _is_bound_equally(current, wanted):
            self._decisions().accept(topic, wanted)

    def _decisions(self) -> BindingDecisions:
        if self._made is None:
            from barnabas.nats.binding.decisions import BindingDecisions  # late: see the class

            self._made = BindingDecisions(self._image, self._node.value)
        return self._made


def _is_bound_equally(current: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    now, then = _own(current), _own(wanted)
    return now == then and (not then or current.get(_POLICY) == wanted.get(_POLICY))


def _own(configs: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in configs.items() if name.startswith(PREFIX)}


def _has_connections(given: Mapping[str, str]) -> bool:
    return any(name.startswith(PREFIX) and split_connection(name) is not None for name in given)


def _warn_about_bound_topics(image: MetadataImage) -> None:
    topics = topics_with_configs(image)
    bound = sorted(name for name, configs in topics.items() if any(configs.get(each) for each in BINDINGS))
    if bound:
        log.warning(
            "%d topic%s bound to NATS, and this broker has no nats.servers: nothing is received or published for them (%s). Start it "
            "with --set nats.servers=nats://HOST:4222",
            len(bound),
            " is" if len(bound) == 1 else "s are",
            ", ".join(bound[:TOPICS_SHOWN]) + (", ..." if len(bound) > TOPICS_SHOWN else ""),
        )
