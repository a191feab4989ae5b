"""Creation of the topics of a template: messages wait for them, and the controller creates them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from barnabas.broker.cluster.topic_creation import create_topics
from barnabas.controller.operations.topics import NewTopic
from barnabas.nats.binding.reader import TEMPLATE_OF
from barnabas.nats.configs import PREFIX
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.ingress.backpressure import Budget

log = logging.getLogger("barnabas.nats")

TOGETHER_MAX: Final = 50  # topics in one request
RETRY_S: Final = 0.5
RETRIED_S: Final = 30.0  # then their messages are refused
REFUSED_S: Final = 30.0  # a refused topic is not requested again for so long
REFUSED_MAX: Final = 10_000
TOPIC_BYTES: Final = 500  # of memory for a pending topic, about
MESSAGE_BYTES: Final = 200  # of memory for a message in addition to its contents
_TEMPORARY: Final = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.INVALID_REPLICATION_FACTOR,  # brokers that are away come back
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)

Message: TypeAlias = tuple[bytes, bytes, bytes, bytes]
Refusal: TypeAlias = tuple[ErrorCode, str]


def is_of_template(image: MetadataImage, topic: str, bound: str) -> bool:
    """Whether a topic takes messages of the template of `bound`."""
    configs = image.topic_configs(topic)
    takes_its_own = any(configs.get(f"nats.{name}") for name in ("subjects", "bucket", "stream"))
    return configs.get(TEMPLATE_OF) == bound and topic != bound and not takes_its_own


class PendingTopic:
    """A topic that does not exist yet, and the messages that wait for it."""

    def __init__(self, budget: Budget, until_s: float) -> None:
        self.waiting: list[Message] = []
        self.until_s = until_s
        self._budget = budget
        self._size = TOPIC_BYTES
        budget.note(self, self._size)

    def take(self, subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
        self.waiting.append((subject, reply, header_block, payload))
        self._size += len(subject) + len(reply) + len(header_block) + len(payload) + MESSAGE_BYTES
        self._budget.note(self, self._size)

    def emptied(self) -> int:
        """Removes the messages that wait, and returns their number."""
        count = len(self.waiting)
        self.waiting = []
        self._budget.note(self, 0)
        return count


class TopicCreator:
    """Creates the topics of one binding. `resolve(name)` is called when the controller has answered for a topic."""

    def __init__(
        self, host: ExtensionHost, binding: Binding, budget: Budget, resolve: Callable[[str], object]
    ) -> None:
        self.binding = binding
        self._host = host
        self._budget = budget
        self._resolve = resolve
        self._pending: dict[str, PendingTopic] = {}
        self._to_request: list[str] = []
        self._is_requesting = False
        self._refused: dict[str, tuple[float, Refusal]] = {}  # with the time until which
        self._is_closed = False
        self.problem = ""  # why pending topics do not exist yet

    @property
    def is_idle(self) -> bool:
        return not self._pending

    def is_pending(self, name: str) -> bool:
        return name in self._pending

    def request(self, name: str) -> PendingTopic:
        """Has the topic created; its messages wait here."""
        pending = self._pending.get(name)
        if pending is None:
            until_s = self._host.runtime.monotonic() + RETRIED_S
            pending = self._pending[name] = PendingTopic(self._budget, until_s)
            self._to_request.append(name)
            self._request_soon()
        return pending

    def take(self, name: str) -> PendingTopic | None:
        """Messages do not wait for it any more."""
        return self._pending.pop(name, None)

    def refusal(self, name: str, count: int) -> Refusal | None:
        """Why this topic can't take messages of the template, None when it may be created; there are `count` topics."""
        bound = self.binding.topic
        image = self._host.controller.image
        if name == bound:
            return ErrorCode.INVALID_TOPIC_EXCEPTION, f"the template leads back to the bound topic {bound}"
        if name in image.topics:
            if is_of_template(image, name, bound):
                return None
            why = f"topic {name} is not one of the template's: set {TEMPLATE_OF}={bound} on it to make it one"
            return ErrorCode.TOPIC_ALREADY_EXISTS, why
        if count >= self.binding.topic_max:
            why = f"topic {name} would be one more than nats.topic.max={self.binding.topic_max} of {bound}"
            return ErrorCode.POLICY_VIOLATION, why
        found = self._refused.get(name)
        if found is not None and found[0] > self._host.runtime.monotonic():
            return found[1]
        return None

    def topics_changed(self) -> None:
        """Other topics exist, or have other configs: topics refused before may be allowed now."""
        self._refused.clear()

    def close(self) -> int:
        """Ends for good; returns the number of messages that waited."""
        self._is_closed = True
        pending, self._pending = self._pending, {}
        return sum(each.emptied() for each in pending.values())

    # -- requests to the controller

    def _request(self) -> None:
        image = self._host.controller.image
        names = [name for name in self._to_request[:TOGETHER_MAX] if name in self._pending]
        del self._to_request[:TOGETHER_MAX]
        bound = image.topics.get(self.binding.topic)
        if self._is_closed or bound is None or not names:
            self._is_requesting = False
            self._request_soon()
            return
        configs = [
            (name, value)
            for name, value in image.topic_configs(bound.name).items()
            if not name.startswith(PREFIX)
        ]
        topics = [
            NewTopic(
                name,
                len(bound.partitions),
                len(bound.partitions[0].replicas),
                configs=[*configs, (TEMPLATE_OF, bound.name)],
            )
            for name in names
        ]
        create_topics(self._host.controller_channel, topics, self._answered)

    def _answered(self, results: dict[str, tuple[ErrorCode, str]]) -> None:
        self._is_requesting = False
        if self._is_closed:
            return
        runtime = self._host.runtime
        now_s = runtime.monotonic()
        again: list[str] = []
        for name, (error, message) in sorted(results.items()):
            pending = self._pending.get(name)
            if pending is None:
                continue
            if not error:
                self.problem = ""
                log.info("topic %s: created %s for its template", self.binding.topic, name)
                if name not in self._host.controller.image.topics:
                    again.append(name)  # removed already
            elif error in _TEMPORARY and now_s < pending.until_s:
                if not self.problem:
                    log.warning(
                        "topic %s: can't create %s yet: %s", self.binding.topic, name, message or error.name
                    )
                self.problem = f"topic {name} can't be created yet: {message or error.name}"
                again.append(name)
            else:
                if len(self._refused) >= REFUSED_MAX:
                    self._refused.clear()
                why = f"topic {name} can't be created: {message or error.name}"
                self._refused[name] = now_s + REFUSED_S, (error, why)
                self.problem = ""
            self._resolve(name)
        if again:
            runtime.call_later(RETRY_S, lambda: self._request_again(again))
        self._request_soon()

    def _request_again(self, names: list[str]) -> None:
        self._to_request += names
        self._request_soon()

    def _request_soon(self) -> None:
        """Requests the topics of this turn of the loop together."""
        if self._to_request and not self._is_requesting and not self._is_closed:
            self._is_requesting = True
            self._host.runtime.call_soon(self._request)
