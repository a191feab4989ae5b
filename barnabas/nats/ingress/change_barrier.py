"""The change barrier: where the brokers of a cluster apply a change of a binding that moves messages.

With another key, or more partitions, a message may belong to another partition, which another broker leads. If each broker
applied the change when it learns of it, messages of these milliseconds would be stored by both or by none. So all brokers go
on as before until a mark (ingress/marks.py), which the leader of the first partition publishes shortly after it has learned
of the change. Without the mark (its sender has failed, the account may not publish it) each broker applies the change after
LATEST_S.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from barnabas.nats.ingress.marks import MarkSubjects

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.controller.metadata.image import TopicImage
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.client.client import NatsClient
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

SENT_AFTER_S: Final = 0.2  # by then the other brokers know of the change
LATEST_S: Final = 1.5
EARLY_S: Final = 5.0  # a mark counts if its change is known within
EARLY_MAX: Final = 100
VERSION_BYTES_MAX: Final = 200


class BindingChange(NamedTuple):
    """A change by its version, which is the same on all brokers, and whether this broker sends the mark."""

    version: str
    is_sender: bool


def change_of(host: ExtensionHost, topic: TopicImage, binding: Binding) -> BindingChange | None:
    """The change to this binding and number of partitions; None when no other broker applies it."""
    states = topic.partitions.values()
    brokers = {broker for state in states for broker in state.replicas}
    if binding.topic_template is not None:
        brokers.update(host.controller.image.brokers)
    if brokers <= {host.node_id}:
        return None
    first = next((state.leader for state in states if state.leader >= 0), -1)
    version = f"{crc32(repr(binding).encode()):08x}-{len(states)}"
    return BindingChange(version, first == host.node_id)


class _Planned(NamedTuple):
    version: str
    apply: Callable[[], object]
    timer: Timer


class ChangeBarrier:
    """Applies the changes of one topic on one broker. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, client: NatsClient, topic: str, cluster_id: str) -> None:
        self._runtime = runtime
        self._client = client
        self._topic = topic
        self._subjects = MarkSubjects(client, cluster_id, topic)
        self._planned: list[_Planned] = []
        self._early: dict[str, float] = {}  # marks of changes that are not known here yet, and when they came
        self._waiting: list[Callable[[], object]] = []

    def start(self) -> None:
        self._subjects.subscribe("turn", self._mark_came)

    def stop(self) -> None:
        """Drops planned changes."""
        self._subjects.close()
        for planned in self._planned:
            planned.timer.cancel()
        self._planned.clear()
        self._call_waiting()

    @property
    def has_planned(self) -> bool:
        return bool(self._planned)

    def plan(self, change: BindingChange, apply: Callable[[], object]) -> None:
        """Has `apply` called at the mark, after all changes that were planned before."""
        runtime, version = self._runtime, change.version
        timer = runtime.call_later(LATEST_S, lambda: self._too_late(version))
        self._planned.append(_Planned(version, apply, timer))
        came_s = self._early.pop(version, None)
        if not self._client.is_connected or (came_s is not None and came_s + EARLY_S > runtime.monotonic()):
            self._apply(version)
        elif change.is_sender:
            runtime.call_later(SENT_AFTER_S, lambda: self._send(version))

    def when_done(self, callback: Callable[[], object]) -> None:
        """Calls back when no change is planned, perhaps now."""
        if self._planned:
            self._waiting.append(callback)
        else:
            callback()

    def _send(self, version: str) -> None:
        if any(planned.version == version for planned in self._planned):
            self._subjects.publish("turn", version.encode())

    def _mark_came(self, payload: bytes) -> None:
        version = payload[:VERSION_BYTES_MAX].decode(errors="replace")
        if any(planned.version == version for planned in self._planned):
            self._apply(version)
            return
        if len(self._early) >= EARLY_MAX:
            self._early.clear()
        self._early[version] = self._runtime.monotonic()

    def _too_late(self, version: str) -> None:
        log.warning(
            "topic %s: the mark of a change has not come, so the change is applied without it; brokers that do so at different "
            "times may miss messages of this moment, or store them twice",
            self._topic,
        )
        self._apply(version)

    def _apply(self, version: str) -> None:
        """Applies all changes up to this one."""
        while self._planned:
            planned = self._planned.pop(0)
            planned.timer.cancel()
            planned.apply()
            if planned.version == version:
                break
        if not self._planned:
            self._call_waiting()

    def _call_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()
