"""Reads stored bindings, which another release may have written. Valid ones are carried out."""

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
    """Reads the bindings of topics. Logs each problem once."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}  # errors of invalid bindings, by topic
        self._without_effect: dict[str, str] = {}  # configs that have no effect, by topic

    def forget_others(self, topics: Container[str]) -> None:
        """Drops what is known of topics that do not exist any more."""
        for logged in (self.refused, self._without_effect):
            for name in [name for name in logged if name not in topics]:
                del logged[name]

    def read(self, topic: str, configs: Mapping[str, str]) -> Binding | None:
        """None for a topic that is not bound, or whose binding is invalid."""
        try:
            binding = read_configs(topic, configs)
        except ConfigError as error:  # written by a later release
            if self.refused.get(topic) != str(error):
                log.error("topic %s is not bound: %s", topic, error)
            self.refused[topic] = str(error)
            return None
        self.refused.pop(topic, None)
        self._log_effects(topic, binding)
        return only_bound(binding)

    def _log_effects(self, topic: str, binding: Binding | None) -> None:
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
        if why and self._without_effect.get(topic) != why:
            log.warning("topic %s: %s", topic, why)
        if why:
            self._without_effect[topic] = why
        else:
            self._without_effect.pop(topic, None)
