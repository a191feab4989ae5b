"""Bindings as they are stored, which may have been written by another release: what can be read is carried out."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

from barnabas.controller.config.validators import ConfigError
from barnabas.nats.binding.checks import check_effects
from barnabas.nats.binding.reader import only_bound, read_configs
from barnabas.nats.binding.subjects import looks_wild

if TYPE_CHECKING:
    from barnabas.nats.binding.binding import Binding

log = logging.getLogger("barnabas.nats")


class StoredBindings:
    """Each problem is logged once."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}  # by topic: those that can't be read, and why
        self._useless: dict[str, str] = {}  # what of them does nothing

    def forget_others(self, topics: Container[str]) -> None:
        """There are no other topics any more."""
        for told in (self.refused, self._useless):
            for name in [name for name in told if name not in topics]:
                del told[name]

    def read(self, topic: str, configs: Mapping[str, str]) -> Binding | None:
        """None for a topic that is not bound, or whose binding can't be read."""
        try:
            binding = read_configs(topic, configs)
        except (
            ConfigError
        ) as error:  # of a later release, or another way than through a controller of this one
            if self.refused.get(topic) != str(error):
                log.error("topic %s is not bound: %s", topic, error)
            self.refused[topic] = str(error)
            return None
        self.refused.pop(topic, None)
        self._tell_of_effects(topic, binding)
        return only_bound(binding)

    def _tell_of_effects(self, topic: str, binding: Binding | None) -> None:
        """Logs stored configs that have no effect, and subjects with wildcards inside tokens, which NATS takes literally."""
        reasons = []
        if binding is not None:
            literal = [each for each in (*binding.subjects, *binding.excludes) if looks_wild(each)]
            if literal:
                reasons.append(
                    f"{', '.join(literal)} matches nothing but itself: * and > stand for whole tokens"
                )
            try:
                check_effects(binding)
            except ConfigError as error:
                reasons.append(str(error))
        why = "; ".join(reasons)
        if why and self._useless.get(topic) != why:
            log.warning("topic %s: %s", topic, why)
        if why:
            self._useless[topic] = why
        else:
            self._useless.pop(topic, None)
