"""The port of extensions: what a part of a broker that Kafka has no counterpart of may do.

- It adds configs of topics and brokers, which every controller validates (controller/extension.py).
- It starts when the partitions are open and stops before they are closed. What it does, it does on the loop's thread,
  and it waits for nothing there.
- It follows the committed metadata (`Controller.add_listener`), appends to partitions that are led here
  (`Partition.append`), observes those that are followed (`Partition.observer`), and commits offsets of groups.
- It may keep a follower out of the ISR, answers to administrators wait until it has settled, and it has metrics.

A node gets a list of extensions; one that has nothing to do on this node loads no more than its configs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from barnabas.controller.extension import ConfigExtension

if TYPE_CHECKING:
    from barnabas.broker.metrics.families import Family
    from barnabas.broker.partitions.replica import LocalReplica, RemoteReplica
    from barnabas.broker.services import Services
    from barnabas.storage.disk.disk import Disk

Done = Callable[[], object]


class ExtensionHost(msgspec.Struct, frozen=True):
    """The broker that an extension runs on. `directory` is for files of the extension's own, on `disk`."""

    services: Services
    disk: Disk
    directory: str


class RunningExtension(Protocol):
    """An extension on a broker. All calls on the loop's thread."""

    def may_take_over(self, partition: LocalReplica, replica: RemoteReplica) -> bool:
        """Whether a follower that has the log of a partition led here may join the ISR: it could lead at once."""

    def when_settled(self, done: Done) -> None:
        """Call back when the changes of metadata so far are carried out; soon in any case."""

    def leave(self, done: Done) -> None:
        """Before `stop`, while other brokers can take over: finish what only this broker can. Call back soon in any case."""

    def stop(self) -> None:
        """Stop for good; blocking."""

    def metrics(self) -> Iterable[Family]:
        """Its metrics, where they are served."""


class Extension(ConfigExtension, Protocol):
    """One extension, before it runs."""

    def start(self, host: ExtensionHost) -> RunningExtension | None:
        """Run on this broker, whose partitions are open; None where there is nothing to do. Blocking."""


class Extensions:
    """The extensions of a node. Before `start`, and with none that runs, nothing is asked and nothing waits."""

    def __init__(self, extensions: Sequence[Extension]) -> None:
        self._extensions = extensions
        self._running: list[RunningExtension] = []

    def start(self, host: ExtensionHost) -> None:
        for extension in self._extensions:
            running = extension.start(host)
            if running is not None:
                self._running.append(running)

    def stop(self) -> None:
        for extension in self._running:
            extension.stop()

    def may_take_over(self, partition: LocalReplica, replica: RemoteReplica) -> bool:
        return all(extension.may_take_over(partition, replica) for extension in self._running)

    def when_settled(self, done: Done) -> None:
        _one_after_the_other([extension.when_settled for extension in self._running], done)

    def leave(self, done: Done) -> None:
        _one_after_the_other([extension.leave for extension in self._running], done)

    def metrics(self) -> list[Callable[[], Iterable[Family]]]:
        return [extension.metrics for extension in self._running]


def _one_after_the_other(calls: Sequence[Callable[[Done], object]], done: Done) -> None:
    if calls:
        calls[0](lambda: _one_after_the_other(calls[1:], done))
    else:
        done()
