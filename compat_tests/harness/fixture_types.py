"""Types of the fixtures that are functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from compat_tests.harness.broker import Broker
from compat_tests.harness.cluster import THREE, Cluster


class BrokerFactory(Protocol):
    """`fresh_broker(settings, start=True)`."""

    def __call__(self, settings: Mapping[str, str] | None = None, *, start: bool = True) -> Broker: ...


class TopicFactory(Protocol):
    """`topic(partitions, configs, prefix)` -> name of the created topic."""

    def __call__(
        self, partitions: int = 1, configs: Mapping[str, str] | None = None, prefix: str = "topic"
    ) -> str: ...


class UniqueName(Protocol):
    """`unique(prefix)` -> a name that no other test uses."""

    def __call__(self, prefix: str) -> str: ...


class ClusterFactory(Protocol):
    """`fresh_cluster(roles, settings=..., proxied=...)`."""

    def __call__(
        self,
        roles: Mapping[int, str] = THREE,
        *,
        settings: Mapping[str, str] | None = None,
        node_settings: Mapping[int, Mapping[str, str]] | None = None,
        proxied: bool = False,
        start: bool = True,
    ) -> Cluster: ...
