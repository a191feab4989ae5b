"""Creation of the internal topics of streams groups: each once at a time, and the members hear of its failure for a while."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from barnabas.controller.operations.topics import NewTopic

if TYPE_CHECKING:
    from barnabas.broker.groups.streams.topology import InternalTopic
    from barnabas.runtime.interface import Runtime
    from barnabas.wire.errors import ErrorCode

log = logging.getLogger(__name__)

ERRORS_MAX: Final = 1000
Done: TypeAlias = "Callable[[dict[str, tuple[ErrorCode, str]]], object]"


class InternalTopics:
    """See the module."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._creating: set[str] = set()
        self._errors: OrderedDict[str, tuple[str, float]] = (
            OrderedDict()
        )  # topic -> its error, and until when

    def create(
        self,
        topics: Iterable[InternalTopic],
        send: Callable[[list[NewTopic], Done], object],
        errors_s: float,
    ) -> None:
        """Create those that are not being created, and have not failed just now. `send(topics, done)` asks the controller."""
        now = self._runtime.monotonic()
        wanted = [
            NewTopic(topic.name, topic.partitions, topic.replication_factor or -1, configs=topic.configs)
            for topic in topics
            if topic.name not in self._creating and self._error(topic.name, now) is None
        ]
        if not wanted:
            return
        names = [topic.name for topic in wanted]
        self._creating.update(names)

        def done(results: dict[str, tuple[ErrorCode, str]]) -> None:
            self._creating.difference_update(names)
            until = self._runtime.monotonic() + errors_s
            for name, (error, text) in results.items():
                if error:
                    log.warning("Internal topic %s could not be created: %s %s", name, error.name, text)
                    self._errors[name] = text or error.name, until
                    self._errors.move_to_end(name)
            while len(self._errors) > ERRORS_MAX:
                self._errors.popitem(last=False)

        send(wanted, done)

    def errors(self, topics: Iterable[InternalTopic]) -> dict[str, str]:
        """Why topics could not be created a short time ago."""
        now = self._runtime.monotonic()
        found = {topic.name: self._error(topic.name, now) for topic in topics}
        return {name: text for name, text in found.items() if text is not None}

    def _error(self, name: str, now: float) -> str | None:
        text, until = self._errors.get(name, ("", 0.0))
        if now < until:
            return text
        self._errors.pop(name, None)
        return None
