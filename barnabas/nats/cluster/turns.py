"""When the brokers of a cluster take up a change of a binding that moves messages: all at the same message.

With another key, or with more partitions, a message may belong to another partition, which another broker leads. If the
brokers changed over as each hears of it, messages of these milliseconds would be taken by both or by none. So each goes
on as before until a mark comes among its messages, on the connection that they come in on; the leader of the first
partition sends it, a moment after it has heard of the change itself. Fanning out is the server's work of one moment: what
is published in exactly that (tens of microseconds) may still reach one broker before the mark and another one behind it.

Without the mark (its sender is gone, the account may not publish it) each changes over when LATEST_S are over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from barnabas.nats.client.errors import NatsError

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.controller.metadata.image import TopicImage
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.client.client import NatsClient, Subscription
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

SENT_AFTER_S: Final = 0.2  # by then the others have heard of the change
LATEST_S: Final = 1.5
EARLY_S: Final = 5.0  # so long a mark counts for who has not heard of its change
EARLY_MAX: Final = 100
VERSION_BYTES_MAX: Final = 200


class Turn(NamedTuple):
    """A change, by a name that all brokers give it, and whether this one sends the mark."""

    version: str
    is_sender: bool


def turn_of(services: Services, topic: TopicImage, binding: Binding) -> Turn | None:
    """For a change to this binding and the topic's partitions; None when no other broker takes it up."""
    states = topic.partitions.values()
    brokers = {broker for state in states for broker in state.replicas}
    if binding.topic_template is not None:
        brokers.update(services.controller.image.brokers)
    if brokers <= {services.node_id}:
        return None
    first = next((state.leader for state in states if state.leader >= 0), -1)
    version = f"{crc32(repr(binding).encode()):08x}-{len(states)}"
    return Turn(version, first == services.node_id)


class _Change(NamedTuple):
    version: str
    take_up: Callable[[], object]
    timer: Timer


class Turns:
    """Of one topic on one broker. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, client: NatsClient, topic: str, cluster_id: str) -> None:
        self._runtime = runtime
        self._client = client
        self._topic = topic
        self._marks = f"_BARNABAS.{cluster_id}.{topic}.turn"
        self._subscription: Subscription | None = None
        self._planned: list[_Change] = []
        self._early: dict[str, float] = {}  # marks of changes that are not known here: when they came
        self._waiting: list[Callable[[], object]] = []

    def start(self) -> None:
        self._subscription = self._client.subscribe(self._marks, self._mark_came)

    def stop(self) -> None:
        """What is planned is not taken up any more."""
        if self._subscription is not None:
            self._subscription.unsubscribe()
            self._subscription = None
        for change in self._planned:
            change.timer.cancel()
        self._planned.clear()
        self._tell()

    @property
    def are_planned(self) -> bool:
        return bool(self._planned)

    def plan(self, turn: Turn, take_up: Callable[[], object]) -> None:
        """Have `take_up` called when it is time, behind all that was planned before."""
        runtime, version = self._runtime, turn.version
        timer = runtime.call_later(LATEST_S, lambda: self._too_late(version))
        self._planned.append(_Change(version, take_up, timer))
        came_s = self._early.pop(version, None)
        if not self._client.is_connected or (came_s is not None and came_s + EARLY_S > runtime.monotonic()):
            self._take_up(version)
        elif turn.is_sender:
            runtime.call_later(SENT_AFTER_S, lambda: self._send(version))

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call back when nothing is planned; now when nothing is."""
        if self._planned:
            self._waiting.append(callback)
        else:
            callback()

    def _send(self, version: str) -> None:
        if any(change.version == version for change in self._planned):
            try:
                self._client.publish(self._marks.encode(), version.encode())
            except (NatsError, ValueError) as error:
                log.debug("no mark on %s: %s", self._marks, error)

    def _mark_came(self, _subject: bytes, _reply: bytes, _headers: bytes, payload: bytes) -> None:
        version = payload[:VERSION_BYTES_MAX].decode(errors="replace")
        if any(change.version == version for change in self._planned):
            self._take_up(version)
            return
        if len(self._early) >= EARLY_MAX:
            self._early.clear()
        self._early[version] = self._runtime.monotonic()

    def _too_late(self, version: str) -> None:
        log.warning(
            "topic %s: the mark of a change has not come, so it is taken up without; brokers that do so one after the "
            "other may miss messages of this moment, or take them twice",
            self._topic,
        )
        self._take_up(version)

    def _take_up(self, version: str) -> None:
        """All up to this one."""
        while self._planned:
            change = self._planned.pop(0)
            change.timer.cancel()
            change.take_up()
            if change.version == version:
                break
        if not self._planned:
            self._tell()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()
