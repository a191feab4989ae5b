"""A simulated admin that changes the configs of topics while they are in use, one change after the other.

It records the answers: the value that was acknowledged last is the value, unless a change of unknown outcome came
after it (checkers.py).
"""

from __future__ import annotations

from collections.abc import Callable

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from compat_tests.simulation.history import ConfigChange, History, Topic, Violation
from compat_tests.simulation.wire_client import Client, NoResponse

ALTER_CONFIGS, ALTER_CONFIGS_VERSION = 44, 1
TOPIC = 2
SET = 0
RETRIABLE = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class ConfigChanger:
    """Runs until `should_continue` returns false. `replicas`: replicas of a topic."""

    def __init__(
        self,
        client: Client,
        history: History,
        replicas: int,
        pace_s: float,
        should_continue: Callable[[], bool],
    ) -> None:
        self._client = client
        self._history = history
        self._replicas = replicas
        self._pace_s = pace_s
        self._should_continue = should_continue
        self._changes = 0

    async def run(self) -> None:
        client = self._client
        while self._should_continue():
            topics = [
                topic for topic in self._history.topics.values() if topic.topic_id and not topic.is_deleted
            ]
            if topics:
                topic = client.random.choice(topics)
                await self._change(topic, *self._choose(topic))
            await client.pause(self._pace_s)

    def _choose(self, topic: Topic) -> tuple[str, str]:
        """(name, value), never the same value twice in a row: other nodes must see each change."""
        self._changes += 1
        chance = self._client.random
        if self._replicas == 3 and chance.random() < 0.2:
            return "min.insync.replicas", chance.choice(("2", "2", "3"))
        if topic.expires and chance.random() < 0.5:
            return "retention.ms", chance.choice(("1000", "3000", "8000"))
        return "delete.retention.ms", str(1_000_000 + self._changes)

    async def _change(self, topic: Topic, name: str, value: str) -> None:
        """Once."""
        client, history = self._client, self._history
        change = ConfigChange(topic.name, name, value, client.now())
        history.config_changes.append(change)
        request = IncrementalAlterConfigsRequest(
            [AlterConfigsResource(TOPIC, topic.name, [AlterableConfig(name, SET, value)])]
        )
        try:
            answer = await client.ask(client.any_address(), ALTER_CONFIGS, ALTER_CONFIGS_VERSION, request)
        except NoResponse:
            await client.refresh()
            return
        error = ErrorCode(answer.responses[0].error_code)
        history.count(f"configs changed {error.name}")
        if error is ErrorCode.NONE:
            change.ended_at = client.now()
            history.count(f"config {name} changed")
        elif error not in RETRIABLE:
            raise Violation(f"{client.name} got {error.name} for {name}={value} of {topic.name}")
