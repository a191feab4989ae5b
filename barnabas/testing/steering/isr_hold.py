"""Keeps followers out of the ISRs of one node's partitions, as an extension of its broker (broker/extension.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.controller.config.config_def import ConfigDef

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from barnabas.broker.extension import ExtensionHost
    from barnabas.broker.metrics.families import Family
    from barnabas.broker.partitions.replica import LocalReplica, RemoteReplica
    from barnabas.controller.config.config_def import ConfigKey
    from barnabas.controller.extension import NodeValues
    from barnabas.controller.metadata.image import MetadataImage

_NO_CONFIGS: Final = ConfigDef()


class IsrHold:
    """The Extension, its RunningExtension and its TopicChecks. Brokers in `kept_out` join no ISR of a partition that this node leads."""

    topic_configs = broker_configs = _NO_CONFIGS

    def __init__(self) -> None:
        self.kept_out: frozenset[int] = frozenset()

    def may_take_over(self, partition: LocalReplica, replica: RemoteReplica) -> bool:  # noqa: ARG002 - of any partition
        return replica.broker_id not in self.kept_out

    # -- what it has nothing to add to

    def start(self, host: ExtensionHost) -> IsrHold:  # noqa: ARG002
        return self

    def when_settled(self, done: Callable[[], object]) -> None:
        done()

    def leave(self, done: Callable[[], object]) -> None:
        done()

    def stop(self) -> None: ...

    def metrics(self) -> Iterable[Family]:
        return ()

    def report(self) -> None: ...

    def broker_key(self, name: str) -> ConfigKey | None:  # noqa: ARG002
        return None

    def documentation(self, resource_type: int, name: str) -> str | None:  # noqa: ARG002
        return None

    def shown(self, name: str, text: str | None) -> str | None:  # noqa: ARG002
        return text

    def check_broker(self, given: Mapping[str, str]) -> None: ...

    def topic_checks(self, image: MetadataImage, node: NodeValues) -> IsrHold:  # noqa: ARG002
        return self

    def check(self, topic: str, current: Mapping[str, str], wanted: Mapping[str, str]) -> None: ...

    def accept(self, topic: str, current: Mapping[str, str], wanted: Mapping[str, str]) -> None: ...
