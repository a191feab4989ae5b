"""Topic configs of NATS on their way through a decision. Nothing of NATS is loaded before a topic has such configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.controller.metadata.image import MetadataImage

if TYPE_CHECKING:
    from barnabas.nats.binding.decisions import BindingDecisions

_PREFIX: Final = "nats."
_POLICY: Final = "cleanup.policy"


class NodeValues(Protocol):
    """What the check asks the deciding node: its own properties, and what topics take from them."""

    def value(self, name: str) -> str | None: ...
    def topic_defaults(self) -> Mapping[str, str]: ...


class BindingCheck:
    """For one request; its topics are checked against each other, too."""

    def __init__(self, image: MetadataImage, config: NodeValues) -> None:
        self._image = image
        self._config = config
        self._decisions: BindingDecisions | None = None

    def check(self, topic: str, current: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        """ConfigError when a topic that has the configs `current` can't have `wanted` because of what they say of NATS."""
        if _is_bound_alike(current, wanted):
            return
        policy = wanted.get(_POLICY) or self._config.topic_defaults().get(_POLICY, "")
        self._made().check(topic, current, wanted, policy)

    def accept(self, topic: str, current: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        """The topic will have what was checked; what comes after it in the request counts with that."""
        if not _is_bound_alike(current, wanted):
            self._made().accept(topic, wanted)

    def _made(self) -> BindingDecisions:
        if self._decisions is None:
            from barnabas.nats.binding.decisions import BindingDecisions

            self._decisions = BindingDecisions(self._image, self._config.value)
        return self._decisions


def _is_bound_alike(current: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    now, then = _of_nats(current), _of_nats(wanted)
    return now == then and (not then or current.get(_POLICY) == wanted.get(_POLICY))


def _of_nats(configs: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in configs.items() if name.startswith(_PREFIX)}
